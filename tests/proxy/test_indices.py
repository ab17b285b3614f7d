"""Values that integer tensors must have."""

from typing import Any

import pytest

from lumos.proxy.indices import Arguments, bounds


@pytest.mark.parametrize(
    ("name", "shapes", "values", "expected"),
    [
        ("aten::embedding", [(100, 8), (4, 5), None], [None, None, -1], {1: 100}),
        ("aten::embedding_dense_backward", [(20, 8), (20,), None], [None, None, 100], {1: 100}),
        ("aten::index_select", [(7, 9), None, (3,)], [None, 1, None], {2: 9}),
        ("aten::gather", [(7, 9), None, (7, 2)], [None, -1, None], {2: 9}),
        ("aten::nll_loss_forward", [(32, 10), (32,)], [None, None], {1: 10}),
        ("aten::nll_loss_backward", [(), (32, 10), (32,)], [None, None, None], {2: 10}),
        ("aten::embedding_bag", [(50, 8), (64,), (16,)], [None, None, None], {1: 50, 2: -64}),
        ("aten::max_pool2d_with_indices_backward", [(1, 2, 4, 4), (1, 2, 8, 8), *[None] * 5, (1, 2, 4, 4)], [None] * 8, {7: 64}),
        ("aten::mm", [(2, 2), (2, 2)], [None, None], {}),
    ],
)
def test_bounds_follow_from_the_other_arguments(name: str, shapes: list[Any], values: list[Any], expected: dict[int, int]) -> None:
    assert bounds(name, Arguments(shapes, values)) == expected


def test_an_empty_table_leaves_only_the_index_zero() -> None:
    assert bounds("aten::embedding", Arguments([(0, 8), (4,)], [None, None])) == {1: 1}
