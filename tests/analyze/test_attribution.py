from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lumos.analyze.attribution import has_modules, innermost, modules, operators
from lumos.analyze.loop.steps import members
from lumos.trace.table import Category


def test_device_work_belongs_to_the_innermost_operator_of_its_launch(launched):
    job, graph = launched
    assert operators(job, members(graph)).tolist() == [2, -1, -1, 2, 6]


def test_backward_work_belongs_to_the_module_of_its_forward(launched):
    job, graph = launched
    assert has_modules(job)
    assert modules(job, members(graph)).tolist() == [-1, -1, -1, 0, 0]


def test_without_sequence_numbers_backward_work_has_no_module(launched):
    job, graph = launched
    (trace,) = job.traces
    trace.args.pop("Sequence number")
    assert modules(job, members(graph)).tolist() == [-1, -1, -1, 0, -1]


def test_what_the_backward_pass_recomputes_under_the_same_number_is_not_the_forward(launched, record):
    job, graph = launched
    trace = record(
        (Category.PYTHON, "nn.Module: Linear_0", 0, 0, 110),
        (Category.OPERATOR, "aten::linear", 0, 0, 100, {"Sequence number": 7}),
        (Category.OPERATOR, "aten::mm", 0, 10, 50),
        (Category.RUNTIME, "cudaLaunchKernel", 0, 20, 10, {"correlation": 1}),
        (Category.KERNEL, "gemm", 2, 30, 60, {"correlation": 1}),
        (Category.OPERATOR, "MmBackward0", 1, 200, 100, {"Sequence number": 7, "Fwd thread id": 1}),
        (Category.OPERATOR, "aten::mm", 1, 210, 50),
        (Category.RUNTIME, "cudaLaunchKernel", 1, 220, 10, {"correlation": 2}),
        (Category.KERNEL, "gemm", 2, 230, 100, {"correlation": 2}),
        # Recomputed by a node of the backward pass, whose thread counts for itself and has come to 7 as well.
        (Category.OPERATOR, "autograd::engine::evaluate_function: TanhBackward0", 1, 120, 60, {"Sequence number": 9, "Fwd thread id": 1}),
        (Category.PYTHON, "nn.Module: Tanh_0", 1, 125, 50),
        (Category.OPERATOR, "aten::tanh", 1, 130, 20, {"Sequence number": 7}),
    )
    assert modules(replace(job, traces=(trace,)), members(graph)).tolist() == [-1, -1, -1, 0, 0]


@st.composite
def nested(draw):
    """Properly nested intervals, as (start, end), in any order."""
    out = []

    def fill(start, end, depth):
        at = start
        while depth and end - at >= 2 and draw(st.booleans()):
            low = draw(st.integers(at, end - 1))
            high = draw(st.integers(low + 1, end))
            out.append((low, high))
            fill(low, high, depth - 1)
            at = high

    fill(0, 60, 4)
    return draw(st.permutations(out))


@given(nested(), st.lists(st.integers(-2, 62), min_size=1, max_size=8))
def test_innermost_is_the_shortest_that_contains_the_moment(record, spans, moments):
    rows = [(Category.OPERATOR, "op", 0, s, e - s) for s, e in spans] + [(Category.RUNTIME, "call", 0, t, 0) for t in moments]
    trace = record(*rows)
    calls = np.arange(len(spans), len(rows))
    found = innermost(trace, np.arange(len(spans)), calls)
    for moment, row in zip(moments, found.tolist(), strict=True):
        inside = [i for i, (s, e) in enumerate(spans) if s <= moment < e]
        if not inside:
            assert row == -1
        else:
            shortest = min(spans[i][1] - spans[i][0] for i in inside)
            assert row in inside and spans[row][1] - spans[row][0] == shortest
