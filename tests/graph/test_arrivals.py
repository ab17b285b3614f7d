"""A loop that waits for batches of other processes: their pace, and what the loop takes after a change."""

from __future__ import annotations

import numpy as np
import pytest

from lumos.changes.changes import Changes
from lumos.changes.durations import Durations
from lumos.changes.whatif import answer_changes
from lumos.graph.build import build
from lumos.trace.table import Job
from lumos.vocabulary import Grade

MS = 1000
NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def loop(draw, work=(6,) * 6, batch=10, name=NEXT):
    """Steps of `work` ms of computation, in twelve operators, each after a batch. Another process makes a batch in `batch` ms, without
    a pause; one that is ready is there at once."""
    drawing, now = draw(), 0
    for number, each in enumerate(work):
        ready = max(now, number * batch * MS)
        drawing.row("user_annotation", name, now, ready - now)
        for i in range(12):
            drawing.op("aten::mul", ready + i * each * MS / 12, each * MS / 12)
        end = ready + each * MS
        drawing.step(number, now, end - now)
        now = end
    return drawing


def answered(trace, drawing, factor, glob="aten::mul"):
    job = Job((trace(drawing),))
    return answer_changes(job, build(job), Changes(durations=Durations.parse([f"{glob}={factor}"], (), (), ())))


def test_batches_at_even_times_have_a_pace(draw, trace):
    graph = build(Job((trace(loop(draw)),)))
    assert set(graph.arrivals.pace.tolist()) == {10 * MS * 1000}
    assert graph.arrivals.wait.tolist() == [1.0] * 5  # the first batch has no wait: nothing comes before it on its thread
    assert set(graph.duration[graph.arrivals.task].tolist()) == {4 * MS * 1000}
    assert graph.evidence == ()


@pytest.mark.parametrize(("factor", "expected"), [(0.5, 10), (1, 10), (1.5, 10), (2, 12), (3, 18)])
def test_the_slower_of_loop_and_loader_sets_the_step(draw, trace, factor, expected):
    found = answered(trace, loop(draw), factor)
    assert found.base.step_time_s == pytest.approx(10e-3)
    assert found.outcome.step_time_s == pytest.approx(expected * 1e-3)
    assert found.trust.grade is Grade.SOUND


@pytest.mark.parametrize("drawn", [{"work": (6, 6, 14, 4, 4, 6)}, {"work": (6, 6)}], ids=["one batch was ready", "two batches"])
def test_no_pace_is_read_where_the_loop_does_not_always_wait(draw, trace, drawn):
    graph = build(Job((trace(loop(draw, **drawn)),)))
    assert graph.arrivals is None
    assert [found.code for found in graph.evidence] == ["loader-waits"]


def test_no_pace_is_read_from_uneven_times(draw, trace):
    drawing = loop(draw)
    for row in drawing.rows[3 * 14 :]:
        row["ts"] += 6 * MS
    late = drawing.rows[3 * 14]
    late["ts"], late["dur"] = late["ts"] - 6 * MS, late["dur"] + 6 * MS
    assert build(Job((trace(drawing),))).arrivals is None


def test_a_loader_that_is_always_ready_kept_up_with_this_step_only(draw, trace):
    drawing = loop(draw, batch=0)
    slower, faster = (answered(trace, drawing, factor) for factor in (2, 0.5))
    assert slower.trust.grade is Grade.SOUND
    assert (faster.trust.grade, faster.trust.reasons[0].code) == (Grade.LIMITED, "loader-unseen")
    assert faster.outcome.step_time_s == pytest.approx(3e-3)
    assert faster.outcome.step_time_high_s >= faster.base.step_time_s
    own = loop(draw, batch=0, name=NEXT.replace("Multi", "Single"))
    assert answered(trace, own, 0.5).trust.grade is Grade.SOUND


def test_slower_processes_take_longer_for_a_batch(draw, trace):
    job = Job((trace(loop(draw)),))
    found = answer_changes(job, build(job), Changes(durations=Durations.parse((), (), (), ["0=2"])))
    assert found.outcome.step_time_s == pytest.approx(20e-3)
    assert np.isclose(answered(trace, loop(draw), 0, glob=f"operator:{NEXT}").outcome.step_time_s, 6e-3)
