"""Messages: whatever the data are, short, on one line, and with the remedy at the end."""

import datetime as dt
import pickle
import warnings

import polars as pl
import pytest

from mqcast import Panel, Schema, errors
from mqcast.settings import ModelConfig, TrainConfig

LONG = "x" * 10_000
ODD = "a\nb\tc\x00d\u202ee\u200bf\u2028g"


def test_a_long_id_is_shortened_in_the_message_and_whole_in_the_error():
    days = [dt.datetime(2024, 1, 1)] * 2
    with pytest.raises(errors.DuplicateRowsError) as caught:
        Panel.from_frame(pl.DataFrame({"unique_id": LONG, "ds": days, "y": 1.0}), Schema(freq="D"))
    assert caught.value.series == LONG
    assert len(str(caught.value)) < 400
    assert str(caught.value).startswith("series 'xxx")
    assert "at 2024-01-01: 2 rows (rows 0 and 1 of the frame); aggregate" in str(caught.value)


@pytest.mark.parametrize("name", [LONG, "\u202e" * 10_000, "'" * 10_000, "\n" * 10_000, "🛒" * 10_000])
def test_no_message_is_longer_than_a_thousand_characters_and_the_remedy_stands_at_its_end(name):
    made = [
        errors.DataError(f"problem {name} of {name!r}", "the remedy", series=name, column=name, time="2024"),
        errors.SchemaError(f"column {name!r} is not in {name}; the remedy"),
        errors.ConfigError(f"{name}; the remedy"),
        errors.TrainingError(f"series {name}; the remedy", 1, (name,)),
        errors.Interrupted(f"{name}; the remedy", 2),
        errors.UnseenCategoryWarning(f"{name}; the remedy"),
    ]
    for error in made:
        assert len(str(error)) <= errors.LONGEST, type(error)
        assert str(error).endswith("the remedy")
        assert str(error).isprintable()


def test_signs_that_cannot_be_seen_are_shown_as_codes():
    assert str(errors.ArtifactError(f"no run at {ODD}")) == r"no run at a\nb\tc\x00d\u202ee\u200bf\u2028g"


def test_long_quotations_are_shortened_before_the_message_is():
    text = str(errors.SchemaError(f"column {LONG!r} is not there; there are 'a' and 'b'; rename it"))
    assert text.startswith("column 'xxx")
    assert "' is not there; there are 'a' and 'b'; rename it" in text


def test_wrong_settings_are_told_in_few_words():
    given = {LONG: 1, "seed": LONG, "betas": [[1.0] * 10_000], "max_steps": 10**5000, "patience": object(), ODD: 2}
    with pytest.raises(errors.ConfigError) as caught:
        TrainConfig(**given)
    assert len(str(caught.value)) <= errors.LONGEST
    assert "and 3 more" in str(caught.value)


def test_warnings_are_short_too(sales):
    panel = Panel.from_frame(sales.with_columns(kind=pl.lit("old")), Schema(freq="W", known=("kind",)))
    new = sales.with_columns(kind=pl.format("{}{}", pl.lit(LONG), pl.int_range(pl.len())))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Panel.from_frame(new, like=panel)
    assert [issubclass(one.category, errors.UnseenCategoryWarning) for one in caught] == [True]
    assert len(str(caught[0].message)) <= errors.LONGEST


def test_errors_come_whole_out_of_another_process():
    error = errors.OffGridError("off", "move it", series="a", column="ds")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.series, again.remedy) == (type(error), str(error), "a", "move it")
    stopped = pickle.loads(pickle.dumps(errors.Interrupted("stopped", 15)))
    assert (str(stopped), stopped.signal) == ("stopped", 15)


@pytest.mark.parametrize(
    "values",
    [
        {"hidden_dim": 10**9},
        {"hidden_dim": True},
        {"head_dim": 10**12},
        {"lookback": 10**9},
        {"encoder_dilations": (10**9,)},
        {"encoder_dilations": (1,) * 1000},
        {"dropout": float("nan")},
        {"quantiles": 0.5},
        {"quantiles": (True,)},
    ],
)
def test_sizes_beyond_any_network_are_refused_when_they_are_said(values):
    with pytest.raises(errors.ConfigError, match=next(iter(values))):
        ModelConfig(**values)


@pytest.mark.parametrize(
    "values", [{"seed": 2**70}, {"seed": True}, {"learning_rate": float("inf")}, {"betas": (2, 3)}, {"max_steps": True}]
)
def test_impossible_settings_of_training_are_refused_when_they_are_said(values):
    with pytest.raises(errors.ConfigError, match=next(iter(values))):
        TrainConfig(**values)
