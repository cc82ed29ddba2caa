"""How far the steps ahead of one series go together: a Gaussian copula, and draws from it.

A draw is stratified: among the paths of a series, each step has every rank once. Whatever the dependence, the marginals
of the paths are therefore those of the forecast, at as many levels as there are paths.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from mqcast.errors import ArtifactError, ConfigError
from mqcast.settings import nearest

FORMAT, FORMAT_VERSION = "mqcast-dependence", 1
FILE = "dependence.json"
DECIMALS = 6
LEAST_EIGENVALUE = 1e-6
LEAST_POWER, MOST_EVEN = 11, 32  # 2048 draws at least; components with evenly spread ones


@dataclass(frozen=True, eq=False)
class Dependence:
    """The correlation of the normal scores of any two steps ahead, and of the same step of two series of a group.

    groups  by static column: the correlation between series that share its value

    >>> from mqcast.joint import Dependence
    >>> Dependence.constant(horizon=2, correlation=0.5).correlation.tolist()
    [[1.0, 0.5], [0.5, 1.0]]
    """

    correlation: np.ndarray  # (horizon, horizon)
    not_negative: bool
    num_forecasts: int  # what it was learnt from
    num_cutoffs: int
    groups: Mapping[str, float] = field(default_factory=dict[str, float])

    @classmethod
    def constant(cls, horizon: int, correlation: float, not_negative: bool = True) -> "Dependence":
        """The same between any two steps, learnt from nothing: 0 is independence, 1 adds up quantiles."""
        matrix = np.full((horizon, horizon), float(correlation))
        np.fill_diagonal(matrix, 1.0)
        return cls(matrix, not_negative, 0, 0)

    def __repr__(self) -> str:
        learnt = f"{self.num_forecasts} forecasts of {self.num_cutoffs} cutoffs"
        return f"Dependence({self.horizon} steps, learnt from {learnt})"

    @property
    def horizon(self) -> int:
        return len(self.correlation)

    @cached_property
    def root(self) -> np.ndarray:
        """A triangular root of the correlation: earlier steps do not depend on how many there are."""
        return np.linalg.cholesky(self.correlation + LEAST_EIGENVALUE * np.eye(self.horizon))

    def ranks(
        self,
        keys: Sequence[str],
        horizon: int,
        num_paths: int,
        seed: int,
        groups: Sequence[str] = (),
        share: float = 0.0,
    ) -> np.ndarray:
        """(series, horizon, paths): at each step, the places of the paths among each other, from 0.

        They depend on the key of a series, and on its group if `share` is above 0, but on no other series.
        """
        root = self.root[:horizon, :horizon].T
        found = np.empty((len(keys), horizon, num_paths), np.int32)
        shared = {name: _normals(f"group {name}", horizon, num_paths, seed) for name in set(groups)}
        for i, key in enumerate(keys):
            normals = _normals(f"series {key}", horizon, num_paths, seed)
            if share > 0:
                normals = np.sqrt(1 - share) * normals + np.sqrt(share) * shared[groups[i]]
            found[i] = _ranks((normals @ root).T)
        return found

    def template(self, seed: int) -> np.ndarray:
        """(horizon, draws): ranks for any series by itself, evenly spread, from scores with exactly the correlation.

        The largest components take Sobol points, the others random ones.
        """
        from scipy.special import ndtri  # slow to import
        from scipy.stats import qmc

        power = max(LEAST_POWER, (4 * self.horizon - 1).bit_length())
        stream, even = _stream("every series", seed), min(self.horizon, MOST_EVEN)
        points = (qmc.Sobol(even, scramble=False).random_base2(power) + stream.random(even)) % 1
        normals = stream.standard_normal((len(points), self.horizon))
        normals[:, :even] = ndtri(np.clip(points, 1e-9, 1 - 1e-9))
        normals -= normals.mean(axis=0)
        upper = np.linalg.cholesky(normals.T @ normals / len(normals))
        sizes, components = np.linalg.eigh(self.correlation)
        root = (components * np.sqrt(np.maximum(sizes, 0)))[:, ::-1]
        return _ranks(root @ np.linalg.solve(upper, normals.T))

    def share_of(self, column: str) -> float:
        if column not in self.groups:
            near, listed = nearest(column, list(self.groups)), ", ".join(self.groups) or "none"
            raise ConfigError(f"no dependence was learnt between series of one {column!r}{near}; of others: {listed}")
        return self.groups[column]

    def to_json(self) -> str:
        facts = {"format": FORMAT, "version": FORMAT_VERSION} | {
            "correlation": self.correlation.tolist(),
            "not_negative": self.not_negative,
            "num_forecasts": self.num_forecasts,
            "num_cutoffs": self.num_cutoffs,
            "groups": dict(self.groups),
        }
        return json.dumps(facts)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Dependence":
        try:
            facts: dict[str, Any] = json.loads(text)
            if (facts["format"], facts["version"]) != (FORMAT, FORMAT_VERSION):
                raise ValueError(f"format {facts['format']} {facts['version']}")
            matrix = np.array(facts["correlation"], float)
            groups = {str(name): float(share) for name, share in facts["groups"].items()}
            counts = int(facts["num_forecasts"]), int(facts["num_cutoffs"])
            found = cls(matrix, bool(facts["not_negative"]), *counts, groups)
            if matrix.ndim != 2 or not len(matrix) or not np.array_equal(matrix, matrix.T):
                raise ValueError("its correlation is no symmetric matrix")
            if not (np.abs(matrix) <= 1).all() or not all(0 <= share < 1 for share in groups.values()):
                raise ValueError("a correlation is beyond 1")
            _ = found.root
        except (ValueError, KeyError, TypeError, AttributeError, np.linalg.LinAlgError) as error:
            raise ArtifactError(f"this is no dependence ({error}); learn it again") from None
        return found


def as_correlation(matrix: np.ndarray) -> np.ndarray:
    """The matrix without negative eigenvalues, with a diagonal of 1, rounded as it is saved."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    positive = (vectors * np.maximum(values, LEAST_EIGENVALUE)) @ vectors.T
    size = np.sqrt(np.diag(positive))
    rounded = np.round(positive / size / size[:, None], DECIMALS)
    rounded = np.clip((rounded + rounded.T) / 2, -1, 1)
    np.fill_diagonal(rounded, 1.0)
    return rounded


def _normals(key: str, horizon: int, num: int, seed: int) -> np.ndarray:
    """(num, horizon) normal draws of this key. Those of the first steps do not depend on the horizon."""
    return _stream(key, seed).standard_normal((horizon, num)).T


def _stream(key: str, seed: int) -> np.random.Generator:
    digest = hashlib.blake2b(f"{seed} {key}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest, "<u8")))


def _ranks(values: np.ndarray) -> np.ndarray:
    order = np.argsort(values, axis=-1)
    ranks = np.empty(values.shape, np.int32)
    np.put_along_axis(ranks, order, np.broadcast_to(np.arange(values.shape[-1], dtype=np.int32), values.shape), axis=-1)
    return ranks
