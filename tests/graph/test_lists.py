"""Lists stored one after the other in a column."""

import numpy as np

from lumos.graph.edges import Edges, distinct
from lumos.graph.lists import end_to_end, equal_rows, grouped, list_of, narrow, numbered, offsets, ordinals, places
from lumos.graph.table import Dependency


def test_offsets_say_where_lists_begin_and_where_the_last_ends():
    assert offsets([2, 0, 3]).tolist() == [0, 2, 2, 5]
    assert offsets([]).tolist() == [0]
    assert offsets([]).dtype == np.int64


def test_places_run_through_each_list():
    assert places(np.array([10, 3, 7]), np.array([2, 0, 3])).tolist() == [10, 11, 7, 8, 9]


def test_lists_of_arrays_and_of_numbers_are_put_end_to_end():
    assert [column.tolist() for column in end_to_end([[4, 5], [], np.array([6], np.int32)])] == [[0, 2, 2, 3], [4, 5, 6]]
    assert [column.tolist() for column in end_to_end([])] == [[0], []]


def test_entries_are_grouped_in_ascending_order_and_negative_ones_left_out():
    offset, order = grouped(np.array([2, 0, -1, 2, 0]), 4)
    assert offset.tolist() == [0, 2, 2, 4, 4]
    assert order.tolist() == [1, 4, 0, 3]


def test_every_entry_finds_its_list():
    assert list_of(np.array([0, 2, 2, 3])).tolist() == [0, 0, 2]


def test_edges_keep_the_order_of_adding_and_drop_those_without_an_end():
    edges = Edges()
    edges.add(np.array([3, -1, 2]), np.array([1, 1, 0]), Dependency.DATA)
    edges.add(np.array([0]), np.array([1]), Dependency.LAUNCH)
    found = edges.predecessors(3)
    assert found.offset.tolist() == [0, 1, 3, 3]
    assert found.task.tolist() == [2, 3, 0]
    assert found.kind.tolist() == [Dependency.DATA, Dependency.DATA, Dependency.LAUNCH]
    assert [column.tolist() for column in Edges().predecessors(2)] == [[0, 0, 0], [], []]


def test_distinct_edges_come_once_and_ascending():
    offset, before = distinct(np.array([5, 1, 5]), np.array([2, 2, 2]), 6)
    assert offset.tolist() == [0, 0, 0, 2, 2, 2, 2]
    assert before.tolist() == [1, 5]


def test_equal_rows_are_together_in_the_order_of_their_values():
    columns = np.array([2, 1, 2, 1, -1]), np.array([0, 7, 0, 3, 5], np.int32)
    assert [rows.tolist() for rows in equal_rows(*columns)] == [[4], [3], [1], [0, 2]]
    assert [rows.tolist() for rows in equal_rows(columns[0])] == [[4], [1, 3], [0, 2]] and not list(equal_rows(columns[0][:0]))


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
