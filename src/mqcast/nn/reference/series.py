"""One series: what the batch has of it, step by step, and what the decoder is given."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from mqcast.data.batch import Batch
from mqcast.data.inputs import Inputs
from mqcast.nn.attention import DecoderInputs
from mqcast.nn.encoder import Encoder
from mqcast.nn.reference.vectors import array, category_dense, join, relu
from mqcast.settings import ModelConfig


@dataclass(frozen=True)
class Series:
    """Window b of a batch, one step at a time."""

    batch: Batch
    b: int

    @property
    def num_steps(self) -> int:
        return self.batch.loc.shape[1]

    @property
    def begun(self) -> list[bool]:
        return self.batch.begun[self.b, : self.num_steps].tolist()

    def calendar(self, u: int) -> tuple[Float[np.ndarray, " number"], list[int]]:
        """Global numbers and categories at step u, which may be before the window or after its last target."""
        number, category = self.batch.global_number, self.batch.global_category
        reach = (number.shape[1] - self.batch.values.shape[1]) // 2
        assert 0 <= u + reach < number.shape[1]
        b = self.b if len(number) > 1 else 0
        return array(number[b, u + reach]), category[b, u + reach].tolist()

    def known(self, u: int) -> tuple[Float[np.ndarray, " number"], list[int]]:
        """The series' own known numbers and categories at step u of the window or of the horizon."""
        assert 0 <= u < self.batch.values.shape[1]
        return array(self.batch.known_number[self.b, u]), self.batch.known_category[self.b, u].tolist()

    def covariates(
        self, t: int, encoder: Encoder, config: ModelConfig, inputs: Inputs
    ) -> Float[np.ndarray, " covariate"]:
        """y_t and x_t: the scaled target, whether it was observed, location and scale, past numbers and categories."""
        batch, b = self.batch, self.b
        loc, scale, observed = batch.loc[b, t].item(), batch.scale[b, t].item(), batch.observed[b, t].item()
        x = [compressed((batch.values[b, t].item() - loc) / scale) if observed else 0.0, float(observed)]
        if config.research.scale_inputs:
            x += [math.asinh(loc / scale), math.log(scale)]
        x += batch.past_number[b, t].tolist()
        x += [float(is_observed) for is_observed in batch.past_observed[b, t].tolist()]
        if encoder.past is not None:
            codes = batch.past_category[b, t].tolist()
            x += relu(category_dense(encoder.past, inputs.past_categories, codes)).tolist()
        return np.array(x)


def compressed(x: float) -> float:
    """x, but logarithmic where it is more than 8 scales from the level."""
    return x if abs(x) <= 8 else math.copysign(8 + math.log1p(abs(x) - 8), x)


def precedents(series: Series, horizon: int) -> Float[np.ndarray, "time horizon precedent"]:
    """p_{t,h} = (y_{t+h−k} − level_{t−k}) / scale_t for each k; 0 where one of them is unknown."""
    batch, b = series.batch, series.b
    found = np.zeros((series.num_steps, horizon, batch.precedent.shape[-1]))
    for t, h, k in np.ndindex(found.shape):
        then = batch.precedent[b, t + h + 1, k].item() - batch.precedent_level[b, t, k].item()
        found[t, h, k] = 0.0 if math.isnan(then) else compressed(then / batch.scale[b, t].item())
    return found


@dataclass(frozen=True)
class Encoded:
    """h_t = [h¹_t; h²] and r_u of one series: what the decoder is given."""

    h1: Float[np.ndarray, "time hidden"]  # NaN before the first row
    h2: Float[np.ndarray, " static"]
    r: Float[np.ndarray, "step position"]  # steps 0 … T+H−1
    raw_r: Float[np.ndarray, "step raw_position"]  # not normalised, with the echoes
    begun: list[bool]
    horizon: int
    precedents: Float[np.ndarray, "time horizon precedent"]

    @classmethod
    def of(cls, inputs: DecoderInputs, b: int) -> "Encoded":
        """Series b of a batch."""
        span = inputs.num_steps + inputs.horizon

        def series(part: Tensor) -> np.ndarray:
            return array(part[b if len(part) > 1 else 0])

        return cls(
            h1=series(inputs.hidden[0]),
            h2=series(inputs.hidden[1])[0] if len(inputs.hidden) > 1 else np.zeros(0),
            r=join(np.zeros((span, 0)), *map(series, inputs.position)),
            raw_r=join(np.zeros((span, 0)), *map(series, inputs.raw_position)),
            begun=inputs.begun[b].tolist(),
            horizon=inputs.horizon,
            precedents=(
                np.zeros((inputs.num_steps, inputs.horizon, 0))
                if inputs.precedents is None
                else series(inputs.precedents)
            ),
        )

    @property
    def num_steps(self) -> int:
        return len(self.h1)

    @property
    def h(self) -> Float[np.ndarray, "time hidden_and_static"]:
        return join(self.h1, np.broadcast_to(self.h2, (self.num_steps, len(self.h2))))

    @property
    def now(self) -> Float[np.ndarray, "time now"]:
        """[h_t; r_t]"""
        return join(self.h, self.r[: self.num_steps])

    def future(self, t: int) -> Float[np.ndarray, " future"]:
        """[r_{t+1}; …; r_{t+H}]"""
        return self.r[t + 1 : t + 1 + self.horizon].flatten()
