from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lumos.analyze.flops import achieved_flops, operator_flops
from lumos.analyze.loop.steps import members
from lumos.graph.table import Kind, Processor, Step
from lumos.simulation.timeline import measured
from lumos.trace.table import Category, Job


@pytest.mark.parametrize(
    ("name", "shapes", "inputs", "expected"),
    [
        ("aten::mm", [[8, 4], [4, 2]], [], 2 * 8 * 4 * 2),
        ("aten::addmm", [[2], [8, 4], [4, 2]], [], 2 * 8 * 4 * 2),
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
        ("aten::mm", [[8, [4]], [4, 2]], [], None),
        ("aten::_scaled_dot_product_flash_attention", [[2, 3, [5], 7]] * 3, [], None),
        ("aten::relu", [[8, 4]], [], None),
        ("aten::_scaled_dot_product_flash_attention", [[2, 3, 5, 7]] * 3, ["", "", "", "0.", "False"], 4 * 2 * 3 * 5 * 5 * 7),
        ("aten::_scaled_dot_product_flash_attention", [[2, 3, 5, 7]] * 3, ["", "", "", "0.", "True"], 2 * 2 * 3 * 5 * 5 * 7),
        ("aten::_scaled_dot_product_flash_attention_backward", [[2, 3, 5, 7]] * 5, [], 10 * 2 * 3 * 5 * 5 * 7),
    ],
)
def test_operations_of_a_call(name, shapes, inputs, expected):
    assert operator_flops(name, shapes, inputs) == expected


def test_achieved_is_operations_over_the_time_of_all_calls(launched):
    job, graph = launched
    (found,) = achieved_flops(measured(graph), members(graph), job)
    assert (found.operator, found.shapes, found.calls, found.time_ns) == ("aten::mm", "[[8,4],[4,2]]", 2, 160_000)
    assert found.flops_per_s == pytest.approx(2 * 128 / 160e-6)


def test_without_shapes_nothing_is_achieved(launched):
    job, graph = launched
    job.traces[0].args.pop("Input Dims")
    assert achieved_flops(measured(graph), members(graph), job) == ()


def test_without_devices_the_operators_own_time_counts(draw_graph, record):
    trace = record((Category.OPERATOR, "aten::mm", 0, 0, 16_000, {"Input Dims": "[[8,4],[4,2]]"}))
    tasks = [(0, Kind.OPERATOR, "aten::mm", 0, 10), (0, Kind.OPERATOR, "aten::mm", 12, 16)]
    graph = draw_graph([Processor(0, False, "t")], tasks, steps=(Step(0, "s", 0, 99_000),))
    graph = replace(graph, event=np.array([0, 0], np.int32))  # two slices of one operator
    (found,) = achieved_flops(measured(graph), members(graph), Job((trace,)))
    assert (found.calls, found.time_ns) == (1, 14_000)
