"""Shapes under other sizes."""

from __future__ import annotations

import pytest

from lumos.layout.dimensions import Resize, Sizes

OLD = Sizes(micro_batch=16, seq=559, hidden=1024, heads=16, kv_heads=16, head_dim=64, ffn=2816, vocab=151936)
NEW = OLD._replace(micro_batch=8, seq=64)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((16, 16, 559, 64), (8, 16, 64, 64)),
        ((1, 1, 559, 64), (1, 1, 64, 64)),  # a table of positions, one for the whole batch
        ((1, 559, 64), (1, 64, 64)),
        ((16, 559, 1024), (8, 64, 1024)),
        ((16 * 559, 2816), (8 * 64, 2816)),
        ((1024,), (1024,)),
    ],
)
def test_batch_and_sequence_change_where_they_stand(shape, expected):
    assert Resize(OLD, NEW)(shape, in_layer=True) == expected
