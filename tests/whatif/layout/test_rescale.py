"""What a recurrent layer takes on an accelerator with more steps, and with fewer sequences."""

from __future__ import annotations

import pytest

from lumos import load_cluster
from lumos.segment.batch import shapes_of_weights
from lumos.segment.dimensions import Resize, Sizes
from lumos.segment.products import ShapedOperator
from lumos.whatif.layout.rescale import Rescale

SIZES = Sizes(micro_batch=64, seq=35, hidden=1024)
#: Tokens, states, and weights of two layers, as cuDNN's operators list them.
SHAPES = ((64, 35, 1024), (2, 64, 1024), (2, 64, 1024), (4096, 1024), (4096, 1024), (4096,), (4096,))


def factor(name, **sizes):
    operator = ShapedOperator(name, SHAPES, ("float",) * len(SHAPES), False)
    change = Resize(SIZES, SIZES._replace(**sizes), shapes_of_weights([(operator, 1)]))
    return Rescale(change, load_cluster("a100-40gb").accelerator, None)(operator, False, False)


@pytest.mark.parametrize("name", ["aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"])
def test_twice_the_steps_take_a_recurrent_layer_twice_as_long(name):
    found = factor(name, seq=70)
    assert found.ratio == pytest.approx(2, rel=0.03)
    assert found.fixed == 0  # every step has kernels of its own


@pytest.mark.parametrize("name", ["aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"])
def test_half_the_batch_makes_the_steps_of_a_recurrent_layer_hardly_shorter(name):
    # 64 rows fit into one tile as 32 do; the multiplication of all inputs at once takes half as long
    assert 0.6 < factor(name, micro_batch=32).ratio < 0.97
