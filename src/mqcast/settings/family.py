"""The family of networks: one line each. A new one is a line here and, if its parts are new, a file in `mqcast.nn`.

A part is named by module and class and loaded when a network is built, so that naming networks needs no torch.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal


@dataclass(frozen=True)
class Variant:
    """The parts of a network; the defaults are those that attend to the past."""

    position: str = "mqcast.nn.position:LearnedPosition"
    encoder: str = "mqcast.nn.encoder:TemporalConvolutions"
    contexts: str = "mqcast.nn.decoder:AttentionContexts"
    feedback: str | None = None  # attention over earlier forecasts
    feedback_reach: Literal["horizon", "lookback"] = "horizon"  # how far back those were made
    has_attention: bool = True  # learned positions, horizon-specific attention over the past
    is_recurrent: bool = False  # the encoder remembers without end

    def part(self, name: str) -> Any:
        """The class of a part; None if the network has no such part."""
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
