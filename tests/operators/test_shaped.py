"""The shapes of a model's weights, and the arithmetic of convolutions."""

import pytest

from lumos.operators.shaped import ShapedOperator, convolution_work, operations, shapes_of_weights


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


@pytest.mark.parametrize(
    ("name", "shapes", "inputs", "expected"),
    [
        ("aten::mm", [[8, 4], [4, 2]], [], 2 * 8 * 4 * 2),
        ("aten::addmm", [[2], [8, 4], [4, 2]], [], 2 * 8 * 4 * 2),
        ("aten::_addmm_activation", [[2], [8, 4], [4, 2]], [], 2 * 8 * 4 * 2),
        ("aten::bmm", [[3, 8, 4], [3, 4, 2]], [], 2 * 3 * 8 * 4 * 2),
        # 32 by 32 pixels, 3 by 3 weights, a border of 1, every second place: 16 by 16 outputs of 64 channels
        ("aten::cudnn_convolution", [[2, 3, 32, 32], [64, 3, 3, 3]], ["", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"], 2 * 2 * 256 * 64 * 27),
        ("aten::convolution", [[2, 4, 10], [8, 4, 3]], ["", "", "", "[1]", "[0]", "[2]", "False"], 2 * 2 * 6 * 8 * 12),
        ("aten::convolution", [[2, 4, 10], [8, 4, 3]], ["", "", "", "[1]", "[0]", "[2]", "True"], None),
        ("aten::cudnn_convolution", [[2, 3, 32, 32], [64, 3, 3, 3]], [], None),
        (
            "aten::convolution_backward",
            [[2, 64, 16, 16], [2, 3, 32, 32], [64, 3, 3, 3]],
            [*[""] * 7, "False", "", "1", "[True, True, False]"],
            2 * 2 * 2 * 256 * 64 * 27,
        ),
        ("aten::convolution_backward", [[2, 64, 16, 16], [2, 3, 32, 32], [64, 3, 3, 3]], [], None),
        ("aten::mm", [[8, 4], [5, 2]], [], None),
        # 8 tokens, each by the matrix of one of 3 experts; and the gradients of these matrices
        ("aten::_grouped_mm", [[8, 4], [3, 4, 2], [3]], [], 2 * 8 * 4 * 2),
        ("aten::_grouped_mm", [[4, 8], [8, 2], [3]], [], 2 * 8 * 4 * 2),
        ("aten::_grouped_mm", [[8, 4], [3, 5, 2], [3]], [], None),
        ("aten::mm", [[], []], [], None),
        ("aten::relu", [[8, 4]], [], None),
        ("aten::_scaled_dot_product_flash_attention", [[2, 3, 5, 7]] * 3, ["", "", "", "0.", "False"], 4 * 2 * 3 * 5 * 5 * 7),
        ("aten::_scaled_dot_product_flash_attention", [[2, 3, 5, 7]] * 3, ["", "", "", "0.", "True"], 2 * 2 * 3 * 5 * 5 * 7),
        ("aten::_flash_attention_forward", [[2, 5, 3, 7]] * 3, [], 4 * 2 * 3 * 5 * 5 * 7),
        # queries and keys of width 7, values of width 4
        ("aten::_scaled_dot_product_efficient_attention", [[2, 3, 5, 7], [2, 3, 5, 7], [2, 3, 5, 4]], [], 2 * 2 * 3 * 5 * 5 * (7 + 4)),
        ("aten::_scaled_dot_product_flash_attention_backward", [[2, 3, 5, 7]] * 5, [], 10 * 2 * 3 * 5 * 5 * 7),
    ],
)
def test_operations_of_a_call(name, shapes, inputs, expected):
    assert operations(name, [tuple(shape) for shape in shapes], inputs) == expected
