"""Implausible forecasts of any forecaster are detected and reported; honest ones give no warning.

    python -m lab campaign implausible [--count 5000] [--seed 0]

Each trial makes a frame of forecasts beside actuals: of random size, scale and levels, with series that never sold and
series that were never observed. It is either honest (quantiles of the distribution that the actuals are drawn from) or
wild (anything up to ten times the largest value ever sold, of few series). Unchanged, it must give no warning. Then
absurd values are planted at random series, cutoffs, dates and levels: 11 to 1e60 times the largest value, of either
sign, small negative ones, and zero forecasts of series that always sell. Each of them has to be listed with its level,
value and reason, the counts have to be exact, and `evaluate` has to warn once.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import polars as pl

from lab.campaigns.campaign import Campaign
from mqcast import evaluate, implausible
from mqcast.errors import ImplausibleForecastWarning

LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
WEEK, START = np.timedelta64(7, "D"), np.datetime64("2024-01-07", "us")
KEYS = ["unique_id", "cutoff", "ds"]
MULTIPLE = 10


@dataclass
class Trial:
    """A clean frame as arrays: one row a series, cutoff and lead."""

    ids: np.ndarray
    demand: np.ndarray  # (series, weeks)
    seen: np.ndarray  # (series,): whether the actuals have it
    item: np.ndarray
    cutoff: np.ndarray
    lead: np.ndarray
    levels: tuple[float, ...]
    quantiles: np.ndarray  # (rows, levels)

    @property
    def measure(self) -> np.ndarray:
        """The value that each series' forecasts are compared with, by a plain loop."""
        of_all = max(float(np.abs(values).max()) for values in self.demand[self.seen])
        own = [float(np.abs(values).max()) for values in self.demand]
        return np.array([each if each and seen else of_all for each, seen in zip(own, self.seen, strict=True)])

    @property
    def forecast_to_sell_nothing(self) -> set[str]:
        """Series that always sell but have no quantile above 0, by a plain loop."""
        return {
            str(name)
            for i, name in enumerate(self.ids)
            if self.seen[i] and (self.demand[i] > 0).all() and (self.quantiles[self.item == i] <= 0).all()
        }

    def actuals(self) -> pl.DataFrame:
        num_weeks = self.demand.shape[1]
        ids = np.repeat(self.ids[self.seen], num_weeks)
        weeks = np.tile(START + np.arange(num_weeks) * WEEK, self.seen.sum())
        return pl.DataFrame({"unique_id": ids, "ds": weeks, "y": self.demand[self.seen].ravel()})

    def forecasts(self, rng: np.random.Generator) -> pl.DataFrame:
        dates = {"cutoff": START + self.cutoff * WEEK, "ds": START + (self.cutoff + self.lead) * WEEK}
        columns = {f"q{level:g}": self.quantiles[:, i] for i, level in enumerate(self.levels)}
        frame = pl.DataFrame({"unique_id": self.ids[self.item], **dates, "horizon": self.lead, **columns})
        return frame[rng.permutation(frame.height)]


def clean_trial(rng: np.random.Generator) -> tuple[str, Trial]:
    kind = str(rng.choice(["honest", "wild"]))
    num_series = int(rng.integers(2, 30) if kind == "honest" else rng.integers(2, 8))
    horizon, num_cutoffs, past = int(rng.integers(1, 6)), int(rng.integers(1, 9)), int(rng.integers(8, 30))
    levels = tuple(sorted(rng.choice(LEVELS, int(rng.integers(1, 5)), replace=False).tolist()))
    mean, spread = rng.normal(0, 2, num_series) + rng.uniform(-8, 15), rng.uniform(0.1, 0.7)
    num_weeks = past + num_cutoffs + horizon
    demand = np.exp(mean[:, None] + spread * rng.standard_normal((num_series, num_weeks)))
    demand[1:][rng.random(num_series - 1) < 0.1] = 0
    if rng.random() < 0.2:
        demand[rng.integers(num_series), rng.integers(num_weeks)] *= -1  # a return, so that demand may be negative
    seen = rng.random(num_series) > 0.1
    seen[np.abs(demand).max(axis=1).argmax()] = True
    item, cutoff, lead = (
        part.ravel()
        for part in np.meshgrid(
            np.arange(num_series), past + np.arange(num_cutoffs), np.arange(1, horizon + 1), indexing="ij"
        )
    )
    ids = rng.permutation([f"item {i}" for i in range(num_series)])
    trial = Trial(ids, demand, seen, item, cutoff, lead, levels, np.zeros((len(item), len(levels))))
    limit = MULTIPLE * trial.measure[item][:, None]
    if kind == "honest":
        normal = np.array([NormalDist().inv_cdf(level) for level in levels])
        trial.quantiles = np.minimum(np.exp(mean[item][:, None] + spread * normal), limit)
        trial.quantiles[np.abs(demand).max(axis=1)[item] == 0] = 0
    else:
        trial.quantiles = np.sort(limit * rng.random((len(item), len(levels))) ** rng.uniform(0.2, 4), axis=1)
        trial.quantiles[rng.random(len(item)) < 0.05] = limit[rng.integers(len(limit))].min() * 1e-9
    return kind, trial


def plant(trial: Trial, rng: np.random.Generator) -> dict[tuple, tuple]:
    """Put absurd values into the trial's quantiles; what has to be reported for each row."""
    may_be_negative = bool((trial.demand[trial.seen] < 0).any())
    zeros = np.flatnonzero(trial.seen & (trial.demand > 0).all(axis=1) & (rng.random(len(trial.ids)) < 0.1))
    trial.quantiles[np.isin(trial.item, zeros)] = 0
    free = np.flatnonzero(~np.isin(trial.item, zeros))
    expected = {}
    for row in rng.choice(free, min(len(free), int(rng.integers(1, 12))), replace=False):
        place, measure = int(rng.integers(len(trial.levels))), trial.measure[trial.item[row]]
        if rng.random() < 0.7:
            value = measure * 10.0 ** rng.uniform(np.log10(11), 60) * rng.choice([1, -1])
            reason = "too large"
        else:
            value, reason = -measure * rng.uniform(1e-4, 9.9), "negative"
        trial.quantiles[row, place] = value
        if reason == "negative" and (may_be_negative or trial.quantiles[row].min() < value):
            continue
        cutoff = START + trial.cutoff[row] * WEEK
        key = (str(trial.ids[trial.item[row]]), cutoff.item(), (cutoff + trial.lead[row] * WEEK).item())
        expected[key] = (trial.levels[place], float(value), reason)
    return expected


def warnings_of(frame: pl.DataFrame, actuals: pl.DataFrame) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        evaluate(frame, actuals, missing="drop")
    others = [one for one in caught if not issubclass(one.category, ImplausibleForecastWarning)]
    if others:
        raise AssertionError(f"another warning: {others[0].message}")
    return [str(one.message) for one in caught]


def main() -> None:
    campaign = Campaign("implausible forecasts are detected, counted and reported; honest ones are not", 5_000)
    for number, rng in campaign.trials():
        kind, trial = clean_trial(rng)
        frame, actuals = trial.forecasts(rng), trial.actuals()
        result, messages = implausible(frame, actuals), warnings_of(frame, actuals)
        is_clean = not result and not messages
        campaign.check(is_clean, f"{kind}, nothing planted", f"trial {number}: {messages or result}")
        expected = plant(trial, rng)
        frame, zeros = trial.forecasts(rng), trial.forecast_to_sell_nothing
        result, messages = implausible(frame, actuals), warnings_of(frame, actuals)
        columns = [*KEYS, "quantile", "forecast", "reason"]
        listed = {row[:3]: row[3:] for row in result.rows.select(columns).iter_rows()}
        counts = result.counts.row(0, named=True)
        large = sum(reason == "too large" for *_, reason in expected.values())
        exact = (counts["too_large"], counts["negative"]) == (large, len(expected) - large)
        exact &= counts["series_affected"] == len({key[0] for key in expected}) and counts["all_zero"] == len(zeros)
        holds = listed == expected and exact and set(result.all_zero["unique_id"]) == zeros
        campaign.check(
            holds, f"{kind}, found exactly", f"trial {number}: {listed} beside {expected}, {counts}, {zeros}"
        )
        judged = {str(name) for name in trial.ids[trial.seen]}
        is_due = bool(zeros or any(key[0] in judged for key in expected))
        campaign.check(len(messages) == is_due, f"{kind}, warned of once", f"trial {number}: {messages}")
    campaign.finish()


if __name__ == "__main__":
    main()
