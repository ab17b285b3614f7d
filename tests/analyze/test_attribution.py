import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lumos.analyze.loop.steps import members
from lumos.analyze.task_class import has_modules, modules, operators
from lumos.graph.places import innermost
from lumos.trace.table import Category


def test_device_work_belongs_to_the_innermost_operator_of_its_launch(launched):
    job, graph = launched
    assert operators(job, members(graph)).tolist() == [2, -1, -1, 2, 6]


def test_backward_work_belongs_to_the_module_of_its_forward(launched):
    job, graph = launched
    assert has_modules(job)
    assert modules(job, members(graph)).tolist() == [-1, -1, -1, 0, 0]


@st.composite
def nested(draw):
    """Properly nested intervals, as (start, end), in any order."""
    out = []

    def fill(start, end, depth):
        at = start
        while depth and end - at >= 2 and draw(st.booleans()):
            low = draw(st.integers(at, end - 1))
            at = draw(st.integers(low + 1, end))
            out.append((low, at))
            fill(low, at, depth - 1)

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
