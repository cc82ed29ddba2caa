"""The family of networks, one line each. A new one needs a line here and, if it has a new part, a file in `mqcast.nn`.

A part is named by module and class and is imported when a network is built, so that this module needs no torch.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal


@dataclass(frozen=True)
class Variant:
    """The parts of a network; the defaults are those of a network with attention over the past."""

    position: str = "mqcast.nn.position:LearnedPosition"
    encoder: str = "mqcast.nn.encoder:TemporalConvolutions"
    contexts: str = "mqcast.nn.decoder:AttentionContexts"
    feedback: str | None = None  # attention over earlier forecasts
    feedback_reach: Literal["horizon", "lookback"] = "horizon"  # how far back the earlier forecasts go
    has_attention: bool = True  # learned positions, horizon-specific attention over the past
    is_recurrent: bool = False  # the memory of the encoder has no end

    def part(self, name: str) -> Any:
        """The class of a part; None if the network does not have it."""
        if (path := getattr(self, name)) is None:
            return None
        module, _, kind = path.partition(":")
        return getattr(import_module(module), kind)


_RAW = {
    "position": "mqcast.nn.position:RawPosition",
    "contexts": "mqcast.nn.decoder:DenseContexts",
    "has_attention": False,
}
FAMILY = {
    "mqt": Variant(feedback="mqcast.nn.attention:FeedbackAttention"),
    "mqt-nods": Variant(),
    "mqt-all": Variant(feedback="mqcast.nn.attention:AllContextsAttention", feedback_reach="lookback"),
    "mqcnn": Variant(**_RAW),
    "mqrnn": Variant(**_RAW, encoder="mqcast.nn.encoder:Recurrence", is_recurrent=True),
}
