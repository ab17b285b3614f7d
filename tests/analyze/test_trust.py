"""How far answers can be trusted: the evidence of a replay, and the grade that all evidence allows."""

from dataclasses import replace

import numpy as np
import pytest

from lumos.analyze.trust import check_sound, grade, trust, with_unknown
from lumos.errors import LumosError
from lumos.graph.evidence import NEVER_MEASURED
from lumos.graph.table import Evidence, Kind
from lumos.result import plain
from lumos.vocabulary import Grade


def found(code, allowed, share=0.0):
    return Evidence(code, f"message of {code}", allowed, share)


def test_the_gravest_finding_decides_and_comes_first():
    assert plain(grade(())) == {"grade": "sound", "reasons": [], "unknown": 0.0}
    result = grade((found("a", Grade.LIMITED, 0.1), found("b", Grade.UNSOUND), found("c", Grade.LIMITED, 0.2)))
    assert result.grade is Grade.UNSOUND
    assert [reason.code for reason in result.reasons] == ["b", "c", "a"]  # of equal ones, that first which leaves most unknown
    assert (result.why, result.timed()) == ("message of b", "measured")
    assert grade((found("durations-modelled", Grade.LIMITED),)).timed() == "modelled"
    assert result.unknown == pytest.approx(0.3)


def test_what_several_ranks_have_in_common_is_one_reason():
    result = grade([found("a", Grade.LIMITED, share) for share in (0.1, 0.3, 0.2)])
    assert [reason.message for reason in result.reasons] == ["message of a (and 2 more like it)"]
    assert result.unknown == pytest.approx(0.3)  # of the rank of which most is unknown
    assert grade((found("a", Grade.LIMITED, 0.7), found("b", Grade.LIMITED, 0.7))).unknown == 1  # no more than everything


def test_unknown_shares_limit_an_answer_where_they_are_more_than_is_unknown_anyway():
    result = grade([found(code, Grade.SOUND, 0.015) for code in "ab"])
    assert (result.grade, result.why) == (Grade.SOUND, "")
    assert [with_unknown(result, known).grade for known in (0.02, 0.03, 0.04)] == [Grade.LIMITED, Grade.SOUND, Grade.SOUND]
    assert with_unknown(grade([found("a", Grade.UNSOUND, 0.5)]), 0.02).grade is Grade.UNSOUND


def test_an_unsound_recording_is_refused_with_the_reason():
    unsound = grade([found("a", Grade.UNSOUND)])
    with pytest.raises(LumosError, match=r"whatif: .*message of a; pass --force"):
        check_sound(unsound, "whatif")
    check_sound(unsound, "whatif", force=True)
    check_sound(grade([found("a", Grade.LIMITED)]), "whatif")


@pytest.fixture
def job(cpu_ahead):
    """A job whose CPU runs ahead, drawn by its kernels' µs: an operator launches each."""

    def drawn(kernels):
        graph = cpu_ahead(kernels)
        return replace(graph, kind=np.where(graph.on_device, graph.kind, Kind.OPERATOR).astype(np.uint8))

    return drawn


#: The kernels of 60 steps, 100 µs each.
EVEN = (100,) * 60


def test_a_job_that_its_replay_reproduces_is_sound(job):
    assert trust(job(EVEN)) == (Grade.SOUND, (), 0.0)


def test_a_few_rows_agree_by_chance(job):
    (reason,) = trust(job((100,) * 20)).reasons
    assert reason.code == "too-few-rows"
    assert "20 GPU rows and 20 operators in all steps, fewer than 50" in reason.message


def test_a_replay_that_is_off(job, shifted):
    graph = job(EVEN)
    # Each kernel ends 10 µs later than the one before it does: periods of 110 instead of 100 µs.
    kernels = np.flatnonzero(graph.on_device)
    late = shifted(graph, {int(task): (0, 10 * (i + 1)) for i, task in enumerate(kernels)})
    (reason,) = trust(graph, late).reasons
    assert reason.code == "replay-off"
    assert "110.0 µs instead of 100.0 µs (+10.0%)" in reason.message


def test_rows_that_break_a_rule_make_a_recording_wrong_where_they_are_more_than_its_steps_differ_by(job):
    for share, said in ((0.001, Grade.SOUND), (0.03, Grade.UNSOUND)):
        found = trust(replace(job(EVEN), evidence=(Evidence("kernels-lost", "", Grade.UNSOUND, share),)))
        assert (found.grade, found.reasons[0].code, found.unknown) == (said, "kernels-lost", share)


def test_waiting_that_was_kept_as_cpu_work(job):
    graph = job(EVEN)
    launches = np.flatnonzero(~graph.on_device).astype(np.int32)
    kept = replace(graph, unclaimed_wait_task=launches, unclaimed_wait_time=np.full(60, 3_000))
    result = trust(kept)  # 3 of every 100 µs
    assert (result.grade, [reason.code for reason in result.reasons]) == (Grade.LIMITED, ["kept-wait"])
    assert result.unknown == pytest.approx(0.03)
    none = replace(graph, unclaimed_wait_task=launches, unclaimed_wait_time=np.full(60, 500))
    assert trust(none).grade is Grade.SOUND  # 0.5 of every 100 µs moves no answer beyond its interval
    most = replace(graph, unclaimed_wait_task=launches, unclaimed_wait_time=np.full(60, 60_000))
    assert [reason.code for reason in trust(most).reasons] == ["no-step-scored", "kept-wait"]
    assert trust(most).grade is Grade.UNSOUND


def test_dependencies_without_a_schedule(job):
    graph = job(EVEN)
    first = int(np.flatnonzero(graph.on_device)[0])
    pred = graph.pred.copy()
    pred[0] = first  # the first kernel waits for itself
    assert [reason.code for reason in trust(replace(graph, pred=pred)).reasons] == ["no-schedule"]


def test_times_that_were_never_measured_have_no_replay_to_judge(job):
    graph = job(EVEN)
    assert [r.code for r in trust(replace(graph, evidence=(found(NEVER_MEASURED, Grade.LIMITED),))).reasons] == [NEVER_MEASURED]
    assert trust(replace(graph, measured_start=None, measured_end=None)).grade is Grade.SOUND
