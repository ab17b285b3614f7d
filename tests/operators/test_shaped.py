"""The shapes of a model's weights, and the arithmetic of convolutions."""

from __future__ import annotations

from lumos.operators.shaped import ShapedOperator, convolution_work, shapes_of_weights


def op(name, *shapes):
    return ShapedOperator(name, shapes, ("float",) * len(shapes))


CONVOLUTION = op("aten::conv2d", (16, 3, 32, 32), (48, 3, 3, 3), (48,))
LINEAR = op("aten::linear", (16, 512), (256, 512), (256,))


def test_weights_are_what_layers_multiply_by():
    assert shapes_of_weights([(LINEAR, 1), (CONVOLUTION, 1)]) == {(256, 512), (512, 256), (256,), (48, 3, 3, 3), (48,)}


def test_a_convolution_takes_time_in_proportion_to_the_batch():
    backward = op("aten::convolution_backward", (16, 48, 32, 32), (16, 3, 32, 32), (48, 3, 3, 3))
    assert convolution_work(CONVOLUTION) == 16 * 3 * 32 * 32 * 48 * 9
    for o, shapes in ((CONVOLUTION, (0,)), (backward, (0, 1))):
        larger = o._replace(shapes=tuple((64, *s[1:]) if i in shapes else s for i, s in enumerate(o.shapes)))
        assert convolution_work(larger) == 4 * convolution_work(o)
