"""The systems that experiments compare, by name. This is the only module of the lab that knows which networks exist.

mqt                    a network of the family
mqt-unforked           the same network, trained on trajectories that are drawn one by one
mqt-mean-of-3          the mean of three such networks with other seeds, which share the training time
seasonal-naive         trained by nobody
"""

from dataclasses import dataclass

from mqcast.errors import ConfigError
from mqcast.models.ensemble import SEEDS_APART
from mqcast.settings import FAMILY, nearest

NETWORKS = tuple(FAMILY)
BASELINE = "mqcnn"
SEASONAL_NAIVE, ORACLE = "seasonal-naive", "oracle"
UNFORKED, MEAN_OF = "-unforked", "-mean-of-"


@dataclass(frozen=True)
class System:
    """What a name stands for."""

    name: str
    network: str
    is_forked: bool = True
    num_members: int = 1

    @classmethod
    def parse(cls, name: str) -> "System":
        member, _, count = name.partition(MEAN_OF)
        if count and (not count.isdecimal() or int(count) < 2):
            raise ConfigError(f"no model {name!r}; write the mean of several as {member}{MEAN_OF}3")
        network = member.removesuffix(UNFORKED)
        if network not in NETWORKS:
            raise ConfigError(
                f"no model {name!r}{nearest(network, NETWORKS)}; there are {', '.join(NETWORKS)}, each also with "
                f"{UNFORKED} or {MEAN_OF}3"
            )
        return cls(name, network, member == network, int(count or 1))

    @property
    def member(self) -> str:
        return self.name.partition(MEAN_OF)[0]

    def member_seeds(self, seed: int) -> list[int]:
        return [seed + SEEDS_APART * number for number in range(self.num_members)]
