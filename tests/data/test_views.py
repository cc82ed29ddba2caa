"""Views of a panel's rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mqcast.data.views import Pieces


@given(st.data(), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=20))
def test_a_slice_of_a_view_is_the_rows_that_an_index_gives(data, gaps_and_lengths):
    gaps, lengths = np.array(gaps_and_lengths).T
    starts = np.cumsum(gaps) + np.append(0, np.cumsum(lengths)[:-1])
    pieces = Pieces(starts, lengths)
    wanted = np.concatenate([np.arange(a, a + n) for a, n in zip(starts, lengths, strict=True)])
    first, stop = sorted(data.draw(st.integers(0, pieces.num_rows)) for _ in range(2))
    rows = pieces.rows(slice(first, stop, step := data.draw(st.integers(1, 3))))
    rows = np.arange(rows.start, rows.stop, rows.step) if isinstance(rows, slice) else rows
    assert np.array_equal(rows, wanted[first:stop:step])
    assert np.array_equal(pieces.rows(np.arange(pieces.num_rows)), wanted)
