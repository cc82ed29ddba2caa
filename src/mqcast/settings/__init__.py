"""Settings: frozen, validated tables, and the one place where they are merged."""

from mqcast.settings.base import Names, Settings, nearest
from mqcast.settings.family import FAMILY, Variant
from mqcast.settings.presets import PRESETS
from mqcast.settings.search import PAPER_SPACE, Range, SearchConfig
from mqcast.settings.tables import (
    LARGEST_SEED,
    MOST_MEMBERS,
    MOST_PERIODS,
    ModelConfig,
    ResearchConfig,
    RunConfig,
    ScalingConfig,
    SplitConfig,
    TrainConfig,
    WindowConfig,
    ZeroRule,
)

__all__ = [
    "FAMILY",
    "LARGEST_SEED",
    "MOST_MEMBERS",
    "MOST_PERIODS",
    "PAPER_SPACE",
    "PRESETS",
    "ModelConfig",
    "Names",
    "Range",
    "ResearchConfig",
    "RunConfig",
    "ScalingConfig",
    "SearchConfig",
    "Settings",
    "SplitConfig",
    "TrainConfig",
    "Variant",
    "WindowConfig",
    "ZeroRule",
    "nearest",
]
