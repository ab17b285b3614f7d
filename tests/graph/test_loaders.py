"""A loop that waits for batches of other processes, after a change."""

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


@pytest.mark.parametrize("factor", [0.5, 3])
def test_waits_for_other_processes_stay_and_are_named(draw, trace, factor):
    """The loop waits 4 ms of each 10 for its batch. Whether the processes could have been faster is not recorded."""
    found = answered(trace, loop(draw), factor)
    assert found.base.step_time_s == pytest.approx(10e-3)
    assert found.outcome.step_time_s == pytest.approx((4 + 6 * factor) * 1e-3)
    assert (found.trust.grade, found.trust.reasons[0].code) == (Grade.LIMITED, "batches-awaited")
    truth = max(10, 6 * factor) * 1e-3  # a batch takes the processes 10 ms
    assert found.outcome.step_time_low_s <= truth <= found.outcome.step_time_high_s


def test_a_loader_that_is_always_ready_kept_up_with_this_step_only(draw, trace):
    drawing = loop(draw, batch=0)
    slower, faster = (answered(trace, drawing, factor) for factor in (2, 0.5))
    assert slower.trust.grade is Grade.SOUND
    assert (faster.trust.grade, faster.trust.reasons[0].code) == (Grade.LIMITED, "loader-unseen")
    assert faster.outcome.step_time_s == pytest.approx(3e-3)
    assert faster.outcome.step_time_high_s >= faster.base.step_time_s
    own = loop(draw, batch=0, name=NEXT.replace("Multi", "Single"))
    assert answered(trace, own, 0.5).trust.grade is Grade.SOUND
