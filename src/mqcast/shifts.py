"""Shifts of quantiles by level, lead, size and slice, as arrays and on disk; `mqcast.calibration` fits them."""

import json
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

from mqcast.errors import ArtifactError
from mqcast.levels import are_levels

FORMAT, FORMAT_VERSION = "mqcast-calibrator", 1
SHARE_OF_LEVEL = 0.1  # spreads are no smaller than this share of the mean quantile


@dataclass(frozen=True, eq=False)
class Shifts:
    """How far each level is moved, in spreads of the forecast, by slice, group of leads and size of the forecast.

    Leads are in groups: 1, 2, 3, 4–5, 6–7, 8–11, 12–15, 16–22 … Slice 0 is that of all rows whose own slice is unknown.
    With `not_negative`, no quantile is moved below 0, and those that are 0 stay there, where demand is often 0.
    """

    levels: tuple[float, ...]
    shift: np.ndarray  # (1 + slices, levels, groups of leads, sizes)
    sizes: tuple[float, ...]  # of forecasts: where one group ends and the next begins
    by: tuple[str, ...]  # the columns whose values make the slices
    slices: tuple[tuple[str, ...], ...]  # a value of each of these columns
    not_negative: bool
    num_dates: int

    def moved(self, quantiles: np.ndarray, lead: np.ndarray, place: np.ndarray | int = 0) -> np.ndarray:
        """Rows of quantiles, a column a level, and the lead and the slice of each; sorted within the row."""
        return np.sort(self.moved_unsorted(quantiles, lead, place), axis=1)

    def moved_unsorted(self, quantiles: np.ndarray, lead: np.ndarray, place: np.ndarray | int = 0) -> np.ndarray:
        group = np.minimum(groups(lead), self.shift.shape[2] - 1)
        size = np.searchsorted(self.sizes, sizes(quantiles))
        moved = quantiles + self.shift[place, :, group, size] * spreads(quantiles)[:, None]
        if not self.not_negative:
            return moved
        return np.where(quantiles == 0, 0.0, np.maximum(moved, np.minimum(quantiles, 0.0)))

    def moved_grid(self, quantiles: np.ndarray) -> np.ndarray:
        """The same for (cutoffs, horizon, levels)."""
        num, horizon, width = quantiles.shape
        lead = np.tile(np.arange(1, horizon + 1), num)
        return self.moved(quantiles.reshape(-1, width), lead).reshape(quantiles.shape)

    def to_json(self) -> str:
        facts = {"format": FORMAT, "version": FORMAT_VERSION} | vars(self) | {"shift": self.shift.tolist()}
        return json.dumps(facts, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        try:
            facts = json.loads(text)
            if (facts["format"], facts["version"]) != (FORMAT, FORMAT_VERSION):
                raise ValueError(f"format {facts['format']} {facts['version']}")
            return cls._of_facts({name: value for name, value in facts.items() if name not in ("format", "version")})
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise ArtifactError(f"this is no calibrator ({reason}); fit it again") from None

    @classmethod
    def _of_facts(cls, facts: dict[str, Any]) -> Self:
        if unknown := sorted(facts.keys() - {field.name for field in fields(cls)}):
            raise ValueError(f"unknown {', '.join(unknown)}")
        lists = [facts[name] for name in ("levels", "sizes", "by", "slices")]
        if not all(isinstance(one, list) for one in (*lists, *facts["slices"])):
            raise ValueError("a text in place of a list")
        shift, edges, by = np.array(facts["shift"], float), facts["sizes"], facts["by"]
        slices, shape = [tuple(one) for one in facts["slices"]], (1 + len(facts["slices"]), len(facts["levels"]))
        checks = {
            "levels": are_levels(facts["levels"]),
            "sizes": np.isfinite(np.array(edges, float)).all() and (np.diff(edges) > 0).all(),
            "shift": shift.ndim == 4 and shift.shape[:2] == shape and shift.shape[2] > 0 and np.isfinite(shift).all(),
            "shift beside sizes": shift.ndim == 4 and shift.shape[3] == len(edges) + 1,
            "by": all(isinstance(name, str) for name in by) and len(set(by)) == len(by),
            "slices": all(len(one) == len(by) and all(isinstance(text, str) for text in one) for one in slices)
            and len(set(slices)) == len(slices),
            "not_negative": isinstance(facts["not_negative"], bool),
            "num_dates": type(facts["num_dates"]) is int and facts["num_dates"] > 0,
        }
        if wrong := [name for name, is_right in checks.items() if not is_right]:
            raise ValueError(f"impossible {wrong[0]}")
        flag, number = facts["not_negative"], facts["num_dates"]
        return cls(tuple(facts["levels"]), shift, tuple(edges), tuple(by), tuple(slices), flag, number)


def spreads(quantiles: np.ndarray) -> np.ndarray:
    """For each row, the distance from its lowest to its highest quantile and a share of its size."""
    return np.ptp(quantiles, axis=1) + SHARE_OF_LEVEL * sizes(quantiles)


def sizes(quantiles: np.ndarray) -> np.ndarray:
    """For each row, the mean size of its quantiles."""
    return np.abs(quantiles).mean(axis=1)


def groups(lead: np.ndarray) -> np.ndarray:
    """Half octaves, from 0; no lead is in group 1."""
    return np.floor(2 * np.log2(lead) + 1e-9).astype(int)
