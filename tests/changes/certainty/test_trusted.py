"""What the trust in a recording means for an answer to a what-if."""


import pytest
from tests.drawn_rank import DrawnRank

from lumos.analyze.trust import SOUND, Trust
from lumos.changes.certainty.trusted import widened
from lumos.changes.changes import Changes
from lumos.changes.durations import Durations
from lumos.changes.grid import evaluate
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.graph.build import build
from lumos.trace import read
from lumos.vocabulary import Grade

FASTER = Changes(durations=Durations.parse(["*addmm*=0.5"], (), (), ()))


def limited(unknown):
    return Trust(Grade.LIMITED, (Diagnostic("kept-wait", "…"),), unknown)


def test_what_is_unknown_moves_both_ends(example):
    found = answer_changes(*example, FASTER)
    assert found.trust.grade is Grade.SOUND
    wide, by = widened(found, limited(0.1)), 0.1 * found.base.step_time_s
    assert wide.outcome.step_time_low_s == pytest.approx(found.outcome.step_time_low_s - by)
    assert wide.outcome.step_time_high_s == pytest.approx(found.outcome.step_time_high_s + by)
    assert wide.base == found.base
    assert "10.0% of the base's step" in wide.diagnostics[-1].message and "kept-wait" in wide.diagnostics[-1].message


def test_no_step_takes_less_than_no_time(example):
    assert widened(answer_changes(*example, FASTER), limited(1.0)).outcome.step_time_low_s == 0


def test_no_change_needs_no_margin(example):
    found = answer_changes(*example, Changes())
    assert widened(found, limited(0.1)).outcome == found.outcome


def test_unsound_evidence_is_refused_in_python_too(example):
    job, graph = example
    unsound = Trust(Grade.UNSOUND, (Diagnostic("kernels-lost", "half of the kernels are lost"),))
    with pytest.raises(LumosError, match="half of the kernels are lost"):
        answer_changes(job, graph, FASTER, trust=unsound)
    with pytest.raises(LumosError, match="half of the kernels are lost"):
        evaluate(job, graph, Changes(), {"scale:*addmm*": ("0.5",)}, trust=unsound)
    assert answer_changes(job, graph, FASTER, trust=unsound, force=True).trust.grade is Grade.UNSOUND


def one_step(folder, backward):
    """One step: a sort of 500 µs, then 60 operators of 5 µs launch a kernel of 20 µs each. The first kernel starts at 505 µs, the last
    ends at 1705 µs: the latency. In a loop the CPU needs 800 µs a step and the device 1200 µs, which sets the pace."""
    rank = DrawnRank()
    rank.step(4, 0, 800)
    rank.operator("aten::sort", 0, 500)
    for i in range(60):
        rank.operator(backward, 500 + 5 * i, 5)
        rank.call("cudaLaunchKernel", 501 + 5 * i, 4, ("mul", 505 + 20 * i, 20))
    job = read(rank.write(folder / "rank0.json"))
    return job, build(job)


def test_one_training_step_does_not_show_who_sets_the_pace(tmp_path):
    """A sort in half its time makes the latency 250 µs shorter, and changes nothing in a loop."""
    job, graph = one_step(tmp_path, "MulBackward0")
    sorting = Durations.parse(["aten::sort=0.5"], (), (), ())
    found = answer_changes(job, graph, Changes(durations=sorting))
    assert (found.base.step_time_s, found.outcome.step_time_s) == pytest.approx((1705e-6, 1455e-6))
    (reason,) = found.trust.reasons
    assert (found.trust.grade, reason.code) == (Grade.LIMITED, "one-step")
    assert "changes by -14.7%; a loop of that step would change by +0.0%" in reason.message
    assert found.trust.unknown == pytest.approx(250 / 1705)
    assert found.outcome.step_time_high_s > 1705e-6  # that of the loop is within the interval

    (reason,) = answer_changes(job, graph, Changes(parse_settings(["cuda_graphs=on"]))).trust.reasons
    assert reason.code == "one-step" and reason.message.endswith("--repeat compares the loop")

    loop = answer_changes(job, graph, Changes(durations=sorting, repeat=True))
    assert (loop.trust.grade, [reason.code for reason in loop.trust.reasons]) == (Grade.LIMITED, ["no-period"])
    assert (loop.base.step_time_s, loop.outcome.step_time_s) == pytest.approx((1200e-6, 1200e-6))


def test_one_step_of_inference_is_known_by_its_latency(tmp_path):
    job, graph = one_step(tmp_path, "aten::mul")
    assert answer_changes(job, graph, Changes(durations=Durations.parse(["aten::sort=0.5"], (), (), ()))).trust == SOUND
