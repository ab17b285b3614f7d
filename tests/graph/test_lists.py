"""Lists stored one after the other in a column."""

import numpy as np

from lumos.graph.edges import Edges
from lumos.graph.lists import narrow, numbered, ordinals
from lumos.graph.table import Dependency


def test_edges_keep_the_order_of_adding_and_drop_those_without_an_end():
    edges = Edges()
    edges.add(np.array([3, -1, 2]), np.array([1, 1, 0]), Dependency.DATA)
    edges.add(np.array([0]), np.array([1]), Dependency.LAUNCH)
    found = edges.predecessors(3)
    assert found.offset.tolist() == [0, 1, 3, 3]
    assert found.task.tolist() == [2, 3, 0]
    assert found.kind.tolist() == [Dependency.DATA, Dependency.DATA, Dependency.LAUNCH]
    assert [column.tolist() for column in Edges().predecessors(2)] == [[0, 0, 0], [], []]


def test_ordinals_number_equal_rows_in_their_order():
    assert ordinals(np.array([7, 3, 7, 7, 3]), np.array([1, 1, 1, 2, 1])).tolist() == [0, 0, 1, 0, 1]
    assert ordinals(np.array([2, 2, 2])).tolist() == [0, 1, 2]
    assert ordinals(np.empty(0, np.int64)).tolist() == []


def test_numbers_beyond_sixteen_bits_are_ordered_too():
    assert ordinals(np.array([70_000, -3, 70_000, 4_464])).tolist() == [0, 0, 1, 0]
    assert [narrow(np.array(column)).tolist() for column in ([65_535, 0], [65_536, 0], [-1, 0])] == [[65_535, 0], [65_536, 0], [-1, 0]]
    assert narrow(np.array([65_535])).itemsize == 2


def test_equal_rows_have_one_number_in_the_order_of_their_values():
    assert numbered(np.array([5, 2, 5, 2]), np.array([-7, 9, -8, 9])).tolist() == [2, 0, 1, 0]
    assert numbered(np.empty(0, np.int64)).tolist() == []
