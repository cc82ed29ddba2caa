"""What the networks can learn: a tiny panel by heart, and a lift whose only evidence lies far back."""

import datetime as dt

import numpy as np
import polars as pl
import pytest
import torch
from model_samples import MODELS, SMALL, sample_batch, sample_panel

from mqcast import Panel, Schema
from mqcast.data.batch import Assembler, Batch
from mqcast.data.inputs import Inputs
from mqcast.data.windows import WindowPlan
from mqcast.nn.loss import quantile_loss
from mqcast.nn.networks import Network
from mqcast.settings import ModelConfig, ScalingConfig, WindowConfig


def loss_of(network: Network, batch: Batch) -> torch.Tensor:
    total, count = quantile_loss(network(batch), batch.targets(), batch.is_scored(), network.levels)
    return total / count


def train(network: Network, batch: Batch, num_steps: int, rate: float) -> None:
    optimiser = torch.optim.Adam(network.train().parameters(), lr=rate)
    for step in range(num_steps):
        if step == num_steps * 3 // 4:
            optimiser.param_groups[0]["lr"] = rate / 10
        optimiser.zero_grad()
        loss_of(network, batch).backward()
        optimiser.step()
    network.eval()


LONG = {"mqt-nods", "mqt-all", "mqrnn"}


@pytest.mark.parametrize(
    "model", [pytest.param(model, marks=pytest.mark.slow) if model in LONG else model for model in MODELS]
)
def test_each_network_learns_a_tiny_panel_by_heart(model):
    torch.manual_seed(1)
    batch = sample_batch(2)
    network = Network(SMALL.replace(model=model, hidden_dim=32, dropout=0.0), Inputs.of(sample_panel()), batch.horizon)
    before = loss_of(network, batch).item()
    train(network, batch, num_steps=300, rate=3e-3)
    assert loss_of(network, batch).item() < 0.15 * before


NUM_ITEMS, NUM_WEEKS, CYCLE, LIFT, SIGMA = 64, 56, 16, 2.0, 0.1
FIELD = ModelConfig(
    hidden_dim=16, encoder_dilations=(1, 2), lookback=32, dropout=0.0, scale_inputs=False, horizon_code=False
)
# One window holds all of an item's weeks; creation times have seen a promotion.
WINDOW = WindowConfig(
    horizon=4, history=CYCLE - 1, num_fcts=NUM_WEEKS - CYCLE - 3, batch_size=NUM_ITEMS, min_history=CYCLE
)


def promoted_items(seed: int, own_lifts: bool = True) -> tuple[Panel, np.ndarray]:
    """Items on promotion every 16th week; half of them sell 2 more then, and nothing but past promotions tells which.

    With a horizon of 4 weeks, the last promotion before a promoted target is at least 12 weeks before the creation
    time: out of sight of convolutions that see 4 weeks. Without `own_lifts` each promotion draws its lift anew.
    """
    rng = np.random.default_rng(seed)
    weeks = np.arange(NUM_WEEKS)
    promo = (weeks + rng.integers(CYCLE, size=(NUM_ITEMS, 1))) % CYCLE == 0
    lift = LIFT * (rng.random((NUM_ITEMS, 1 if own_lifts else NUM_WEEKS)) < 0.5)
    expected = 3 + lift * promo
    first = dt.datetime(2020, 1, 5)
    frame = pl.DataFrame(
        {
            "unique_id": np.repeat([f"i{i:03}" for i in range(NUM_ITEMS)], NUM_WEEKS),
            "ds": [first + dt.timedelta(weeks=int(week)) for week in weeks] * NUM_ITEMS,
            "y": (expected + SIGMA * rng.normal(size=expected.shape)).ravel(),
            "promo": promo.ravel(),
        }
    )
    return Panel.from_frame(frame, Schema(freq="W", known="promo", calendar=())), expected


def whole_batch(panel: Panel) -> Batch:
    return Assembler.fit(panel, WINDOW, ScalingConfig(by="global"))(
        WindowPlan(panel, WINDOW, shuffle=False).batch(0, 0)
    )


def regret_in_promotions(network: Network, batch: Batch, expected: np.ndarray) -> float:
    """P50 loss in promoted weeks over that of a forecaster who knows every lift, less one."""
    scale, loc, num_steps = batch.scale[:, None], batch.loc[:, None], batch.loc.shape[1]
    forecast, actual = network.quantiles(batch).values[..., 0] * scale + loc, batch.targets() * scale + loc
    best = torch.from_numpy(expected)[:, 1:].unfold(1, num_steps, 1)
    promoted = batch.is_scored() & (batch.known_number[:, 1:, 0].unfold(1, num_steps, 1) > 0)
    losses = [(actual - guess).abs()[promoted].mean().item() for guess in (forecast, best)]
    return losses[0] / losses[1] - 1


def trained_regret(model: str, own_lifts: bool = True) -> float:
    """Trained on some items, judged on others."""
    torch.manual_seed(1)
    panel, _ = promoted_items(seed=0, own_lifts=own_lifts)
    batch = whole_batch(panel)
    network = Network(FIELD.replace(model=model), Inputs.of(panel), WINDOW.horizon)
    train(network, batch, num_steps=240, rate=3e-3)
    panel, truth = promoted_items(seed=1, own_lifts=own_lifts)
    return regret_in_promotions(network, whole_batch(panel), truth)


@pytest.mark.slow
def test_a_lift_seen_only_beyond_the_receptive_field_is_found_by_attention_alone():
    regrets = {model: trained_regret(model) for model in ("mqt", "mqt-nods", "mqcnn")}
    assert regrets["mqt"] < 1.0, regrets
    assert regrets["mqt-nods"] < 1.0, regrets
    assert regrets["mqcnn"] > 5.0, regrets


@pytest.mark.slow
def test_where_lifts_are_drawn_anew_attention_finds_nothing():
    assert trained_regret("mqt-nods", own_lifts=False) > 5.0
