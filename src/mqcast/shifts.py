"""Shifts of quantiles by level and lead, as arrays and on disk; `mqcast.calibration` fits them."""

import json
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from mqcast.errors import ArtifactError

FORMAT, FORMAT_VERSION = "mqcast-calibrator", 1
SHARE_OF_LEVEL = 0.1  # spreads are no smaller than this share of the mean quantile


@dataclass(frozen=True, eq=False)
class Shifts:
    """How far each level is moved, in spreads of the forecast, by group of leads: 1, 2–3, 4–7, 8–15 …

    With `not_negative`, no quantile is moved below 0, and those that are 0 stay there, where demand is often 0.
    """

    levels: tuple[float, ...]
    shift: np.ndarray  # (levels, groups of leads)
    not_negative: bool
    num_dates: int

    def moved(self, quantiles: np.ndarray, lead: np.ndarray) -> np.ndarray:
        """Rows of quantiles, with as many columns as there are levels, and the lead of each; sorted in each row."""
        group = np.minimum(groups(lead), self.shift.shape[1] - 1)
        moved = self.within_bounds(quantiles, quantiles + self.shift.T[group] * spreads(quantiles)[:, None])
        return np.sort(moved, axis=1)

    def moved_grid(self, quantiles: np.ndarray) -> np.ndarray:
        """The same for (cutoffs, horizon, levels)."""
        num, horizon, width = quantiles.shape
        lead = np.tile(np.arange(1, horizon + 1), num)
        return self.moved(quantiles.reshape(-1, width), lead).reshape(quantiles.shape)

    def within_bounds(self, before: np.ndarray, moved: np.ndarray) -> np.ndarray:
        """Moved quantiles on the side of 0 that they came from, if demand is not negative."""
        if not self.not_negative:
            return moved
        return np.where(before == 0, 0.0, np.maximum(moved, np.minimum(before, 0.0)))

    def to_json(self) -> str:
        facts = {"format": FORMAT, "version": FORMAT_VERSION} | vars(self) | {"shift": self.shift.tolist()}
        return json.dumps(facts, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        try:
            facts: dict[str, Any] = json.loads(text)
            if (facts["format"], facts["version"]) != (FORMAT, FORMAT_VERSION):
                raise ValueError(f"format {facts['format']} {facts['version']}")
            shift = np.array(facts["shift"], float)
            calibrator = cls(tuple(facts["levels"]), shift, facts["not_negative"], facts["num_dates"])
            if shift.ndim != 2 or len(shift) != len(calibrator.levels) or not np.isfinite(shift).all():
                raise ValueError("its shifts do not fit its levels")
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactError(f"this is no calibrator ({error}); fit it again") from None
        return calibrator


def spreads(quantiles: np.ndarray) -> np.ndarray:
    """For each row, the distance from its lowest to its highest quantile and a share of its size."""
    return np.ptp(quantiles, axis=1) + SHARE_OF_LEVEL * np.abs(quantiles).mean(axis=1)


def groups(lead: np.ndarray) -> np.ndarray:
    return np.log2(lead).astype(int)
