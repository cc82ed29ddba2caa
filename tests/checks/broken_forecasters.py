"""A sound forecaster for each way in, and broken ones: each breaks one promise of `mqcast.checks`, and only that."""

import json
import warnings
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl

WEEK = timedelta(weeks=1)
LEVELS = {"q0.1": 0.8, "q0.5": 1.0, "q0.9": 1.3}


def last_value(frame: pl.DataFrame, horizon: int, cutoff=None) -> pl.DataFrame:
    """The last observed value of each series, and a share of it on both sides."""
    known = frame.drop_nulls("y")
    cutoff = known["ds"].max() if cutoff is None else cutoff
    known = known.filter(pl.col("ds") <= cutoff).sort("unique_id", "ds")
    last = known.group_by("unique_id", maintain_order=True).agg(pl.col("y").last())
    _warn_of(set(frame["unique_id"]) - set(last["unique_id"]))
    return _spread(last, cutoff, horizon)


def _warn_of(left_out: set[str]) -> None:
    if left_out:
        warnings.warn(f"no forecast of {sorted(left_out)}: nothing observed", stacklevel=3)


def _spread(last: pl.DataFrame, cutoff, horizon: int) -> pl.DataFrame:
    steps = pl.DataFrame({"horizon": range(1, horizon + 1)})
    rows = last.join(steps, how="cross").with_columns(cutoff=pl.lit(cutoff).cast(pl.Datetime("us")))
    rows = rows.with_columns(ds=pl.col("cutoff") + WEEK * pl.col("horizon"))
    return rows.select(
        "unique_id", "cutoff", "ds", "horizon", **{q: pl.col("y") * share for q, share in LEVELS.items()}
    )


class LastValue:
    """The same as an object: trained, saved and loaded."""

    def __init__(self, horizon: int = 4):
        self.horizon = horizon

    def fit(self, frame: pl.DataFrame) -> "LastValue":
        self.factor_ = 1 + 0.1 * float(np.tanh(frame["y"].drop_nulls().max()))
        return self

    def predict(self, frame: pl.DataFrame) -> pl.DataFrame:
        return last_value(frame, self.horizon).with_columns(pl.col(list(LEVELS)) * self.factor_)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(vars(self)))

    @classmethod
    def load(cls, path: Path) -> "LastValue":
        made = cls()
        vars(made).update(json.loads(path.read_text()))
        return made


# -- broken functions --------------------------------------------------------------------------------------------------


def looks_ahead(frame, horizon, cutoff=None):
    """Its spread is that of the whole series, with what was sold after the cutoff."""
    found = last_value(frame, horizon, cutoff)
    most = frame.group_by("unique_id").agg(pl.col("y").max().alias("most"))
    return (
        found.join(most, on="unique_id", maintain_order="left")
        .with_columns(pl.max_horizontal("q0.9", pl.col("most")))
        .drop("most")
    )


def looks_ahead_in_its_own_backtest(frame, horizon):
    """Without a cutoff to be told: it gives two, the earlier one with later knowledge."""
    dates = frame.drop_nulls("y")["ds"].unique().sort()
    earlier = looks_ahead(frame, horizon, dates[-3])
    return pl.concat([earlier, last_value(frame, horizon)])


def depends_on_the_order_of_rows(frame, horizon):
    last = frame.drop_nulls("y").group_by("unique_id", maintain_order=True).agg(pl.col("y").last())
    _warn_of(set(frame["unique_id"]) - set(last["unique_id"]))
    return _spread(last.sort("unique_id"), frame.drop_nulls("y")["ds"].max(), horizon)


def depends_on_the_order_of_columns(frame, horizon):
    return last_value(frame, horizon).with_columns(pl.col(list(LEVELS)) * (1 if frame.columns[0] == "unique_id" else 2))


def leaks_between_series(frame, horizon):
    """As a scale that is taken over all series of the frame."""
    found = last_value(frame, horizon)
    return found.with_columns(pl.col(list(LEVELS)) * (1 + pl.col("q0.5") / pl.col("q0.5").max()))


def crosses(frame, horizon):
    return last_value(frame, horizon).with_columns(
        pl.when(pl.col("horizon") == 2).then("q0.5").otherwise("q0.1").alias("q0.1") * 1.1
    )


def is_random(frame, horizon):
    found = last_value(frame, horizon)
    noise = pl.Series(np.random.default_rng().random(len(found)))
    return found.with_columns(pl.col(list(LEVELS)) * (1 + noise))


def seeds_the_hosts_random_numbers(frame, horizon):
    np.random.seed(0)  # noqa: NPY002
    return last_value(frame, horizon)


def changes_the_frame(frame, horizon):
    found = last_value(frame, horizon)
    frame[0, "y"] = 5.0
    return found


def adds_a_column_to_the_frame(frame, horizon):
    frame.insert_column(0, pl.lit(1).alias("extra"))
    return last_value(frame, horizon)


def gives_wrong_dates(frame, horizon):
    return last_value(frame, horizon).with_columns(pl.col("ds") + WEEK)


def leaves_out_the_last_step(frame, horizon):
    return last_value(frame, horizon).filter(pl.col("horizon") < horizon)


def leaves_out_a_series(frame, horizon):
    return last_value(frame, horizon).filter(pl.col("unique_id") != "series 2")


def returns_no_cutoff(frame, horizon):
    return last_value(frame, horizon).drop("cutoff")


def returns_a_number(frame, horizon):
    return 3


def gives_nan(frame, horizon):
    return last_value(frame, horizon).with_columns(
        pl.when(pl.col("unique_id") == "series 3").then(float("nan")).otherwise("q0.9").alias("q0.9")
    )


def gives_negatives(frame, horizon):
    return last_value(frame, horizon).with_columns(pl.col("q0.1") - 2 * pl.col("q0.5"))


def is_absurdly_large(frame, horizon):
    return last_value(frame, horizon).with_columns(pl.col("q0.9") * 1e6)


def is_undone_by_gaps(frame, horizon):
    """As a division by a mean that is missing."""
    whole = frame.group_by("unique_id").agg(pl.when(pl.col("y").null_count() == 0).then(0.0).alias("zero"))
    return (
        last_value(frame, horizon)
        .join(whole, on="unique_id", maintain_order="left")
        .with_columns(pl.col(list(LEVELS)) + pl.col("zero"))
        .drop("zero")
    )


def refuses_gaps_without_a_name(frame, horizon):
    if frame["y"].null_count() > 1:
        raise ValueError("nulls")
    return last_value(frame, horizon)


def is_undone_by_constant_series(frame, horizon):
    spread = frame.group_by("unique_id").agg(
        spread=pl.when(pl.col("y").len() > 1).then(pl.col("y").std()).fill_null(1.0)
    )
    return (
        last_value(frame, horizon)
        .join(spread, on="unique_id", maintain_order="left")
        .with_columns(pl.col(list(LEVELS)) / pl.col("spread") * pl.col("spread"))
        .drop("spread")
    )


def is_undone_by_a_newcomer(frame, horizon):
    if frame.group_by("unique_id").len()["len"].min() < 2:
        raise IndexError("list index out of range")
    return last_value(frame, horizon)


# -- broken objects ----------------------------------------------------------------------------------------------------


class Forgets(LastValue):
    @classmethod
    def load(cls, path: Path) -> "LastValue":
        made = super().load(path)
        made.factor_ = 1.0
        return made


class LearnsAtRandom(LastValue):
    def fit(self, frame):
        self.factor_ = float(np.random.default_rng().random())
        return self


class LearnsFromTheFirstRow(LastValue):
    def fit(self, frame):
        self.factor_ = 1 + 0.01 * float(frame["unique_id"][0][-1])
        return self


class LooksAheadInBacktests(LastValue):
    def fit(self, frame):
        self.factor_ = 1.0
        return self

    def backtest(self, frame, start, end):
        known = frame.drop_nulls("y")
        return last_value(known, self.horizon, start).with_columns(pl.col(list(LEVELS)) * known["y"].mean())


class LooksAheadInRevisions(LastValue):
    def revisions(self, frame, start, end):
        dates = [day for day in frame.drop_nulls("y")["ds"].unique().sort() if start <= day <= end]
        level = frame["y"].mean()
        return pl.concat(last_value(frame, self.horizon, day) for day in dates).with_columns(pl.col("q0.9") * level)


class ChangesTheFrameInTraining(LastValue):
    def fit(self, frame):
        super().fit(frame)
        frame[1, "y"] = -1.0
        return self


BROKEN = {
    looks_ahead: "later_rows_change_no_forecast",
    looks_ahead_in_its_own_backtest: "later_rows_change_no_forecast",
    LooksAheadInBacktests: "later_rows_change_no_backtest",
    LooksAheadInRevisions: "later_rows_change_no_revision",
    depends_on_the_order_of_rows: "order_of_rows_and_columns_does_not_matter",
    depends_on_the_order_of_columns: "order_of_rows_and_columns_does_not_matter",
    LearnsFromTheFirstRow: "order_of_rows_and_columns_does_not_matter",
    leaks_between_series: "a_series_alone_is_forecast_as_in_company",
    crosses: "quantiles_do_not_cross",
    is_random: "same_input_gives_the_same_forecasts",
    LearnsAtRandom: "same_input_gives_the_same_forecasts",
    seeds_the_hosts_random_numbers: "the_random_state_is_left_as_it_was",
    changes_the_frame: "the_frame_is_left_as_it_was",
    adds_a_column_to_the_frame: "the_frame_is_left_as_it_was",
    ChangesTheFrameInTraining: "the_frame_is_left_as_it_was",
    gives_wrong_dates: "output_has_the_right_shape",
    leaves_out_the_last_step: "output_has_the_right_shape",
    leaves_out_a_series: "output_has_the_right_shape",
    returns_no_cutoff: "output_has_the_right_shape",
    returns_a_number: "output_has_the_right_shape",
    gives_nan: "forecasts_are_finite",
    gives_negatives: "forecasts_are_not_negative",
    is_absurdly_large: "forecasts_are_of_sane_size",
    is_undone_by_gaps: "missing_values_are_forecast_or_refused",
    refuses_gaps_without_a_name: "missing_values_are_forecast_or_refused",
    is_undone_by_constant_series: "constant_series_are_forecast",
    is_undone_by_a_newcomer: "newcomers_are_forecast_or_refused",
    Forgets: "what_is_loaded_forecasts_as_what_was_saved",
}
