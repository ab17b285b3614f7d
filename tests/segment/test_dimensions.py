"""The operators of a trace with their shapes, and how the time of CPU work changes with them."""

from dataclasses import replace

import numpy as np
import pytest

from lumos.changes.layout.rescale import Core, operator_work, touched
from lumos.operators.shaped import ShapedOperator
from lumos.segment.program import shapes_of
from lumos.trace.table import ABSENT, Category, Column, Lane, Trace

ATTENTION = "aten::_scaled_dot_product_flash_attention_for_cpu"


def op(name, *shapes):
    return ShapedOperator(name, shapes, ("float",) * len(shapes))


def test_a_multiplication_for_experts_takes_time_as_its_arithmetic():
    before = op("aten::_grouped_mm", (2040, 512), (8, 512, 1024), (8,))
    assert operator_work(before) == 2040 * 512 * 1024
    assert operator_work(before._replace(shapes=((4080, 512), *before.shapes[1:]))) == 2 * operator_work(before)


def test_attention_grows_by_arithmetic_only_as_far_as_arithmetic_takes_its_time():
    queries = (4, 4, 64, 64)
    before = op(ATTENTION, queries, queries, queries)
    after = op(ATTENTION, *[(4, 4, 128, 64)] * 3)
    arithmetic = 2 * operator_work(before)  # at one multiplication a ns
    half = Core(fixed=0.0, node_fixed=0.0, rate=1.0, own={before: 2.0 * arithmetic})
    assert half.ratio(before, after) == pytest.approx((4 + 2) / 2)
    assert replace_own(half, before, arithmetic).ratio(before, after) == pytest.approx(4)


def replace_own(core, operator, own):
    return core._replace(own={operator: float(own)})


def test_the_time_of_a_view_does_not_depend_on_its_size():
    core = Core(0.0, 0.0, 1.0, {})
    view = op("aten::transpose", (4, 64, 256))
    assert core.ratio(view, op("aten::transpose", (4, 128, 256))) == 1.0


def test_lists_of_tensors_have_their_shapes():
    strings = ["aten::cat", "[[[4, 64], [4, 64]], []]", '["TensorList", "Scalar"]']
    empty = np.full(1, ABSENT, np.int64)
    one = np.zeros(1, np.int32)
    args = {key: Column(one, np.array([at], np.int64), "string") for key, at in (("Input Dims", 1), ("Input type", 2))}
    trace = Trace(
        "hand.json", 0, "assumed", None, strings, empty + 1, empty + 11, one, np.full(1, Category.OPERATOR, np.uint8), one,
        empty, empty, args, [Lane("1", "1")],
    )  # fmt: skip
    found = shapes_of(trace)[0]
    assert found is not None and found.shapes == ((4, 64), (4, 64), ())
    assert touched(found) == 512
    assert shapes_of(replace(trace, args={}))[0] is None
