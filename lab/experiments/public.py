"""The paper's four public tasks: the protocol of TFT's published code, the paper's settings, and published numbers.

Each task has parts, spans of dates that are frames of their own: a forecast of one part sees no row of another, and
every block of `encoder_steps` + `horizon` consecutive rows inside a part is a forecast. Where a part begins with rows
of the one before, they are context for its first forecast. Where paper and code differ, the code counts; see
docs/reproduce_public.md.
"""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from mqcast.settings import (
    ModelConfig,
    ResearchConfig,
    RunConfig,
    ScalingConfig,
    SplitConfig,
    TrainConfig,
    WindowConfig,
)

NUM_SAMPLES = 450_000  # blocks that TFT's code draws for training; the paper's run without forking
LEVELS = (0.5, 0.9)
AGGREGATIONS = ("tft_code", "pooled")
BATCH_SIZE = 256
Dates = tuple[dt.datetime, dt.datetime]  # the first and the last row of a part


@dataclass(frozen=True, eq=False)
class PublicTask:
    """What is the same for every model of a task; P50 and P90 of `published` are by the model's name."""

    name: str
    dataset: str
    encoder_steps: int
    horizon: int
    num_fcts: int  # creation times in a training window, forked
    parts: Mapping[str, Dates]
    scaled_by: Literal["entity", "global"]
    hidden_dim: int
    learning_rate: float
    encoder_dilations: tuple[int, ...]
    position_dilations: tuple[int, ...]
    published: Mapping[str, tuple[float, float]]
    num_blocks: int | None = None  # of the test part, where it is known of the whole files
    num_samples: int | None = NUM_SAMPLES
    deviation_ddof: int = 0
    is_imputed: bool = False  # missing targets are the mean, as inputs and as what is scored
    left_out: tuple[str, ...] = ()  # columns

    @property
    def total_steps(self) -> int:
        """Rows of a block."""
        return self.encoder_steps + self.horizon

    @property
    def window(self) -> WindowConfig:
        """Training windows: the first creation time sees `encoder_steps` rows, as a block does, later ones more."""
        return WindowConfig(
            horizon=self.horizon,
            history=self.encoder_steps - 1,
            num_fcts=self.num_fcts,
            batch_size=BATCH_SIZE,
            min_history=self.encoder_steps,
            partial_horizon=False,
            reach=sum(self.position_dilations),
        )

    @property
    def block(self) -> WindowConfig:
        """Windows of one creation time that see their block alone."""
        return self.window.replace(num_fcts=1)

    def settings(
        self,
        model: str,
        seed: int,
        num_trajectories: int | None = None,
        max_steps: int | None = None,
        max_minutes: float | None = None,
    ) -> RunConfig:
        """The paper's; with `num_trajectories` without forking, on so many blocks."""
        window = self.window
        if num_trajectories is not None:
            window = self.block.replace(aligned=False, num_trajectories=num_trajectories)
        return RunConfig(
            window=window,
            split=SplitConfig(train_until=self.parts["train"][1], valid_until=self.parts["valid"][1]),
            scaling=ScalingConfig(by="none"),  # the rows are scaled already
            model=ModelConfig(
                model=model,  # pyright: ignore[reportArgumentType]
                quantiles=LEVELS,
                hidden_dim=self.hidden_dim,
                encoder_dilations=self.encoder_dilations,
                position_dilations=self.position_dilations,
                lookback=self.encoder_steps,
                research=ResearchConfig(scale_inputs=False),
            ),
            train=TrainConfig(
                seed=seed, learning_rate=self.learning_rate, max_steps=max_steps, max_minutes=max_minutes
            ),
        )


def _dates(first: str, last: str) -> Dates:
    return dt.datetime.fromisoformat(first), dt.datetime.fromisoformat(last)


def _published(p50: tuple[float, ...], p90: tuple[float, ...]) -> dict[str, tuple[float, float]]:
    """The paper's table of public tasks, in its order."""
    names = ("DeepAR", "ConvTrans", "MQ-RNN", "MQ-CNN", "TFT", "MQTransformer")
    return dict(zip(names, zip(p50, p90, strict=True), strict=True))


SIX, SEVEN = (1, 2, 4, 8, 16, 32), (1, 2, 4, 8, 16, 32, 64)
ELECTRICITY = PublicTask(
    name="electricity",
    dataset="electricity",
    encoder_steps=168,
    horizon=24,
    num_fcts=168,
    parts={
        "train": _dates("2014-01-01 00:00", "2014-08-07 23:00"),
        "valid": _dates("2014-08-01 00:00", "2014-08-31 23:00"),
        "test": _dates("2014-08-25 00:00", "2014-09-07 23:00"),
    },
    scaled_by="entity",
    hidden_dim=128,
    learning_rate=1e-3,
    encoder_dilations=SIX,
    position_dilations=(1, 2, 4, 8, 8),
    num_blocks=145 * 369,
    published=_published((0.075, 0.059, 0.077, 0.076, 0.055, 0.057), (0.040, 0.034, 0.036, 0.035, 0.027, 0.027)),
)
TRAFFIC = PublicTask(
    name="traffic",
    dataset="traffic",
    encoder_steps=168,
    horizon=24,
    num_fcts=168,
    parts={  # days 0 … 150, 144 … 165 and 159 … 172 since 2008-01-01, by name
        "train": _dates("2008-01-01 00:00", "2008-05-30 23:00"),
        "valid": _dates("2008-05-24 00:00", "2008-06-14 23:00"),
        "test": _dates("2008-06-08 00:00", "2008-06-21 23:00"),
    },
    scaled_by="global",
    hidden_dim=64,
    learning_rate=1e-3,
    encoder_dilations=SIX,
    position_dilations=(1, 2, 4, 8, 8),
    num_blocks=145 * 963,
    published=_published((0.161, 0.122, 0.117, 0.115, 0.095, 0.101), (0.099, 0.081, 0.082, 0.077, 0.070, 0.068)),
)
OXFORD_MAN = PublicTask(
    name="oxford-man",
    dataset="oxford_man",
    encoder_steps=252,
    horizon=5,
    num_fcts=21,
    parts={  # without context: the first forecast of a part is about a year after its beginning
        "train": _dates("2000-01-01", "2015-12-31"),
        "valid": _dates("2016-01-01", "2017-12-31"),
        "test": _dates("2018-01-01", "2019-06-28"),
    },
    scaled_by="global",
    hidden_dim=128,
    learning_rate=1e-3,
    encoder_dilations=SEVEN,
    position_dilations=(1, 1, 2),
    num_samples=None,
    published=_published((0.050, 0.047, 0.042, 0.042, 0.039, 0.039), (0.024, 0.024, 0.021, 0.020, 0.020, 0.019)),
)
RETAIL = PublicTask(
    name="retail",
    dataset="favorita",
    encoder_steps=90,
    horizon=30,
    num_fcts=215,  # all that a series of the 334 training days has
    parts={
        "train": _dates("2015-01-01", "2015-11-30"),
        "valid": _dates("2015-09-02", "2015-12-30"),
        "test": _dates("2015-10-02", "2016-01-29"),
        "revisions": _dates("2015-12-02", "2016-04-28"),  # 30 creation times, 2016-02-29 … 2016-03-29
    },
    scaled_by="global",
    deviation_ddof=1,
    is_imputed=True,
    hidden_dim=64,
    learning_rate=1e-4,
    encoder_dilations=SIX,
    position_dilations=(1, 2, 4, 8, 14),
    published=_published((0.574, 0.429, 0.379, 0.269, 0.354, 0.256), (0.230, 0.192, 0.152, 0.118, 0.147, 0.106))
    | {"MQTransformer, no forking, 450K": (0.2645, 0.109)},
)
RETAIL_WITHOUT_OPEN = replace(RETAIL, name="retail-no-open", is_imputed=False, left_out=("open",))
"""Without the column that says on which future days there will be a sale; days without one are not scored."""
