"""The weights among the inputs of an operator."""

from __future__ import annotations

import pytest

from lumos.segment.products import ShapedOperator
from lumos.segment.weights import weight_shapes


@pytest.mark.parametrize(
    ("name", "shapes", "weights"),
    [
        ("aten::mm", ((64, 32), (32, 128)), ((32, 128),)),
        ("aten::bmm", ((4, 64, 32), (4, 32, 64)), ()),
        ("aten::embedding", ((1000, 32), (4, 16)), ((1000, 32),)),
        ("aten::_grouped_mm", ((64, 32), (8, 32, 128), (8,)), ((8, 32, 128),)),
        ("aten::_grouped_mm", ((32, 64), (64, 128), (8,)), ()),
    ],
)
def test_the_weights_of_an_operator(name, shapes, weights):
    """Eight experts have a matrix each; what two activations give together, as a gradient, is no weight."""
    assert weight_shapes(ShapedOperator(name, shapes, ("float",) * len(shapes))) == weights
