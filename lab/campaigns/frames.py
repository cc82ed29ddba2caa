"""Random frames through the input checks, `predict`, the evaluation functions and a Forecaster's arguments.

A clean frame, in any library, types, row and column order, gives the same panel as plain loops, bit for bit; a damaged
one gives a panel or a typed error of at most 1,000 characters that says where. Nothing else is raised, and all warnings
are the package's own.
"""

from __future__ import annotations

import datetime as dt
import tempfile
import traceback
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.campaigns.campaign import Campaign
from lab.campaigns.damages import DAMAGES
from lab.campaigns.frame_samples import Sample, draw, expected, handed_over, mixed_up
from mqcast import Forecaster, MqcastError, Panel, evaluate, rank_revisions, volatility
from mqcast.data.export import frames_of
from mqcast.errors import LONGEST, MqcastWarning

HORIZON = 2
SMALL = {
    "model": {"hidden_dim": 4, "encoder_dilations": (1, 2), "lookback": 4},
    "window": {"history": 6, "num_fcts": 6},
}
WRONG: dict[str, list[Any]] = {
    "model": [3, None, "", "mqtt", ["mqt"], "x" * 10_000],
    "horizon": [True, 0, -1, 2.5, "4", None, 10**9, 10**400, np.nan, [], 10**5000],
    "quantiles": [
        0.5,
        (),
        ("a",),
        (True,),
        (np.nan,),
        (0.5, 0.5),
        (0.9, 0.1),
        "0.5",
        None,
        (0, 0.5),
        (0.5, 0.5 + 1e-9),
    ],
    "seed": [2**70, -1, "a", 1.5, None, True, np.nan],
    "max_steps": [0, -1, 2.5, "a", True, np.inf],
    "max_minutes": [0, -1, np.nan, np.inf, "a", True, [1]],
    "members": [0, -1, 33, 2.5, "a", True, np.nan],
    "folder": [5, "", "a\0b", "x" * 300, b"x", []],
    "device": ["moon", 5, None, "", "cuda:99", "x" * 10_000],
    "verbose": ["x", 1, None, np.nan],
    "schema": [5, "y", [], {"ids": "a"}, {"id": 5}, {5: "a"}, {"id": "cutoff"}, {"freq": "7X"}, {"known": [1]}],
    "config": [
        5,
        [],
        {"train": 3},
        {5: {}},
        {"train": {5: 1}},
        "none.toml",
        {"x" * 10_000: {}},
        {"model": {"hidden_dim": 10**9}},
    ],
}


def attempt(call: Callable[[], Any]) -> tuple[Any, MqcastError | None, str]:
    """The result of a call, the typed error that it raised, and what is wrong with either."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result, error, problem = call(), None, ""
        except MqcastError as refused:
            result, error, problem = None, refused, ""
        except BaseException:
            result, error, problem = None, None, traceback.format_exc(limit=-4)
    foreign = [one for one in caught if not issubclass(one.category, MqcastWarning)]
    texts = [str(error or ""), *(str(one.message) for one in caught)]
    if foreign and not problem:
        problem = (
            f"warned: {foreign[0].category.__name__} {foreign[0].message} at {foreign[0].filename}:{foreign[0].lineno}"
        )
    if not problem and (longest := max(texts, key=len)) and (len(longest) > LONGEST or not longest.isprintable()):
        problem = f"a message of {len(longest)} characters: {longest[:300]!r}"
    if not problem and error is not None and not str(error):
        problem = "an error without a message"
    return result, error, problem


def difference(panel: Panel, sample: Sample) -> str:
    """Where the panel differs from what plain loops make of the rows; an empty text if nowhere."""
    exported = {"ids": panel.ids.to_pylist(), "ds": frames_of(panel).rows["ds"].dt.replace_time_zone(None).to_list()}
    for name, value in expected(sample).items():
        actual = exported[name] if name in exported else panel.arrays[name]
        same = (
            actual == value
            if name in exported
            else np.array_equal(np.asarray(actual), value, equal_nan=value.dtype.kind == "f")
        )
        if not same:
            return f"{name} is {actual!r}, not {value!r}"
    return "" if not np.signbit(panel.target[panel.target == 0]).any() else "a negative zero"


def clean(rng: np.random.Generator, folder: Path) -> tuple[str, str]:
    sample = draw(rng)
    frame = handed_over(rng, mixed_up(rng, sample.frame), folder)
    panel, error, problem = attempt(lambda: Panel.from_frame(frame, sample.schema))
    problem = problem or (f"refused: {error}" if error else difference(panel, sample))
    again, _, _ = attempt(lambda: Panel.from_frame(sample.frame, sample.schema))
    if not problem and again.fingerprint != panel.fingerprint:
        problem = "another fingerprint than the sorted polars frame's"
    return "clean frames", problem


def damaged(rng: np.random.Generator, folder: Path) -> tuple[str, str]:
    name = str(rng.choice(list(DAMAGES)))
    sample = draw(rng)
    frame, words = DAMAGES[name](rng, sample, folder)
    panel, error, problem = attempt(lambda: Panel.from_frame(frame, sample.schema))
    if not problem and error is not None and words:
        problem = "".join(f"no {word!r} in: {error}" for word in words if word not in str(error))
    if not problem and error is None and words is not None:
        problem = f"was read: {panel!r}"
    if not problem and panel is not None and not (0 < panel.num_series <= panel.num_rows <= len(sample.rows)):
        problem = f"{panel!r} of {len(sample.rows)} rows"
    return f"gate: {name}", problem


@cache
def forecasters() -> tuple[Forecaster, ...]:
    """A network and a seasonal naive forecaster, fitted to clean rows."""
    sample = draw(np.random.default_rng(7), "D", [f"a{i}" for i in range(6)], most=30)
    made = [
        Forecaster("mqt", HORIZON, schema=sample.schema.replace(known=()), config=SMALL, max_steps=1, verbose=False)
    ]
    made.append(Forecaster("seasonal-naive", HORIZON, schema=sample.schema.replace(known=())))
    return tuple(one.fit(sample.frame) for one in made)


def predicted(rng: np.random.Generator, folder: Path) -> tuple[str, str]:
    made, sample = forecasters()[int(rng.random() < 0.5)], draw(rng, "D")
    name = str(rng.choice(["clean", *DAMAGES]))
    frame = (
        handed_over(rng, mixed_up(rng, sample.frame), folder)
        if name == "clean"
        else DAMAGES[name](rng, sample, folder)[0]
    )
    if frame is None:  # the fitted one
        return "predict: clean", ""
    forecasts, error, problem = attempt(lambda: made.predict(frame))
    if not problem and name == "clean" and error is not None:
        problem = f"refused: {error}"
    if not problem and error is None:
        table = forecasts if isinstance(forecasts, pl.DataFrame) else pl.DataFrame(forecasts)
        if table.columns != ["unique_id", "cutoff", "ds", "horizon", "q0.5", "q0.9"] or table.height % HORIZON:
            problem = f"columns {table.columns}, {table.height} rows"
    return f"predict: {name}", problem


def judged(rng: np.random.Generator, folder: Path) -> tuple[str, str]:
    """Forecasts and actuals, one of them damaged, through the readers of the evaluation functions."""
    sample, name = draw(rng, "D", ["a0", "a1"]), str(rng.choice(["clean", *DAMAGES]))
    dates = sorted({row["ds"] for row in sample.rows})
    keys = [
        {"unique_id": one, "cutoff": date - dt.timedelta(days=lead), "ds": date, "horizon": lead}
        for one in sample.ids
        for date in dates
        for lead in (1, 2)
    ]
    forecasts = pl.DataFrame(keys).with_columns(pl.lit(1.0).alias("q0.5"), pl.lit(2.0).alias("q0.9"))
    actuals: Any = sample.frame
    if name == "clean":
        forecasts, actuals = (handed_over(rng, mixed_up(rng, one), folder) for one in (forecasts, sample.frame))
    elif rng.random() < 0.5:
        actuals, _ = DAMAGES[name](rng, sample, folder)
    else:
        forecasts = _as_forecasts(DAMAGES[name](rng, sample, folder)[0], forecasts)
    verb = [evaluate, volatility, rank_revisions][int(rng.integers(3))]
    more = {"resamples": 2} if verb is volatility else {}
    more |= {} if verb is rank_revisions else {"missing": "drop"}
    _, _, problem = attempt(lambda: verb(forecasts, actuals, **more))
    return f"judge: {name}", problem


def _as_forecasts(frame: Any, forecasts: pl.DataFrame) -> Any:
    """A damaged frame with the columns of forecasts, as far as they can be renamed."""
    called = {"visits": "cutoff", "y": "q0.5", "price": "q0.9"}
    try:
        if hasattr(frame, "rename_columns"):
            return frame.rename_columns([called.get(name, name) for name in frame.column_names])
        table = frame.rename(columns=called) if hasattr(frame, "iloc") else frame.rename(called, strict=False)
        is_eager = hasattr(table, "iloc")
        return (
            table.assign(cutoff=dt.datetime(2022, 1, 1))
            if is_eager
            else table.with_columns(cutoff=dt.datetime(2022, 1, 1))
        )
    except (AttributeError, TypeError, ValueError, pl.exceptions.PolarsError):
        return frame


def argued(rng: np.random.Generator, folder: Path) -> tuple[str, str]:
    name = str(rng.choice(list(WRONG)))
    value = WRONG[name][int(rng.integers(len(WRONG[name])))]
    sample = draw(rng, "D", ["a"], most=20)
    given = {
        "model": "mqt",
        "horizon": HORIZON,
        "config": SMALL,
        "max_steps": 1,
        "verbose": False,
        "folder": folder / "run",
    }
    _, error, problem = attempt(lambda: Forecaster(**given | {name: value}).fit(sample.frame))
    if not problem and (error is None or (folder / "run").exists()):
        problem = f"{name}={str(value)[:80]} was accepted"
    return f"argument: {name}", problem


def main() -> None:
    campaign = Campaign(__doc__.split("\n\n")[1].replace("\n", " "), count=10_000)
    kinds = [clean, damaged, damaged, predicted, judged, argued]
    forecasters()
    with tempfile.TemporaryDirectory(prefix="mqcast-frames-") as scratch:
        for number, rng in campaign.trials():
            folder = Path(scratch) / str(number % 8)
            folder.mkdir(exist_ok=True)
            kind, problem = kinds[int(rng.integers(len(kinds)))](rng, folder)
            campaign.check(not problem, kind, f"--seed {campaign.options.seed}, trial {number}: {problem}")
    campaign.finish()


if __name__ == "__main__":
    main()
