"""Lists stored one after the other in a column."""

import numpy as np

from lumos.graph.lists import narrow, ordinals


def test_numbers_beyond_sixteen_bits_are_ordered_too():
    assert ordinals(np.array([70_000, -3, 70_000, 4_464])).tolist() == [0, 0, 1, 0]
    assert [narrow(np.array(column)).tolist() for column in ([65_535, 0], [65_536, 0], [-1, 0])] == [[65_535, 0], [65_536, 0], [-1, 0]]
