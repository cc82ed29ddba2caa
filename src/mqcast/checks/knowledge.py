"""Checks of what a forecast may know: nothing after its cutoff, nothing of other series, nothing of the rows' order."""

import contextlib
from collections.abc import Iterator
from typing import Any

import polars as pl

from mqcast.checks.battery import check
from mqcast.checks.candidate import Candidate, FailedError, NotApplicableError, difference
from mqcast.checks.data import Data

MOST_ALONE = 4  # series that are forecast alone


@check
def order_of_rows_and_columns_does_not_matter(candidate: Candidate) -> str:
    """Rows and columns in another order give the same forecasts, and the same training."""
    first, shuffled = candidate.repeatable(), candidate.data.shuffled()
    ways = {"other order": candidate.fitted}
    if candidate.subject.has_training:
        ways["trained on another order"] = candidate.quietly(lambda: candidate.subject.fit(shuffled))
    for how, subject in ways.items():
        if problem := difference(first, candidate.forecast(shuffled, by=subject), candidate.tolerance):
            raise FailedError(f"{how}: {problem}")
    return f"equal with {' and '.join(ways)}"


@check
def a_series_alone_is_forecast_as_in_company(candidate: Candidate) -> str:
    """Which other series are in the frame when it is forecast changes no series' forecast."""
    first, data = candidate.repeatable(), candidate.data
    tolerance = max(candidate.tolerance, getattr(candidate.subject.thing, "batch_tolerance", 0.0))
    some = data.ending_last[:: max(1, len(data.ending_last) // MOST_ALONE)][:MOST_ALONE]
    if len(data.ids) < 2:
        raise NotApplicableError("there is only one series")
    for names in [[name] for name in some] + [some[::2]]:
        expected = first.filter(pl.col(data.schema.id).is_in([str(name) for name in names]))
        if problem := difference(expected, candidate.forecast(data.only(names)), tolerance):
            raise FailedError(f"with {len(names)} of {len(data.ids)} series: {problem}")
    equal = f"equal to {tolerance:g} of a series' size" if tolerance else "equal"
    return f"{len(some)} of {len(data.ids)} series alone, and some together, are {equal}"


@check
def later_rows_change_no_forecast(candidate: Candidate) -> str:
    """Rows after the cutoff, changed, deleted, or joined by more, leave the forecasts from the cutoff as they were."""
    candidate.repeatable()
    num_compared, cutoffs = 0, _cutoffs(candidate)
    for cutoff in cutoffs:
        for of, before in _before(candidate, cutoff).items():
            expected = candidate.forecast(before, cutoff)
            for how, after in later_worlds(before, cutoff, candidate.horizon):
                forecasts = _of_ids(candidate.forecast(after, cutoff), expected)
                if len(forecasts) == 0 and not candidate.fitted.takes_cutoff:
                    continue  # it does not forecast from there any more
                if problem := _changed(expected, forecasts, before, after, candidate):
                    raise FailedError(f"from {cutoff}{of}, {how}: {problem}")
                num_compared += 1
    if not num_compared:
        raise NotApplicableError("it forecasts from the last row alone: after that there is nothing to see")
    return f"{num_compared} other futures, from {len(cutoffs)} cutoffs"


@check
def later_rows_change_no_revision(candidate: Candidate) -> str:
    """Changed rows after a cutoff leave the revisions up to it as they were."""
    if not hasattr(candidate.subject.thing, "revisions"):
        raise NotApplicableError("it has no revisions")
    candidate.repeatable()
    data, dates = candidate.data, candidate.data.observed_dates
    start, end = dates[-min(len(dates), 2 * candidate.horizon + 2)], dates[-1]

    def revisions(of: Data) -> pl.DataFrame:
        return candidate.read(candidate.quietly(lambda: candidate.fitted.call("revisions", of, start=start, end=end)))

    first = revisions(data)
    cutoffs = first["cutoff"].unique().sort().to_list()
    for cutoff in sorted({cutoffs[0], cutoffs[len(cutoffs) // 2], cutoffs[-2 if len(cutoffs) > 1 else 0]}):
        earlier = pl.col("cutoff") <= cutoff
        for times, plus in ((7.0, 13.0), (0.0, 0.0)):
            changed = revisions(data.sold_later(cutoff, times, plus))
            if problem := difference(first.filter(earlier), changed.filter(earlier), candidate.tolerance):
                raise FailedError(f"other sales after {cutoff}: {problem}")
    return f"{len(cutoffs)} cutoffs in one pass"


@check
def later_rows_change_no_backtest(candidate: Candidate) -> str:
    """What a backtest trains and forecasts with is from rows up to its cutoff alone."""
    if not hasattr(candidate.subject.thing, "backtest"):
        raise NotApplicableError("it has no backtest")
    if not candidate.subject.has_training:
        raise NotApplicableError("it is trained already, and is not trained again; give one that is not fitted")
    candidate.repeatable()
    data, dates = candidate.data, candidate.data.observed_dates
    cutoff = dates[-candidate.horizon - 2]

    def backtest(of: Data) -> pl.DataFrame:
        made = candidate.subject.fresh()
        return candidate.read(candidate.quietly(lambda: made.call("backtest", of, start=cutoff, end=cutoff)))

    first = backtest(data)
    worlds = [*later_worlds(data, cutoff, candidate.horizon)]
    worlds.append(("returns after it", data.sold_later(cutoff, -1.0, -1.0)))
    for how, after in worlds:
        if problem := _changed(first, _of_ids(backtest(after), first), data, after, candidate):
            raise FailedError(f"from {cutoff}, {how}: {problem}")
    return f"{len(worlds)} other futures, each trained for"


def later_worlds(data: Data, cutoff: Any, horizon: int) -> Iterator[tuple[str, Data]]:
    """The same up to a date, and something else after it."""
    yield "more sold after it", data.sold_later(cutoff, 7.0, 13.0)
    yield "nothing sold after it", data.sold_later(cutoff, 0.0, 0.0)
    yield "rows after it deleted", data.until(cutoff, horizon)
    yield "further rows", data.grown(horizon, cutoff)
    if data.static is None:
        yield "another series after it", data.joined_by_newcomer(cutoff)


def _cutoffs(candidate: Candidate) -> list[Any]:
    """Some that have observations after them."""
    dates = candidate.data.observed_dates
    if candidate.fitted.takes_cutoff:
        if len(dates) < 3:
            raise NotApplicableError("the data have too few dates")
        return sorted({dates[len(dates) // 2], dates[3 * len(dates) // 4], dates[-2]})
    earlier = candidate.forecasts.filter(pl.col("cutoff") < dates[-1])["cutoff"].unique().sort().to_list()
    return earlier[-3:]


def _before(candidate: Candidate, cutoff: Any) -> dict[str, Data]:
    """The data, and the same with a series that is not observed before the cutoff, where that can be forecast."""
    data, dates = candidate.data, candidate.data.observed_dates
    place, worlds = dates.index(cutoff), {"": data}
    first, last = dates[max(0, place - candidate.horizon - 1)], dates[min(place + 1, len(dates) - 1)]
    for name in {data.ids[0]: None, data.ids[-1]: None}:
        unobserved = data.paused(name, first, last)
        with contextlib.suppress(Exception):  # another check is about missing values
            candidate.forecast(unobserved, cutoff)
            worlds[f", series {name!r} unobserved"] = unobserved
    return worlds


def _changed(
    expected: pl.DataFrame, forecasts: pl.DataFrame, before: Data, after: Data, candidate: Candidate
) -> str | None:
    """How the forecasts of series that are in both worlds differ; other series in a batch may change the last bits."""
    gone = [str(name) for name in before.ids if name not in set(after.ids)]
    if not gone:
        return difference(expected, forecasts, candidate.tolerance)
    kept = expected.filter(~pl.col(expected.columns[0]).is_in(gone))
    tolerance = max(candidate.tolerance, getattr(candidate.subject.thing, "batch_tolerance", 0.0))
    return difference(kept, forecasts, tolerance)


def _of_ids(forecasts: pl.DataFrame, like: pl.DataFrame) -> pl.DataFrame:
    id = like.columns[0]
    return forecasts.filter(pl.col(id).is_in(like[id].unique().implode()))
