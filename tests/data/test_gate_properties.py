"""Thousands of random frames: each gives the panel that a naive construction gives, or the typed error of its fault."""

import datetime as dt
import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqcast import Panel, Schema, errors

EPOCH = dt.datetime(2023, 1, 1)
STEP = {"h": dt.timedelta(hours=1), "D": dt.timedelta(days=1), "W-SUN": dt.timedelta(weeks=1)}
SCHEMA = Schema(freq="D", static=("city",), past=("visits",), known=("promo", "kind"), events=("fair",))
TYPES = {
    "unique_id": pl.String,
    "ds": pl.Datetime("us"),
    "y": pl.Float64,
    "city": pl.String,
    "visits": pl.Float64,
    "promo": pl.Boolean,
    "kind": pl.String,
    "fair": pl.Boolean,
}

numbers = st.one_of(
    st.none(),
    st.just(math.nan),
    st.floats(-(2.0**100), 2.0**100, width=32),
    st.sampled_from([0.0, -0.0, 1e-30, 1e30, 3.0]),
    st.integers(-5, 10**6).map(float),
)


@st.composite
def rows(draw, freq: str = "D") -> list[dict]:
    """Clean rows of a few ragged series with gaps, sorted by id and date."""
    found = []
    for name in draw(st.lists(st.text("aZ9 éß'\"", max_size=3), min_size=1, max_size=4, unique=True)):
        steps = sorted(draw(st.sets(st.integers(0, 30), min_size=1, max_size=12)))
        city = draw(st.sampled_from(["Ulm", "Bonn", None]))
        for step in steps:
            found.append(
                {
                    "unique_id": name,
                    "ds": EPOCH + step * STEP[freq],
                    "y": draw(numbers),
                    "city": city,
                    "visits": draw(numbers),
                    "promo": draw(st.booleans()),
                    "kind": draw(st.sampled_from(["x", "y", ""])),
                    "fair": step % 7 == 0,
                }
            )
        if all(row["y"] is None or math.isnan(row["y"]) for row in found if row["unique_id"] == name):
            found[-1]["y"] = 1.0
    return sorted(found, key=lambda row: (row["unique_id"].encode(), row["ds"]))


def polars_frame(found: list[dict]) -> pl.DataFrame:
    return pl.DataFrame(found, schema=TYPES)


def naive_arrays(found: list[dict], freq: str) -> dict[str, np.ndarray]:
    """What the panel must hold, by plain loops."""
    ids = sorted({row["unique_id"] for row in found}, key=str.encode)
    city = sorted({row["city"] for row in found} - {None})
    kind = sorted({row["kind"] for row in found})
    by_series = [[row for row in found if row["unique_id"] == name] for name in ids]
    step = [[(row["ds"] - own[0]["ds"]) // STEP[freq] for row in own] for own in by_series]
    fairs = sorted({(row["ds"], row["fair"]) for row in found})

    def number(value):
        return np.float32(math.nan if value is None else value + 0.0)

    arrays = {
        "offsets": np.cumsum([0] + [len(own) for own in by_series]),
        "target": np.array([number(row["y"]) for row in found]),
        "past_number": np.array([[number(row["visits"])] for row in found]),
        "known_number": np.array([[number(row["promo"])] for row in found]),
        "known_category": np.array([[kind.index(row["kind"]) + 1] for row in found]),
        "static_category": np.array(
            [[0 if own[0]["city"] is None else city.index(own[0]["city"]) + 1] for own in by_series]
        ),
        "event_number": np.array([[number(fair)] for _, fair in fairs]),
        "event_times": np.array([(ds - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1) for ds, _ in fairs]),
    }
    if any(steps[-1] + 1 != len(steps) for steps in step):
        arrays["steps"] = np.concatenate(step)
    return arrays


@settings(max_examples=600)
@given(st.data(), st.sampled_from(["h", "D", "W-SUN"]))
def test_a_panel_is_what_plain_loops_give(data, freq):
    found = data.draw(rows(freq))
    panel = Panel.from_frame(polars_frame(data.draw(st.permutations(found))), SCHEMA.replace(freq=freq))
    expected = naive_arrays(found, freq)
    for name, array in expected.items():
        np.testing.assert_array_equal(panel.arrays[name], array, err_msg=name)
    assert ("steps" in panel.arrays) == ("steps" in expected)
    assert panel.ids.to_pylist() == sorted({row["unique_id"] for row in found}, key=str.encode)


@settings(max_examples=400)
@given(st.data())
def test_order_and_library_do_not_change_one_bit(tmp_path_factory, data):
    found = data.draw(rows())
    clean = Panel.from_frame(polars_frame(found), SCHEMA)
    shuffled = polars_frame(data.draw(st.permutations(found))).select(data.draw(st.permutations(list(TYPES))))
    way = data.draw(st.sampled_from(["polars", "pandas", "arrow", "parquet", "categorical"]))
    if way == "pandas":
        frame = shuffled.to_pandas()
    elif way == "arrow":
        frame = shuffled.to_arrow()
    elif way == "parquet":
        frame = tmp_path_factory.mktemp("frames") / "frame.parquet"
        shuffled.write_parquet(frame, row_group_size=5)
    elif way == "categorical":
        frame = shuffled.with_columns(pl.col("unique_id", "kind", "city").cast(pl.Categorical))
    else:
        frame = shuffled
    panel = Panel.from_frame(frame, SCHEMA)
    assert panel.fingerprint == clean.fingerprint
    for name, array in clean.arrays.items():
        assert panel.arrays[name].tobytes() == array.tobytes(), name


def duplicate(found, i):
    return [*found, found[i]], errors.DuplicateRowsError


def off_grid(found, i):
    moved = [*found[:i], found[i] | {"ds": found[i]["ds"] + dt.timedelta(minutes=7)}, *found[i + 1 :]]
    return moved, errors.OffGridError if len(found) > 1 else None  # one row alone makes the grid


def infinite(found, i):
    return [*found[:i], found[i] | {"y": math.inf}, *found[i + 1 :]], errors.NonFiniteError


def unless_of_a_plan(found, i):
    """An empty value after the last sale of all is no error, if another row is left there."""
    last = max((row["ds"] for row in found if row["y"] is not None and row["y"] == row["y"]), default=found[i]["ds"])
    late = [row for row in found if row["ds"] > last]
    return None if found[i] in late and len(late) > 1 else errors.KnownValuesError


def unknown_promotion(found, i):
    return [*found[:i], found[i] | {"promo": None}, *found[i + 1 :]], unless_of_a_plan(found, i)


def no_kind(found, i):
    return [*found[:i], found[i] | {"kind": None}, *found[i + 1 :]], unless_of_a_plan(found, i)


def no_id(found, i):
    return [*found[:i], found[i] | {"unique_id": None}, *found[i + 1 :]], errors.MissingKeyError


def no_date(found, i):
    return [*found[:i], found[i] | {"ds": None}, *found[i + 1 :]], errors.MissingKeyError


def another_city(found, i):
    moved = [*found[:i], found[i] | {"city": "Elsewhere"}, *found[i + 1 :]]
    alone = sum(row["unique_id"] == found[i]["unique_id"] for row in found) == 1
    return moved, None if alone else errors.StaticValuesError


def nothing_observed(found, i):
    name = found[i]["unique_id"]
    return [row | {"y": None} if row["unique_id"] == name else row for row in found], errors.AllMissingError


FAULTS = [duplicate, off_grid, infinite, unknown_promotion, no_kind, no_id, no_date, another_city, nothing_observed]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@settings(max_examples=200)
@given(data=st.data())
def test_each_fault_gets_its_typed_error_that_names_the_series(fault, data):
    found = data.draw(rows())
    place = data.draw(st.integers(0, len(found) - 1))
    spoilt, expected = fault(found, place)
    frame = polars_frame(data.draw(st.permutations(spoilt)))
    if data.draw(st.booleans()):
        frame = frame.to_pandas()
    if expected is None:
        Panel.from_frame(frame, SCHEMA)
        return
    with pytest.raises(expected) as caught:
        Panel.from_frame(frame, SCHEMA)
    if expected is not errors.MissingKeyError:
        assert repr(found[place]["unique_id"]) in str(caught.value)
        assert caught.value.series == found[place]["unique_id"]
    assert "; " in str(caught.value), "a remedy follows the problem"
    assert "\n" not in str(caught.value)


def test_pandas_objects_pass_like_any_frame():
    """The slowest of pandas' ways, object columns of everything, is the same panel still."""
    found = [
        {"unique_id": "a", "ds": EPOCH + i * STEP["D"], "y": float(i), "promo": i % 2 == 0, "kind": "x"}
        for i in range(9)
    ]
    schema = Schema(freq="D", known=("promo", "kind"))
    objects = pd.DataFrame(found).astype(object)
    assert Panel.from_frame(objects, schema).fingerprint == Panel.from_frame(pl.DataFrame(found), schema).fingerprint
