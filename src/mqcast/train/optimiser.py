"""The optimiser, its learning rate and its precision."""

import math
import sys

import torch

from mqcast import process
from mqcast.nn.members import AnyNetwork
from mqcast.settings import TrainConfig

FREE_TIME = 0.1  # the share of max_minutes before the clock can lower the learning rate


def new_optimiser(network: AnyNetwork, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW; the queries and keys of attention have a lower learning rate than the other parameters."""
    _import_compiler()
    slow = {id(parameter) for parameter in network.alignment()}
    others = [parameter for parameter in network.parameters() if id(parameter) not in slow]
    return torch.optim.AdamW(
        [{"params": others, "share": 1.0}, {"params": network.alignment(), "share": config.alignment_rate}],
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        fused=True,
    )


def _import_compiler() -> None:
    """Import torch's compiler, which the first optimiser would import, without side effects on the host process."""
    if "torch._dynamo" in sys.modules:
        return
    with process.importing():
        import torch._dynamo  # noqa: F401


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate * group["share"]


def learning_rate(config: TrainConfig, step: int, total_steps: int, seconds: float = 0.0) -> float:
    """The learning rate of a step, after some seconds of training; steps count from 0."""
    rising = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    done = min(max(step / total_steps, _time_used(config, seconds)), 1.0)
    falling = 0.5 + 0.5 * math.cos(math.pi * done) if config.schedule == "cosine" else 1.0
    return config.learning_rate * rising * falling


def _time_used(config: TrainConfig, seconds: float) -> float:
    """How much of the allowed time has passed, from 0 after its first tenth to 1 at its end.

    A run with enough time for its steps is ahead of the clock, so its learning rates depend on the steps alone.
    """
    passed = 0.0 if config.max_minutes is None else seconds / (60 * config.max_minutes)
    return (passed - FREE_TIME) / (1 - FREE_TIME)


def autocast(config: TrainConfig, device: torch.device) -> torch.autocast:
    wanted = config.precision == "bfloat16" or (
        config.precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported()
    )
    return torch.autocast(device.type, torch.bfloat16, enabled=wanted)
