"""The systems that experiments compare, by name. This is the only module of the lab that knows which networks exist.

mqt                    a network of the family
mqt-unforked           the same network, trained on trajectories that are drawn one by one
mqt-mean-of-3          the mean of three such networks with other seeds, which share the training time
seasonal-naive         any other model of `mqcast.models`, also mean_of(mqt, mqcnn) and a registered class of your own
"""

import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from mqcast import models
from mqcast.errors import ConfigError
from mqcast.models.ensemble import SEEDS_APART
from mqcast.settings import FAMILY

NETWORKS = tuple(FAMILY)
BASELINE = "mqcnn"
SEASONAL_NAIVE, ORACLE = models.BASELINE, "oracle"
UNFORKED, MEAN_OF = "-unforked", "-mean-of-"


@dataclass(frozen=True)
class System:
    """What a name stands for; `network` is None for a model of the registry that is no network of the family."""

    name: str
    network: str | None
    is_forked: bool = True
    num_members: int = 1

    @classmethod
    def parse(cls, name: str) -> "System":
        member, _, count = name.partition(MEAN_OF)
        if count and (not count.isdecimal() or int(count) < 2):
            raise ConfigError(f"no model {name!r}; write the mean of several as {member}{MEAN_OF}3")
        network = member.removesuffix(UNFORKED)
        if network in NETWORKS:
            return cls(name, network, member == network, int(count or 1))
        try:
            models.get(name)
        except ConfigError as error:
            raise ConfigError(
                f"{error}; networks also with {UNFORKED} or {MEAN_OF}3, and your own models after --module FILE"
            ) from None
        return cls(name, None)

    @property
    def member(self) -> str:
        return self.name.partition(MEAN_OF)[0]

    def member_seeds(self, seed: int) -> list[int]:
        return [seed + SEEDS_APART * number for number in range(self.num_members)]


def import_models(module: str) -> None:
    """Import a Python file, or a module by its dotted name, so that it registers its models."""
    if not module.endswith(".py"):
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            raise ConfigError(f"--module {module}: {error}; give a Python file, or a module on the path") from None
        return
    path = Path(module).resolve()
    name = f"lab_models_{path.stem}"  # shadows no other module
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"--module {module}: there is no such file; give a Python file that registers a model")
    sys.modules[name] = made = module_from_spec(spec)
    spec.loader.exec_module(made)
