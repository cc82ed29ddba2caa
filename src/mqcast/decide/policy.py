"""How stock is ordered: when, how much at a time, and what too much or too little costs."""
# pyright: strict

from dataclasses import dataclass
from typing import Literal, get_args

from mqcast.arguments import number, whole_number
from mqcast.errors import ConfigError, quoted

Service = Literal["cycle", "fill"]
Unmet = Literal["lost", "backordered"]


@dataclass(frozen=True)
class Policy:
    """Periodic review: at every review, order up to a level that covers demand until the next order can arrive.

    An order placed at a cutoff serves demand from `lead_time` + 1 steps later on, and the next is placed
    `review_period` steps later, so that an order has to last for `protection` = lead_time + review_period steps. With
    a lead time of 0 and a review period of 1 this is the newsvendor.

    The level follows from the costs, or from `service_level` if there is one: "cycle", the chance that nothing is short
    before the next order arrives, or "fill", the share of demand that is served from stock.

    >>> from mqcast import Policy
    >>> Policy(lead_time=2, holding_cost=1, shortage_cost=9).protection
    3
    """

    lead_time: int = 0  # steps
    review_period: int = 1  # steps
    holding_cost: float | None = None  # of a unit in stock at the end of a step
    shortage_cost: float | None = None  # of a unit that is short, once
    service_level: float | None = None
    service: Service = "cycle"
    unit_cost: float = 0.0  # price of a unit; it values orders
    pack_size: float | None = None  # orders are whole packs; None: any quantity
    min_order: float = 0.0  # the smallest order, if there is one at all
    unmet: Unmet = "lost"  # what becomes of demand that is short

    def __post_init__(self) -> None:
        whole_number("lead_time", self.lead_time, 0)
        whole_number("review_period", self.review_period)
        for name in ("unit_cost", "min_order"):
            number(name, getattr(self, name), 0, or_low=True)
        if self.pack_size is not None:
            number("pack_size", self.pack_size, 0)
        for name, options in (("service", Service), ("unmet", Unmet)):
            if getattr(self, name) not in get_args(options):
                listed = " or ".join(map(repr, get_args(options)))
                raise ConfigError(f"{name} is {quoted(getattr(self, name))}; give {listed}")
        for name in ("holding_cost", "shortage_cost"):
            if getattr(self, name) is not None:
                number(name, getattr(self, name), 0)
        if (self.holding_cost is None) != (self.shortage_cost is None):
            raise ConfigError("one of holding_cost and shortage_cost is missing; give both, or a service_level alone")
        if self.service_level is None and self.holding_cost is None:
            raise ConfigError("nothing says how much to order; give holding_cost and shortage_cost, or service_level")
        if self.service_level is not None and not 0 < number("service_level", self.service_level, 0, 1) < 1:
            raise ConfigError("service_level is 1; give a number below 1, such as 0.95")

    @property
    def protection(self) -> int:
        """The steps that an order has to last for."""
        return self.lead_time + self.review_period
