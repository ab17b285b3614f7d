"""The batch of models of every kind, and what their shapes become with another one."""

from __future__ import annotations

import pytest

from lumos.segment.batch import batch, batched, batched_product, convolution_work, shapes_of_weights
from lumos.segment.dimensions import Sizes
from lumos.segment.products import ShapedOperator, product
from lumos.segment.resized import Resize


def op(name, *shapes):
    return ShapedOperator(name, shapes, ("float",) * len(shapes))


CONVOLUTION = op("aten::conv2d", (16, 3, 32, 32), (48, 3, 3, 3), (48,))
LINEAR = op("aten::linear", (16, 512), (256, 512), (256,))
LSTM = op("aten::lstm", (16, 20, 64), (2, 16, 64), (2, 16, 64), (256, 64))


@pytest.mark.parametrize("o", [CONVOLUTION, LINEAR, LSTM, op("aten::addmm", (256,), (16, 512), (512, 256))])
def test_every_kind_of_layer_shows_the_batch(o):
    # the gradient of a weight has features in front, and is called more often
    assert batch([(o, 3), (op("aten::mm", (256, 16), (16, 512)), 9)]) == 16


def test_without_layers_there_is_no_batch():
    assert batch([(op("aten::add", (16, 512), (16, 512)), 3)]) == 0


def test_weights_keep_their_shapes_where_the_batch_divides_them():
    weights = shapes_of_weights([(LINEAR, 1), (CONVOLUTION, 1)])
    assert {(256, 512), (512, 256), (256,), (48, 3, 3, 3)} <= weights
    assert batched((256, 512), 16, 64, weights) == (256, 512)
    assert batched((16, 48, 32, 32), 16, 64, weights) == (64, 48, 32, 32)
    assert batched((320, 512), 16, 64, weights) == (1280, 512)  # 20 positions of each sample
    assert batched((7, 16, 64), 16, 64, weights) == (7, 64, 64)  # steps first
    assert batched((13, 512), 16, 64, weights) == (13, 512)


@pytest.mark.parametrize(
    ("factors", "sizes"),
    [
        (((16, 512), (512, 256)), (64, 256, 512, 1)),  # forward: rows
        (((16, 256), (256, 512)), (64, 512, 256, 1)),  # gradient of the input: rows
        (((256, 16), (16, 512)), (256, 512, 64, 1)),  # gradient of the weight: depth, though rows are a multiple of the batch too
    ],
)
def test_a_multiplication_has_the_batch_in_its_rows_or_its_depth(factors, sizes):
    o = op("aten::mm", *factors)
    assert product(o._replace(shapes=batched_product(o, 16, 64, shapes_of_weights([(LINEAR, 1)])))) == sizes


def test_a_convolution_takes_time_in_proportion_to_the_batch():
    resize = Resize(Sizes(micro_batch=16), Sizes(micro_batch=64), shapes_of_weights([(CONVOLUTION, 1)]))
    backward = op("aten::convolution_backward", (16, 48, 32, 32), (16, 3, 32, 32), (48, 3, 3, 3))
    assert convolution_work(CONVOLUTION) == 16 * 3 * 32 * 32 * 48 * 9
    for o in (CONVOLUTION, backward):
        assert convolution_work(resize.operator(o, True)) == 4 * convolution_work(o)


def test_a_batch_of_one_is_found_by_the_weights():
    weights = shapes_of_weights([(op("aten::linear", (1, 512), (256, 512), (256,)), 1)])
    o = op("aten::addmm", (256,), (1, 512), (512, 256))
    assert product(o._replace(shapes=batched_product(o, 1, 4, weights))) == (4, 256, 512, 1)
    assert batched((512,), 1, 4, weights) == (512,)
