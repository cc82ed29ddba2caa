"""The mean of several networks of one kind. Each has its own initial weights and its own dropout."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from mqcast.data.batch import Batch
from mqcast.data.inputs import Inputs
from mqcast.nn.explanation import Explanation
from mqcast.nn.networks import Network, Quantiles
from mqcast.settings import ModelConfig


class Members(nn.Module):
    """Networks that forecast together, with the interface of one: its quantiles are the means of theirs."""

    def __init__(self, networks: Sequence[Network]):
        super().__init__()
        self.member = nn.ModuleList(networks)
        self.config, self.horizon = networks[0].config, networks[0].horizon

    @property
    def members(self) -> tuple[Network, ...]:
        return tuple(self.member)  # type: ignore[arg-type]

    @property
    def levels(self) -> Tensor:
        return self.members[0].levels

    def alignment(self) -> list[nn.Parameter]:
        """Queries and keys of the decoders' attention."""
        return [parameter for network in self.members for parameter in network.alignment()]

    def why_not_compiled(self) -> str | None:
        """Why these networks are decoded by PyTorch although they have a compiled form; None otherwise."""
        return self.members[0].why_not_compiled()

    def forward(
        self, batch: Batch, num_fcts: int | None = None, *, spans: bool = False
    ) -> Float[Tensor, "batch row fct quantile"]:
        """The means of the members' scaled quantiles, each member's sorted before."""
        return _mean([network(batch, num_fcts, spans=spans).sort(dim=-1).values for network in self.members])

    @torch.no_grad()
    def quantiles(self, batch: Batch, num_fcts: int | None = None, spans: bool = False) -> Quantiles:
        """Quantiles as they are published, and where those of any member crossed."""
        each = [network.quantiles(batch, num_fcts, spans) for network in self.members]
        crossed = torch.stack([one.crossed for one in each]).any(dim=0)
        return Quantiles(_mean([one.values for one in each]), crossed)

    @torch.no_grad()
    def explain(self, batch: Batch, num_fcts: int | None = None) -> Explanation:
        """The means of the members' attention weights."""
        each = [network.explain(batch, num_fcts) for network in self.members]
        feedback = [one.feedback for one in each if one.feedback is not None]
        history = _mean([one.history for one in each])
        return Explanation(history, _mean(feedback) if feedback else None, each[0].series, each[0].start)


AnyNetwork = Network | Members


def seeded_network(config: ModelConfig, inputs: Inputs, horizon: int, seed: int) -> AnyNetwork:
    """The network of the settings, or its `config.members` members; the same weights for the same seed."""
    networks = [Network.seeded(config, inputs, horizon, own) for own in member_seeds(seed, config.members)]
    return networks[0] if len(networks) == 1 else Members(networks)


def member_seeds(seed: int, num_members: int) -> list[int]:
    """A seed for each member; the first one has the run's."""
    others = (np.random.SeedSequence([seed, number]) for number in range(1, num_members))
    return [seed, *(int(own.generate_state(1, np.uint64)[0] >> 1) for own in others)]


def _mean(parts: list[Tensor]) -> Tensor:
    """Added one by one, so that means of rising values rise."""
    return sum(parts[1:], start=parts[0]) / len(parts)
