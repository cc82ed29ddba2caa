"""Paths for tests: draws with ids, cutoffs and dates."""

from dataclasses import dataclass

import numpy as np

WEEK = np.timedelta64(7, "D")


@dataclass(frozen=True, eq=False)
class Drawn:
    ids: list[str]
    cutoffs: np.ndarray
    dates: np.ndarray
    values: np.ndarray


def drawn(values: np.ndarray, ids: list[str] | None = None, cutoff: str = "2024-01-07") -> Drawn:
    """Paths (series, horizon, path) from one cutoff."""
    names = [f"item_{i:06d}" for i in range(len(values))] if ids is None else ids
    cutoffs = np.full(len(values), np.datetime64(cutoff, "us"))
    return Drawn(names, cutoffs, cutoffs[:, None] + WEEK * np.arange(1, values.shape[1] + 1), values)
