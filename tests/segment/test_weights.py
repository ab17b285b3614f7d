"""The weights among the inputs of an operator."""

import json
from math import prod

import pytest

from lumos.graph.build import build
from lumos.operators.shaped import ShapedOperator
from lumos.segment.rank import Gradient, recordings_of, weight_shapes
from lumos.segment.segment import segment
from lumos.segment.sizes import Resized
from lumos.trace import read


@pytest.mark.parametrize(
    ("name", "shapes", "weights"),
    [
        ("aten::mm", ((64, 32), (32, 128)), ((32, 128),)),
        ("aten::addmm", ((128,), (64, 32), (32, 128)), ((128,), (32, 128))),
        ("aten::bmm", ((4, 64, 32), (4, 32, 64)), ()),
        ("aten::embedding", ((1000, 32), (4, 16)), ((1000, 32),)),
        ("aten::_grouped_mm", ((64, 32), (8, 32, 128), (8,)), ((8, 32, 128),)),
        ("aten::_grouped_mm", ((32, 64), (64, 128), (8,)), ()),
    ],
)
def test_the_weights_of_an_operator(name, shapes, weights):
    """Eight experts have a matrix each; what two activations give together, as a gradient, is no weight."""
    assert weight_shapes(ShapedOperator(name, shapes, ("float",) * len(shapes))) == weights


def row(name, start, duration, *shapes, dtype="float", number=-1, thread=1):
    args = {"Input Dims": list(map(list, shapes)), "Input type": [dtype] * len(shapes)}
    args |= {"Sequence number": number} if number >= 0 else {}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": thread, "ts": start, "dur": duration, "args": args}


def read_rows(tmp_path, *rows):
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": list(rows)}))
    job = read(str(path))
    return recordings_of(segment(build(job), job), job)[0]


def test_a_weight_that_two_operators_share_is_counted_once(tmp_path):
    """An embedding and a head with the same table of 100 by 8, whose gradient of half precision is gathered once."""
    rank = read_rows(
        tmp_path,
        row("aten::embedding", 0, 10, (100, 8), (4, 16), number=1),
        row("aten::mm", 10, 10, (64, 8), (8, 100), number=2),
        row("autograd::engine::evaluate_function: MmBackward0", 30, 10, number=2, thread=2),
        row("autograd::engine::evaluate_function: EmbeddingBackward0", 40, 10, number=1, thread=2),
        row("torch::autograd::AccumulateGrad", 50, 5, (100, 8), dtype="c10::BFloat16", thread=2),
    )
    assert rank.gradients == (Gradient(-1, (100, 8), 2, 4, (4,)),)
    assert rank.weights(Resized(rank.trace, rank.sizes, rank.sizes)) == {-1: 800}


def test_of_a_weight_spread_over_ranks_the_own_part_counts(tmp_path):
    """The outer multiplication is by the whole matrix of 64 by 32, the one inside it by this rank's half of it."""
    rank = read_rows(
        tmp_path,
        row("aten::mm", 0, 20, (16, 32), (32, 64), number=1),
        row("aten::mm", 5, 10, (16, 32), (32, 32)),
        row("autograd::engine::evaluate_function: MmBackward0", 30, 10, number=1, thread=2),
        row("torch::autograd::AccumulateGrad", 40, 5, (64, 32), thread=2),
    )
    assert rank.gradients == (Gradient(-1, (32, 32), 4, 3, (3,)),)


def test_a_weight_whose_whole_shape_another_has_in_part_is_a_part_as_well(tmp_path):
    """Of two ranks each has half of a matrix of 64 by 32 and half of one of 32 by 32. The latter's whole shape is that of the half of the
    former, which the rank multiplies by, and so no sign that it has all of it."""
    wide, square = ((16, 32), (32, 32)), ((16, 32), (32, 16))
    rank = read_rows(
        tmp_path,
        row("aten::mm", 0, 20, (16, 32), (32, 64), number=1),
        row("aten::mm", 5, 10, *wide),
        row("aten::mm", 20, 20, (16, 32), (32, 32), number=2),
        row("aten::mm", 25, 10, *square),
        row("autograd::engine::evaluate_function: MmBackward0", 50, 10, number=2, thread=2),
        row("torch::autograd::AccumulateGrad", 60, 5, (32, 32), thread=2),
        row("autograd::engine::evaluate_function: MmBackward0", 70, 10, number=1, thread=2),
        row("torch::autograd::AccumulateGrad", 80, 5, (64, 32), thread=2),
    )
    assert [prod(gradient.shape) for gradient in rank.gradients] == [32 * 16, 32 * 32]
