"""Axes as products of symbols: what is equal, what a view divides, what follows from others."""

import pytest

from lumos.operators.symbols import ONE, Axis, Symbols, Window


def test_two_axes_made_equal_are_the_same_product():
    s = Symbols()
    tokens, batch, length = s.fresh(32), s.fresh(2), s.fresh(16)
    s.unify(tokens, s.product(batch, length))
    assert s.same(tokens, Axis(1, batch.symbols + length.symbols))
    assert s.evaluate(tokens, {batch.symbols[0]: 6}) == 96


def test_axes_of_other_sizes_stay_apart():
    s = Symbols()
    a, b = s.fresh(4), s.fresh(8)
    s.unify(a, b)
    assert not s.same(a, b)


def test_a_view_divides_a_symbol_into_its_parts():
    s = Symbols()
    width = s.fresh(12)
    heads, each = s.viewed(width, (3, 4))
    assert (s.size(heads), s.size(each)) == (3, 4)
    assert s.same(width, s.product(heads, each))
    assert s.evaluate(width, {heads.symbols[0]: 5}) == 20


def test_a_view_keeps_the_symbols_of_a_product():
    s = Symbols()
    batch, length = s.fresh(4), s.fresh(4)
    first, second = s.viewed(s.product(batch, length), (4, 4))
    assert s.same(first, batch) and s.same(second, length)


def test_equal_parts_are_so_many_times_one():
    s = Symbols()
    both = s.fresh(24)
    half = s.divided(both, 2)
    assert s.same(s.sum([(1, half), (1, half)], 0), both)
    assert s.evaluate(both, {half.symbols[0]: 20}) == 40


def test_halves_keep_their_place_among_the_parts_of_a_product():
    """Four groups of two heads of 6, of which an operator takes halves: the width is 4 · 2 · (2 · 3), and not (2 · 4) · 2 · 3."""
    s = Symbols()
    groups, heads, head = s.fresh(4), s.fresh(2), s.fresh(6)
    width = s.product(groups, heads, head)
    half = s.divided(head, 2)
    first, second = s.viewed(width, (8, 6))
    assert s.same(first, s.product(groups, heads)) and s.same(second, s.sum([(1, half), (1, half)], 0))
    assert s.evaluate(second, {half.symbols[0]: 5}) == 10


def test_one_element_more_and_one_less_is_the_axis_again():
    s = Symbols()
    length = s.fresh(16)
    longer = s.sum([(1, length)], 1)
    assert s.size(longer) == 17
    assert s.same(s.sum([(1, longer)], -1), length)
    assert s.evaluate(longer, {length.symbols[0]: 32}) == 33


@pytest.mark.parametrize(("stride", "wanted"), [(1, 64), (2, 32)])
def test_a_window_has_as_many_positions_as_fit(stride, wanted):
    s = Symbols()
    side, width = s.fresh(32), s.fresh(3)
    found = s.window(Window(side, width, 1, stride, 1))
    assert s.size(found) == 32 // stride
    assert s.evaluate(found, {side.symbols[0]: 64}) == wanted


def test_a_window_of_stride_one_that_keeps_its_extent_is_that_extent():
    s = Symbols()
    side = s.fresh(32)
    assert s.same(s.window(Window(side, s.fresh(3), 1, 1, 1)), side)


def test_a_share_of_an_axis_grows_with_it():
    s = Symbols()
    tokens = s.fresh(32)
    some, twice = s.share(tokens, 12), s.share(tokens, 64)
    assert [s.size(some), s.size(twice)] == [12, 64]
    assert [s.evaluate(axis, {tokens.symbols[0]: 48}) for axis in (some, twice)] == [18, 96]
    assert s.same(s.share(tokens, 32), tokens)
    assert s.share(ONE, 5).symbols


def test_a_size_of_one_is_a_number_unless_it_is_data():
    s = Symbols()
    assert s.plain(1) is ONE
    assert s.fresh(1).symbols


def test_copies_along_an_axis_are_no_part_of_what_is_copied():
    """Four heads of keys, each for three of the queries' twelve."""
    s = Symbols()
    queries, heads = s.fresh(12), s.fresh(4)
    keys = s.product(heads, s.copies(3))
    s.unify(queries, keys)
    assert s.once(keys) == s.once(queries) == s.normal(heads)
