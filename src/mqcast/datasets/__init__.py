"""Simulated demand whose true forecast distribution is known, to judge forecasters against truth."""

from mqcast.datasets.counts import count_world
from mqcast.datasets.lognormal import lognormal_world
from mqcast.datasets.world import World

__all__ = ["World", "count_world", "lognormal_world"]
