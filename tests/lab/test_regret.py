"""What the networks of the regret benchmark know of the weeks."""

import numpy as np
import pytest

from lab.benchmarks.regret import NUM_WAVES, VARIANTS, make_world
from mqcast.settings import ModelConfig


@pytest.mark.parametrize(
    ("positions", "events", "calendar"),
    [("learned", 4, None), ("matrix", 0, ("week_of_year",)), ("sinusoids", 2 * NUM_WAVES, ()), ("none", 0, ())],
)
def test_promotions_are_known_whatever_else_is(positions, events, calendar):
    world, panel = make_world(6, 0, positions)
    assert (len(panel.schema.events), panel.schema.calendar) == (events, calendar)
    assert panel.schema.known == ("promo_display", "promo_coupon")
    assert np.array_equal(panel.target[: world.num_weeks], make_world(6, 0)[1].target[: world.num_weeks])


def test_every_variant_is_a_network():
    for name, changes in VARIANTS.items():
        assert ModelConfig(**{key: value for key, value in changes.items() if key != "positions"}), name
