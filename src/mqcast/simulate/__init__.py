"""Simulated demand with a known forecast distribution, to evaluate forecasters against the truth."""

from mqcast.simulate.counts import count_world
from mqcast.simulate.lognormal import lognormal_world
from mqcast.simulate.world import World

__all__ = ["World", "count_world", "lognormal_world"]
