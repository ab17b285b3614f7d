"""What an operator takes on an accelerator with other sizes: recurrent layers with more steps and fewer sequences, and attention."""

from __future__ import annotations

import pytest

from lumos import load_cluster
from lumos.cost.attention import attention
from lumos.segment.batch import shapes_of_weights
from lumos.segment.dimensions import Resize, Sizes
from lumos.segment.products import ShapedOperator
from lumos.whatif.layout.rescale import Rescale, modelled

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


def test_the_length_of_an_attention_is_found_by_the_sizes_of_the_model():
    """Four sequences of 512 positions in eight heads, by an operator whose name says that positions come before heads: without sizes its
    name counts, with them the dimension that has the length."""
    accelerator = load_cluster("a100-40gb").accelerator
    shape = (4, 8, 512, 64)
    o = ShapedOperator("aten::_flash_attention_forward", (shape,) * 3, ("c10::BFloat16",) * 3)
    by_name, by_size = modelled(o, accelerator), modelled(o, accelerator, Sizes(micro_batch=4, seq=512, heads=8))
    assert int(by_size.time) == int(attention(4, 512, 8, 64, accelerator, "bf16").time) != int(by_name.time)
