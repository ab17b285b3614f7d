"""Operators of a changed job: around its work as around its like in the recording."""

import json
from pathlib import Path

import pytest
from tests.changes.layout.test_replicated import LARGE, SMALL, job_of
from tests.drawn_rank import DrawnRank

import lumos
from lumos.graph.table import Kind
from lumos.reports.export.kineto_changed import NestedRow, Nesting, OpenOperators
from lumos.trace import read
from lumos.trace.table import Category

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
EXAMPLE = EXAMPLES / "gpt-2rank-cpu"


@pytest.fixture
def nesting(tmp_path):
    """An operator of 10 to 50 us with two inside: of 20 to 30, with shapes, and of 30 to 40, which launches at 35."""
    rank = DrawnRank()
    rank.operator("outer", 10, 40)
    rank.operator("first", 20, 10, **{"Input Dims": [[2, 3]], "Input type": ["float"]})
    rank.operator("second", 30, 10)
    rank.call("cudaLaunchKernel", 35, 2)
    trace = read(rank.write(tmp_path / "rank0.json")).traces[0]
    rows_of = {trace.strings[name]: row for row, name in enumerate(trace.name.tolist())}
    return Nesting(trace), rows_of


def test_operators_go_on_as_long_as_the_recording_does(nesting):
    """Pieces of 5 ns: the outer operator's own, the first inside it, the call in the second, and then the first once more, with which the
    recording is gone back in: all begin anew."""
    known, row = nesting
    around, found = OpenOperators(known), []
    for i, name in enumerate(["outer", "first", "cudaLaunchKernel", "first"]):
        found += around.piece(row[name], 5 * i, 5 * i + 5)
    found += around.pause()
    outer, first, second = row["outer"], row["first"], row["second"]
    once = [NestedRow(first, 5, 10), NestedRow(second, 10, 15), NestedRow(outer, 0, 15)]
    assert found == [*once, NestedRow(first, 15, 20), NestedRow(outer, 15, 20)]


def test_operators_keep_what_is_known_of_their_inputs(nesting):
    known, row = nesting
    assert json.loads("{" + known.inputs(row["first"])[1:] + "}") == {"Input Dims": [[2, 3]], "Input type": ["float"]}
    assert known.inputs(row["second"]) == ""


def test_the_files_of_a_changed_job_have_shapes_and_nesting(tmp_path):
    """With one layer more than two: the operators have the shapes of the recording."""
    answer = lumos.whatif(EXAMPLE, layers=3)
    lumos.export(answer, kineto=tmp_path)
    before, after = lumos.read(EXAMPLE).traces[0], lumos.read(tmp_path).traces[0]
    shapes = [set(t.dense("Input Dims")[t.is_any(Category.OPERATOR)].tolist()) for t in (before, after)]
    assert len(shapes[1]) > 1
    texts = [{t.strings[i] for i in found if i >= 0} for t, found in zip((before, after), shapes, strict=True)]
    assert texts[1] <= texts[0]
    assert len(texts[1]) > 0.9 * len(texts[0])


def test_exchanges_that_a_change_adds_are_launched_on_their_own(tmp_path):
    """Four replicas of a process that was recorded alone: its exchange has a call, and its number is no other kernel's."""
    job, _ = job_of(tmp_path, SMALL, LARGE)
    answer = lumos.whatif(job, dp=4, base_cluster="h100", force=True)
    lumos.export(answer, kineto=tmp_path / "changed")
    graph = lumos.build(lumos.read(tmp_path / "changed"))
    assert {graph.collectives.kinds[k] for k in graph.collectives.kind} == {"all-reduce"}
    assert not [e for e in graph.evidence if "correlation" in e.message]
    assert lumos.replay(graph).step_time_ns * 1e-9 == pytest.approx(answer.outcome.step_time_s, rel=0.001)


@pytest.mark.parametrize("change", [{"dp": 8}, {"tp": 2}, {"cp": 2}])
def test_replaying_the_files_of_a_job_with_added_exchanges_takes_what_was_answered(tmp_path, change):
    """What is replayed, not the times that were written: threads are handed work, and wait, and streams wait for the same exchanges."""
    answer = lumos.whatif(EXAMPLES / "foreign" / "nn_Transformer__tf32", **change, force=True)
    lumos.export(answer, kineto=tmp_path)
    graph = lumos.build(lumos.read(tmp_path))
    replayed = lumos.replay(graph)
    steps = [step.replayed_ns for step in replayed.steps if step.basis == "period"]
    assert steps and steps == pytest.approx([1e9 * answer.outcome.step_time_s] * len(steps), rel=0.001)
    assert (graph.kind == Kind.RETURN).sum() == (answer.graph.kind == Kind.RETURN).sum()
    assert graph.duration[graph.kind == Kind.OPERATOR].sum() == answer.graph.duration[answer.graph.kind == Kind.OPERATOR].sum()
