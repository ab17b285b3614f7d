"""Recomputation of the layers of the recorded GPT (two CPU processes, four layers)."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from lumos.analyze.loop.steps import step_times
from lumos.changes.layout.measured_layout import measured_layout
from lumos.changes.layout.place import assemble_pieces
from lumos.changes.layout.recomputed import recompute
from lumos.graph.build import build
from lumos.segment.segment import segment
from lumos.simulation import simulate
from lumos.trace import read
from lumos.vocabulary import Phase

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "gpt-2rank-cpu"


@cache
def base():
    job = read(str(EXAMPLE))
    return job, measured_layout(segment(build(job), job))


def step(layout):
    """Mean latency of both ranks' steps, ns."""
    placed = assemble_pieces(layout)
    times = step_times(simulate(placed.graph), placed.owners).ranks
    return sum(time.latency_ns for time in times) / len(times)


def test_recomputation_runs_every_forward_layer_again():
    job, layout = base()
    again = recompute(layout, job, "full")
    extra = [i for i in again.ranks[0] if i.thread_of >= 0]
    assert len(extra) == 4 * 4  # layers, steps
    assert {layout.pieces[i.piece].label.phase for i in extra} == {Phase.FORWARD}
    assert step(again) > 1.1 * step(layout)
    assert step(recompute(again, job, "none")) == step(layout)


def test_a_repeated_layer_ends_before_its_last_multiplication_and_at_the_high_end_behind_it():
    job, layout = base()
    again = recompute(layout, job, "full")
    graph, segmentation = layout.segmentation.graph, layout.segmentation
    spared = np.array(sorted(again.spared))
    assert set(segmentation.phase[spared]) == {Phase.FORWARD}
    assert set(segmentation.layer[spared]) == {0, 1, 2, 3}
    names = {graph.names[i] for i in graph.name[spared]}
    assert {"aten::addmm", "aten::add"} <= names and "aten::gelu" not in names
    placed = assemble_pieces(again)
    repeats = np.array([i.thread_of >= 0 for items in again.ranks for i in items])[placed.instance] & np.isin(placed.source, spared)
    assert not placed.graph.duration[repeats].any() and not placed.low[repeats].any()
    assert (placed.high[repeats] == graph.duration[placed.source[repeats]]).all()
    assert [note.code for note in again.diagnostics] == ["recompute-assumed"]


def test_a_layer_that_ends_with_what_autograd_keeps_something_of_is_repeated_whole():
    job, layout = base()
    multiplied = [replace(trace, strings=["aten::mul" if s == "aten::add" else s for s in trace.strings]) for trace in job.traces]
    again = recompute(layout, replace(job, traces=tuple(multiplied)), "full")
    assert not again.spared and not again.diagnostics
    assert step(again) > step(recompute(layout, job, "full"))


def test_a_job_without_recomputation_has_none_to_leave_out():
    job, layout = base()
    assert recompute(layout, job, "none").changes == ("recompute = none (as measured)",)
    again = recompute(layout, job, "full")
    assert recompute(again, job, "full").changes == ("recompute = full", "recompute = full (as measured)")
    assert recompute(again, job, "none").changes == ("recompute = full", "recompute = none")
