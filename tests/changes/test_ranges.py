"""What operators and annotated ranges did, on recordings drawn by hand. Times are in ms from the begin of the recording."""

import json
from dataclasses import replace

import pytest

from lumos.changes.durations import Durations
from lumos.changes.ranges import inside
from lumos.graph.build import build
from lumos.simulation import simulate
from lumos.trace import read

MAIN, OTHER, GLOO = 100, 200, 300
TENSORS = {"Input Dims": [[[100]], []], "Input type": ["TensorList", ""]}
TENSOR = {"Input Dims": [[100]], "Input type": ["float"]}


def row(name, begin, end, tid=MAIN, cat="cpu_op", **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": 1e3 * begin, "dur": 1e3 * (end - begin), "args": args}


def ranged(name, begin, end, tid=MAIN, **args):
    return row(name, begin, end, tid, "user_annotation", **args)


@pytest.fixture
def recorded(tmp_path):
    def of(*rows):
        (tmp_path / "rank0.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": rows}))
        return read(str(tmp_path / "rank0.json"))

    return of


@pytest.fixture
def without(recorded):
    """What the recording takes after `--drop 'operator:extra'`, ms."""

    def of(*rows):
        job = recorded(*rows)
        return int(simulate(Durations(drops=("operator:extra",)).apply(build(job), job)).end.max()) / 1e6

    return of


def test_time_between_the_operators_of_a_range_is_the_ranges(without):
    """100 ms before and after the range, which takes 300 ms, 50 of them in its only operator."""
    assert without(row("a", 0, 100), ranged("extra", 100, 400), row("b", 150, 200), row("c", 400, 500)) == 200


def test_time_of_which_the_smaller_part_is_in_the_range_is_not(without):
    """Python from 100 to 150, of which the range begins at 140; Python from 200 to 300, of which the range has 90 ms."""
    assert without(row("a", 0, 100), ranged("extra", 140, 290), row("b", 150, 200), row("c", 300, 400)) == 250


def test_time_of_an_operator_around_a_range_is_the_ranges(without):
    """A node of the backward pass, from 100 to 400, does all of its work but 20 ms in the range."""
    around = row("a", 0, 100), row("node", 100, 400), row("c", 400, 500)
    assert without(*around, ranged("extra", 110, 390), row("b", 200, 250)) == 200


def test_python_between_operators_inside_an_operator_was_its_own_already(without):
    assert without(row("a", 0, 100), row("extra", 100, 400), row("b", 150, 200), row("c", 400, 500)) == 200


def test_a_collective_issued_in_a_range_is_the_ranges_and_one_issued_before_is_not(without):
    """The range takes 10 to 200. It waits for the collective of 6 to 96, which was issued before it, and then issues that of 100 to 190.
    Without what it does, the first still ends at 96, and 100 ms of the operator behind the range follow."""
    rows = [
        row("c10d::allreduce_", 0, 5, **TENSORS),
        ranged("gloo:all_reduce", 6, 96, GLOO, **TENSOR),
        ranged("extra", 10, 200),
        row("aten::ones", 10, 20),
        row("c10d::allreduce_", 98, 99, **TENSORS),
        ranged("gloo:all_reduce", 100, 190, GLOO, **TENSOR),
        row("aten::add_", 200, 300),
    ]
    assert without(*rows) == 96 + 100


def test_what_another_thread_does_while_the_range_waits_for_it_is_the_ranges(without):
    """The main thread hands over at 100 and waits until 300; the other thread works from 110 to 290."""
    rows = [row("a", 0, 100), ranged("extra", 100, 305), row("MulBackward0", 110, 290, OTHER), row("c", 305, 400)]
    assert without(*rows) == 100 + 95


def test_what_another_thread_does_on_its_own_is_not(without):
    """The other thread works until 390 without a pause, so that nothing waits for it."""
    rows = [row("a", 0, 100), ranged("extra", 100, 300), row("c", 300, 400), row("own", 20, 390, OTHER)]
    assert without(*rows) == 20 + 370


def test_ranges_of_a_graph_without_times_have_their_operators_only(recorded):
    job = recorded(row("a", 0, 100), ranged("extra", 100, 400), row("b", 150, 200), row("c", 400, 500))
    graph = build(job)
    mask = inside(graph, job, lambda name: name == "extra")
    assert int(graph.duration[mask].sum()) == 300_000_000
    bare = replace(graph, measured_start=None, measured_end=None)
    assert int(graph.duration[inside(bare, job, lambda name: name == "extra")].sum()) == 50_000_000
