# pyright: strict
"""A weighted mean of the quantiles of several models, with weights that had the lowest loss on earlier forecasts.

Each level has weights of its own. They start from weights that are equal or, after many dates, fall with the loss of a
member, and leave them as far as the dates are evidence. Neighbouring levels share what they tell. A loss counts half in
multiples of what is usual for its series, so that all series are heard, and half in units of demand, so that the large
ones are.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from narwhals.typing import IntoDataFrame

from mqcast.data.schema import Schema
from mqcast.errors import ArtifactError, ConfigError, DataError
from mqcast.evaluation.reading import Actuals, Models, actuals_table, forecast_tables
from mqcast.evaluation.tables import Missing, Names, actuals_of, common_rows
from mqcast.evidence import error_of_mean
from mqcast.levels import level_of, pinball, quantile_column

FORMAT, FORMAT_VERSION = "mqcast-blend", 1
MOST_ROWS = 50_000  # of more, a sample is used
STEPS = 300
PRIOR = 1.0  # as many independent dates is the prior worth
SHARPNESS, HALF_SHARP = (
    4.0,
    8.0,
)  # after many dates the prior goes with 1 / loss⁴, after 8 with 1 / loss², before with 1
LEAST_WEIGHT = 0.03  # of a member, averaged over levels
SMALLEST_SCALE = 0.01  # of a series, as a share of its mean demand and of the median scale
SMOOTHNESS = 2.0  # of neighbouring levels, as a multiple of the pull towards equal weights


@dataclass(frozen=True, eq=False)
class Blend:
    """The weights of members by level."""

    levels: tuple[float, ...]
    members: tuple[str, ...]
    weight: np.ndarray  # (levels, members): not negative, with a sum of 1 at each level

    @classmethod
    def equal(cls, levels: Sequence[float], members: Sequence[str]) -> "Blend":
        return cls(tuple(levels), tuple(members), np.full((len(levels), len(members)), 1 / len(members)))

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each member, averaged over levels."""
        return dict(zip(self.members, self.weight.mean(axis=0).tolist(), strict=True))

    def only(self, members: Sequence[str]) -> "Blend":
        """The blend of some of its members, whose weights grow in proportion."""
        kept = self.weight[:, [self.members.index(name) for name in members]]
        total = kept.sum(axis=1, keepdims=True)
        return replace(self, members=tuple(members), weight=np.where(total > 0, kept / total, 1 / len(members)))

    def apply(self, forecasts: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        """The blended quantiles, sorted, of frames with the same names; those that lack a row do not count in it."""
        if missing := [name for name in self.members if name not in forecasts]:
            raise ConfigError(f"there are no forecasts of {', '.join(missing)} to blend; give those of all members")
        columns = [quantile_column(level) for level in self.levels]
        frames = [_keyed(forecasts[name], columns) for name in self.members]
        keys = [name for name in frames[0].columns if name not in columns]
        rows = frames[0].select(keys)
        if any(not rows.equals(frame.select(keys)) for frame in frames[1:]):
            rows = pl.concat([frame.select(keys) for frame in frames]).unique().sort(keys)
            frames = [rows.join(frame, on=keys, how="left", maintain_order="left") for frame in frames]
        total, weights = np.zeros((rows.height, len(columns))), np.zeros((rows.height, len(columns)))
        for frame, weight in zip(frames, np.maximum(self.weight, np.finfo(float).tiny).T, strict=True):
            values = frame.select(columns).to_numpy()
            exists = ~np.isnan(values)
            total += np.where(exists, values * weight, 0.0)
            weights += np.where(exists, weight, 0.0)
        blended = np.sort(total / weights, axis=1)
        return rows.with_columns(pl.Series(name, blended[:, i]) for i, name in enumerate(columns))

    def to_json(self) -> str:
        facts = {"format": FORMAT, "version": FORMAT_VERSION} | vars(self) | {"weight": self.weight.tolist()}
        return json.dumps(facts, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Blend":
        try:
            facts: dict[str, Any] = json.loads(text)
            if (facts["format"], facts["version"]) != (FORMAT, FORMAT_VERSION):
                raise ValueError(f"format {facts['format']} {facts['version']}")
            weight = np.array(facts["weight"], float)
            blend = cls(tuple(facts["levels"]), tuple(facts["members"]), weight)
            if weight.shape != (len(blend.levels), len(blend.members)) or not (weight >= 0).all():
                raise ValueError("its weights do not fit its levels and members")
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactError(f"this is no blend ({error}); fit it again") from None
        return blend


@dataclass(frozen=True, eq=False)
class Judged:
    """Forecasts of several members for the same rows, the demand that followed, and how much each row's loss counts."""

    members: tuple[str, ...]
    levels: tuple[float, ...]
    quantiles: np.ndarray  # (levels, rows, members)
    actual: np.ndarray
    row_weight: np.ndarray
    num_dates: float  # as many independent dates would say as much

    def losses(self) -> np.ndarray:
        """(members, levels): the mean loss of each."""
        levels = np.array(self.levels)[:, None, None]
        loss = pinball(self.actual[:, None], self.quantiles, levels)
        return np.einsum("lnm,n->ml", loss, self.row_weight) / len(self.actual)

    def only(self, members: Sequence[str]) -> "Judged":
        kept = [self.members.index(name) for name in members]
        return replace(self, members=tuple(members), quantiles=np.ascontiguousarray(self.quantiles[..., kept]))


def judged(
    forecasts: Models[IntoDataFrame],
    actuals: Actuals,
    levels: Sequence[float] | None = None,
    *,
    missing: Missing = "drop",
    id: str | None = None,
    time: str | None = None,
    target: str | None = None,
    schema: Schema | None = None,
) -> Judged:
    """The rows that all members forecast and that have an actual; of very many, always the same sample."""
    names = Names.of(schema, id=id, time=time, target=target)
    tables = forecast_tables(forecasts, names)
    if (masks := common_rows(tables)) is not None:
        tables = {name: table.where(masks[name]) for name, table in tables.items()}
    rows = next(iter(tables.values()))
    if not rows.num_rows:
        raise DataError("no forecast is of all members", "give forecasts of the same series, cutoffs and dates")
    wanted = rows.levels if levels is None else tuple(levels)
    actual = actuals_of(rows, actuals_table(actuals, names), missing)[rows.trajectory]
    known = np.flatnonzero(~np.isnan(actual))
    if len(known) > MOST_ROWS:
        known = np.sort(np.random.default_rng(0).choice(known, MOST_ROWS, replace=False))
    stacked = np.stack([table.at_levels(wanted).quantiles[known] for table in tables.values()])
    quantiles, actual = np.ascontiguousarray(stacked.transpose(2, 1, 0)), actual[known]
    losses = pinball(actual[:, None], quantiles, np.array(wanted)[:, None, None]).mean(axis=0)
    row_weight = _row_weights(rows.item[known], losses.mean(axis=1), actual)
    num_dates = _num_dates(losses * row_weight[:, None], rows.time[known], int(rows.lead.max()))
    return Judged(tuple(tables), wanted, quantiles, actual, row_weight, num_dates)


def fit_blend(found: Judged, prior: Mapping[str, float] | None = None) -> Blend:
    """The weights with the lowest loss; members with less than 3 % are left out, and the others are weighted again.

    Before any evidence, members weigh as much as `prior` says, and 1 if it does not.
    """
    members = found.members
    while True:
        kept = found.only(members)
        blend = Blend(found.levels, members, best_weights(kept, prior))
        mean = blend.weight.mean(axis=0)
        if len(members) == 1 or mean.min() >= LEAST_WEIGHT:
            return blend
        members = tuple(name for name in members if name != members[int(mean.argmin())])


def best_weights(found: Judged, prior: Mapping[str, float] | None = None) -> np.ndarray:
    """Mirror descent with steps that fit the gradients so far; the mean of its second half."""
    num_levels, num = len(found.levels), len(found.members)
    equal = np.full((num_levels, num), 1 / num)
    values, levels = found.quantiles, np.array(found.levels)[:, None]
    usual = found.losses().mean(axis=0)[:, None]
    if num == 1 or not usual.all():
        return equal
    before = np.array([(prior or {}).get(name, 1.0) for name in found.members])
    pull = PRIOR / found.num_dates
    drawn_to = _prior((found.losses() / usual.T).mean(axis=1), found.num_dates, before)
    weight, total, sizes, late = equal, np.zeros_like(equal), np.zeros((num_levels, 1)), np.zeros_like(equal)
    for step in range(STEPS):
        blended = (values @ weight[:, :, None])[:, :, 0]
        slope = found.row_weight * ((found.actual < blended) - levels)
        gradient = (slope[:, None, :] @ values)[:, 0] / (len(found.actual) * usual)
        gradient += pull * (np.log(np.maximum(weight / drawn_to, 1e-9)) + SMOOTHNESS * _from_neighbours(weight))
        gradient -= gradient.mean(axis=1, keepdims=True)
        total += gradient
        sizes += np.abs(gradient).max(axis=1, keepdims=True) ** 2
        logits = -total * np.sqrt(np.log(num) / np.maximum(sizes, 1e-12))
        weight = np.exp(logits - logits.max(axis=1, keepdims=True))
        weight /= weight.sum(axis=1, keepdims=True)
        late += weight if step >= STEPS // 2 else 0.0
    return late / late.sum(axis=1, keepdims=True)


def _prior(losses: np.ndarray, num_dates: float, before: np.ndarray) -> np.ndarray:
    """The weights before any evidence; after many dates, a member with a larger loss has less."""
    weight = before * np.maximum(losses, 1e-9) ** (-SHARPNESS * num_dates / (num_dates + HALF_SHARP))
    return weight / weight.sum()


def _from_neighbours(weight: np.ndarray) -> np.ndarray:
    """How far each level's weights are from those of the levels beside it."""
    steps = np.diff(weight, axis=0)
    return np.pad(steps, ((1, 0), (0, 0))) - np.pad(steps, ((0, 1), (0, 0)))


def _row_weights(item: np.ndarray, usual: np.ndarray, actual: np.ndarray) -> np.ndarray:
    counts = np.maximum(np.bincount(item), 1)
    scale, size = (np.bincount(item, values) / counts for values in (usual, np.abs(actual)))
    typical = float(np.median(scale[item]))
    scale = np.maximum(np.maximum(scale, SMALLEST_SCALE * size), SMALLEST_SCALE * typical)[item]
    scale = np.where(scale > 0, scale, 1.0)
    return 0.5 / scale + 0.5 / scale.mean()


def _num_dates(losses: np.ndarray, time: np.ndarray, longest: int) -> float:
    """How many independent dates would say as much: a member that is ahead on one date often is so on the next.

    losses: (rows, members)
    """
    dates, cluster = np.unique(time, return_inverse=True)
    reach = min(longest, int(np.sqrt(len(dates))))
    ahead = losses - losses.mean(axis=1, keepdims=True)
    errors = [[error_of_mean(of_member, cluster, steps) for steps in (0, reach)] for of_member in ahead.T]
    shares = [(alone / together) ** 2 for alone, together in errors if together > 0]
    return max(1.0, len(dates) * float(np.mean(shares or [1.0])))


def _keyed(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """A frame sorted by its keys, whose types are the same for all members."""
    keys = [name for name in frame.columns if level_of(name) is None]
    dates = [name for name in keys if frame.schema[name].is_temporal()]
    texts = [name for name in keys if name not in (*dates, "horizon")]
    days = [pl.col(name).cast(pl.Datetime("us")) for name in dates if frame.schema[name] == pl.Date]
    return (
        frame.with_columns(days)
        .with_columns(pl.col(dates).dt.cast_time_unit("us"), pl.col(texts).cast(pl.String))
        .with_columns(pl.col("horizon").cast(pl.Int32), pl.col(list(columns)).cast(pl.Float64))
        .select(*keys, *columns)
        .sort(keys)
    )
