"""From forecasts to decisions: orders, what they would have cost, and totals that add up; no torch."""
# pyright: strict

from mqcast.decide.hierarchies import Hierarchy, reconcile, totals
from mqcast.decide.ordering import orders
from mqcast.decide.policy import Policy
from mqcast.decide.replays import Replay, replay

__all__ = ["Hierarchy", "Policy", "Replay", "orders", "reconcile", "replay", "totals"]
