"""Random settings: sizes are drawn, and the extreme ones always tried; values follow from a seed."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import Tensor

from mqcast.data.batch import Batch
from mqcast.data.inputs import Inputs
from mqcast.nn.attention import DecoderInputs
from mqcast.nn.networks import Network
from mqcast.settings import ModelConfig

TOLERANCE = 1e-9
CONFIG = ModelConfig(
    hidden_dim=4, static_dim=3, head_dim=2, encoder_dilations=(1, 2), position_dilations=(1, 2), lookback=3
)
INPUTS = Inputs(
    past_numbers=1,
    past_categories=(3,),
    known_numbers=2,
    known_flags=(1,),
    precedents=2,
    known_categories=(2, 3),
    global_numbers=2,
    global_flags=(0,),
    calendar=(4,),
    event_categories=(3,),
    static_numbers=1,
    static_categories=(2, 3),
)
NO_EVENTS = {"global_numbers": 0, "global_flags": (), "calendar": (), "event_categories": ()}
NO_KNOWN = {"known_numbers": 0, "known_flags": (), "known_categories": ()}


@dataclass(frozen=True)
class Setting:
    """A network with random parameters and a batch of random values, told by their sizes."""

    num_steps: int = 6
    horizon: int = 3
    starts: tuple[int, ...] = (0, 2)  # steps of each window before its series' first row
    missing: tuple[int, ...] = ()  # steps at which no series was observed, besides random ones
    shared_calendar: bool = True
    surplus: int = 0  # steps of calendar beyond those that the network reads
    num_fcts: int = 7  # the last creation times are asked for, this many if there are
    config: ModelConfig = CONFIG
    inputs: Inputs = INPUTS
    seed: int = 0

    def but(self, **changes: Any) -> "Setting":
        """The same with another model configuration."""
        return replace(self, config=self.config.replace(**changes))

    def given(self, **changes: Any) -> "Setting":
        """The same with other inputs."""
        return replace(self, inputs=self.inputs.replace(**changes))

    @property
    def fcts(self) -> list[int]:
        """The creation times asked for."""
        return list(range(max(0, self.num_steps - self.num_fcts), self.num_steps))

    @property
    def begun(self) -> np.ndarray:
        """(B, T+H)"""
        return np.arange(self.num_steps + self.horizon) >= np.array(self.starts)[:, None]

    def network(self) -> Network:
        network = Network(self.config, self.inputs, self.horizon).eval()
        randomise(network, self.seed)
        return network

    def batch(self, reach: int) -> Batch:
        """With calendars `reach` steps, and the surplus, beyond both ends of the windows."""
        rng, inputs = np.random.default_rng(self.seed), self.inputs
        size, time, span = len(self.starts), self.num_steps, self.num_steps + self.horizon
        calendars = (1 if self.shared_calendar else size, span + 2 * (reach + self.surplus))
        global_sizes = inputs.calendar + inputs.event_categories
        observed = self.begun & (rng.random((size, span)) < 0.8) & ~np.isin(np.arange(span), self.missing)

        def numbers(*shape: int, flags: tuple[int, ...] = ()) -> Tensor:
            values = rng.normal(size=shape)
            for column in flags:
                values[..., column] = rng.random(shape[:-1]) < 0.25
            return torch.from_numpy(values)

        def codes(*axes: int, sizes: tuple[int, ...]) -> Tensor:
            columns = [np.where(rng.random(axes) < 0.4, 0, rng.integers(0, n, axes)) for n in sizes]
            return torch.from_numpy(np.stack(columns, axis=-1) if sizes else np.zeros((*axes, 0), dtype=np.int64))

        return Batch(
            values=torch.from_numpy(np.where(observed, rng.normal(2, 3, (size, span)), 0.0)),
            observed=torch.from_numpy(observed),
            begun=torch.from_numpy(self.begun),
            loc=numbers(size, time),
            scale=numbers(size, time).exp(),
            unit=numbers(size, time).exp(),
            knee=numbers(size, time).exp(),
            is_fct=torch.from_numpy(self.begun[:, :time]),
            past_number=numbers(size, time, inputs.past_numbers),
            past_observed=torch.from_numpy(rng.random((size, time, inputs.past_numbers)) < 0.7),
            past_category=codes(size, time, sizes=inputs.past_categories),
            known_number=numbers(size, span, inputs.known_numbers, flags=inputs.known_flags),
            known_category=codes(size, span, sizes=inputs.known_categories),
            precedent=numbers(size, span, inputs.precedents),
            precedent_level=numbers(size, time, inputs.precedents),
            global_number=numbers(*calendars, inputs.global_numbers, flags=inputs.global_flags),
            global_category=codes(*calendars, sizes=global_sizes),
            static_number=numbers(size, inputs.static_numbers),
            static_category=codes(size, sizes=inputs.static_categories),
            series=torch.arange(size),
            start=torch.zeros(size, dtype=torch.int64),
            num_fcts=time,
        )

    def decoder_inputs(self, network: Network) -> DecoderInputs:
        """Random h_t and r_u, of the network's widths."""
        size, time, span = len(self.starts), self.num_steps, self.num_steps + self.horizon
        hidden, *static = network.encoder.dims

        def positions(seed: int) -> tuple[Tensor, ...]:
            return tuple(
                self.normal(seed + i, 1 if self.shared_calendar and i == 0 else size, span, dim)
                for i, dim in enumerate(network.position.dims)
            )

        return DecoderInputs(
            hidden=(self.normal(1, size, time, hidden), *(self.normal(2, size, 1, dim) for dim in static)),
            position=positions(3),
            raw_position=positions(5),
            begun=torch.from_numpy(self.begun[:, :time]),
            horizon=self.horizon,
            precedents=self.normal(7, size, time, self.horizon, num) if (num := network.inputs.precedents) else None,
        )

    def at_fcts(self, each: list[tuple[np.ndarray, ...]]) -> list[np.ndarray]:
        """Arrays (H, T, ·) of each series, as arrays (B, H, T, ·) at the creation times asked for."""
        return [np.stack(arrays)[:, :, self.fcts] for arrays in zip(*each, strict=True)]

    def normal(self, which: int, *shape: int) -> Tensor:
        """Random numbers, others for each `which`."""
        return torch.from_numpy(np.random.default_rng((self.seed, which)).normal(size=shape))

    def random(self) -> np.random.Generator:
        """Of weights that the network does not have."""
        return np.random.default_rng((self.seed, 99))


def randomise(module: torch.nn.Module, seed: int) -> None:
    """All parameters, also those that start at zero or one; biases rather positive, so that few units stay off."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.normal_(0.2, 0.5, generator=generator)
            else:
                parameter.normal_(0.0, 1.2 * parameter[0].numel() ** -0.5, generator=generator)


EDGES = {
    "fewer steps than horizons": Setting(num_steps=2, horizon=5, starts=(0, 1)),
    "one horizon": Setting(horizon=1),
    "one step": Setting(num_steps=1, starts=(0,)),
    "one horizon, doubling dilations": Setting(horizon=1).but(position_dilations=None),
    "doubling dilations": Setting(horizon=5).but(position_dilations=None),
    "a long window, a short look-back": Setting(num_steps=7, horizon=2).but(lookback=2),
    "no look-back": Setting().but(lookback=0),
    "a look-back beyond the window": Setting().but(lookback=8),
    "no events": Setting().given(**NO_EVENTS),
    "no known": Setting().given(**NO_KNOWN),
    "no static": Setting().given(static_numbers=0, static_categories=()),
    "static numbers only": Setting().given(static_categories=()),
    "nothing but y": Setting(inputs=Inputs()),
    "missing steps": Setting(starts=(0, 1), missing=(2, 3, 4)),
    "ragged starts": Setting(num_steps=7, starts=(0, 3, 6)).but(lookback=8),
    "a series that has not begun": Setting(starts=(0, 8)),
    "shared calendar": Setting(starts=(0, 0, 0), shared_calendar=True),
    "calendar of each series": Setting(starts=(0, 0, 0), shared_calendar=False),
    "more calendar than read": Setting(surplus=2),
    "last creation time": Setting(num_steps=7, num_fcts=1),
    "last creation times": Setting(num_steps=7, horizon=2, starts=(0, 3), num_fcts=3).but(lookback=2),
}

category_sizes = st.sampled_from([(), (), (3,), (2, 4)])


@st.composite
def all_inputs(draw) -> Inputs:
    def flags(numbers: int) -> tuple[int, ...]:
        return tuple(i for i in range(numbers) if draw(st.booleans()))

    known, calendar = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    return Inputs(
        past_numbers=draw(st.integers(0, 2)),
        past_categories=draw(category_sizes),
        known_numbers=known,
        known_flags=flags(known),
        precedents=draw(st.integers(0, 2)),
        known_categories=draw(category_sizes),
        global_numbers=calendar,
        global_flags=flags(calendar),
        calendar=draw(category_sizes),
        event_categories=draw(category_sizes),
        static_numbers=draw(st.integers(0, 2)),
        static_categories=draw(category_sizes),
    )


all_configs = st.builds(
    ModelConfig,
    quantiles=st.sampled_from([(0.5,), (0.5, 0.9), (0.1, 0.5, 0.9)]),
    hidden_dim=st.integers(4, 6),
    static_dim=st.integers(1, 4),
    head_dim=st.integers(1, 3),
    encoder_dilations=st.sampled_from([(1,), (1, 2), (2, 1), (1, 3, 2)]),
    position_dilations=st.sampled_from([None, (), (1,), (1, 2), (2, 1)]),
    lookback=st.integers(0, 8),
    static_encoding=st.sampled_from(["embedding", "one_hot"]),
    block=st.sampled_from(["residual", "bare"]),
    feedback_heads=st.sampled_from(["shared", "per_horizon"]),
    agnostic_context=st.sampled_from(["future", "current"]),
    encoder_attention=st.booleans(),
    position_norm=st.booleans(),
    horizon_code=st.booleans(),
    scale_inputs=st.booleans(),
    plain_start=st.booleans(),
    head=st.sampled_from(["free", "monotone"]),
)


@st.composite
def all_settings(draw) -> Setting:
    num_steps, horizon = draw(st.integers(1, 7)), draw(st.integers(1, 5))
    return Setting(
        num_steps=num_steps,
        horizon=horizon,
        starts=tuple(draw(st.lists(st.integers(0, num_steps), min_size=1, max_size=3))),
        missing=tuple(sorted(draw(st.sets(st.integers(0, num_steps - 1), max_size=3)))),
        shared_calendar=draw(st.booleans()),
        surplus=draw(st.integers(0, 2)),
        num_fcts=draw(st.integers(1, 7)),
        config=draw(all_configs),
        inputs=draw(all_inputs()),
        seed=draw(st.integers(0, 2**16)),
    )


def for_all_settings(max_examples: int) -> Callable:
    """A test of `setting` at all edges and at random; `make slow` tries all examples, `make test` a share of them."""
    max_examples = max_examples if os.environ.get("MQCAST_TESTS") == "thorough" else -(-max_examples // 4)

    def decorate(test: Callable) -> Callable:
        for edge in EDGES.values():
            test = example(setting=edge)(test)
        return examples(max_examples=max_examples)(given(setting=all_settings())(test))

    return decorate


def assert_same(fast: Tensor, plain: np.ndarray, where: np.ndarray | None = None) -> None:
    """Equal where asked for (left out: everywhere), and finite everywhere."""
    assert fast.dtype == torch.float64
    assert fast.shape == plain.shape
    assert fast.isfinite().all()
    computed = fast.detach().numpy() if where is None else fast.detach().numpy()[where]
    truth = plain if where is None else plain[where]
    assert not np.isnan(truth).any()
    assert np.abs(computed - truth).max(initial=0.0) <= TOLERANCE
