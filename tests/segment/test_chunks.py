"""Sequences in chunks: what shows them, and what becomes of them."""

from __future__ import annotations

import pytest

from lumos.segment.chunks import Chunks, chunks_of
from lumos.segment.dimensions import Sizes
from lumos.segment.products import ShapedOperator
from lumos.segment.resized import Resize

#: Three sequences of 1,024 positions in 8 chunks of 128; 16 heads of 64 make up 1,024 as well.
OLD = Sizes(micro_batch=3, seq=1024, hidden=512)
NEW = OLD._replace(micro_batch=6, seq=3072)
CHUNKS = Chunks(8, 128)


def operator(name, *shapes):
    return ShapedOperator(name, shapes, ("float",) * len(shapes))


def resized(name, *shapes, weights=frozenset()):
    return Resize(OLD, NEW, weights, frozenset(), CHUNKS).operator(operator(name, *shapes), True).shapes


def test_chunks_are_the_neighbours_that_most_operators_have():
    shown = [(operator("aten::mul", (3, 8, 128, 16, 64)), 5), (operator("aten::exp", (3, 16, 8, 128, 128)), 3)]
    assert chunks_of(shown, OLD) == CHUNKS
    assert chunks_of([(operator("aten::mul", (3, 1024, 16, 64)), 5), (operator("aten::mul", (3, 16, 64)), 5)], OLD) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((3, 8, 128, 16, 64), (6, 24, 128, 16, 64)),
        ((3, 16, 8, 128, 128), (6, 16, 24, 128, 128)),
        ((3, 8, 16, 128, 128, 1), (6, 24, 16, 128, 128, 1)),
        ((3, 9, 16, 64, 128), (6, 25, 16, 64, 128)),  # the state before the first chunk and after each
        ((3, 16, 9, 9), (6, 16, 25, 25)),
        ((3, 1, 16, 64, 128), (6, 1, 16, 64, 128)),
    ],
)
def test_a_longer_sequence_has_more_chunks_of_the_same_length(before, after):
    assert resized("aten::mul", before, before) == (after, after)


def test_products_within_chunks_and_between_them():
    """8 chunks of 3 sequences in 16 heads are 384 products, 24 of 6 are 2,304; between chunks, one for each head of a sequence."""
    assert resized("aten::bmm", (384, 128, 64), (384, 64, 128)) == ((2304, 128, 64), (2304, 64, 128))
    assert resized("aten::bmm", (48, 9, 9), (48, 9, 8192)) == ((96, 25, 25), (96, 25, 8192))


def test_the_number_of_chunks_counts_only_beside_their_length_where_heads_are_as_many():
    old = OLD._replace(heads=8, head_dim=64)
    assert CHUNKS.resized((3, 8, 128, 8, 64), old, old._replace(seq=2048)) == (3, 16, 128, 8, 64)
    assert CHUNKS.resized((3, 8, 64, 64, 1), old, old._replace(seq=2048)) is None


def test_a_convolution_along_the_sequence_has_channels_before_positions():
    """A window of 4 adds 3 positions before the sequence."""
    weight = (1280, 1, 4)
    shapes = resized("aten::conv1d", (3, 1280, 1027), weight, weights=frozenset({weight}))
    assert shapes == ((6, 1280, 3075), weight)
    assert resized("aten::silu", (3, 1280, 1024)) == ((6, 1280, 3072),)


def test_a_window_as_long_as_the_states_between_chunks_are_many_stays():
    """8 chunks have 9 states between them, before and after; a convolution that looks at 9 positions has a weight of no sequence."""
    weight = (1536, 1, 9)
    assert resized("aten::conv1d", (3, 1536, 1032), weight, weights=frozenset({weight})) == ((6, 1536, 3080), weight)


def test_a_width_that_equals_the_length_of_the_sequence_stays():
    assert resized("aten::pow", (3, 1024, 1, 1024), ()) == ((6, 3072, 1, 1024), ())
