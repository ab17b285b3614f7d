"""A recorded job without a pipeline, spread over stages: the times of its passes are known, so those of the pipeline follow by hand."""

import pytest
from tests.changes.layout.pipeline.test_recut import ONE_F_ONE_B, pipeline
from tests.changes.layout.test_replicated import job_of
from tests.graph_contract import check_graph

from lumos.changes.changes import Changes
from lumos.changes.layout.measured_layout import measured_layout
from lumos.changes.layout.pipeline.recorded import recorded_pipeline
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.cost.cluster import load_cluster
from lumos.cost.collective_model import collective
from lumos.errors import LumosError, UsageError
from lumos.segment.segment import segment
from lumos.vocabulary import CollectiveKind

#: Layers of equal size: 1 ms forward and 2 ms backward each; the optimizer takes 0.5 ms.
EQUAL = (512, 512)
MS = 1_000_000


def step(found, *words):
    return answer_changes(*found, Changes(parse_settings(words)), force=True)


def message():
    """The activations of 16 rows of 512 values of four bytes."""
    return int(collective(CollectiveKind.SEND_RECEIVE, 2, 16 * 512 * 4, load_cluster("h100")).time)


def test_one_microbatch_goes_through_all_stages_in_turn(tmp_path):
    """The same passes as before, two messages more, and half of the optimizer's work on each stage."""
    answer = step(job_of(tmp_path, EQUAL, EQUAL), "pp=2")
    check_graph(answer.graph)
    by = 1e9 * (answer.outcome.step_time_s - answer.base.step_time_s)
    assert by == pytest.approx(2 * message() - 0.25 * MS, abs=20_000)
    assert answer.changes == ("pp = 2 (measured: 1)", "schedule = 1f1b")
    assert answer.trust.grade.value == "limited"
    assert "1, 1 layers in 2 chunks" in next(d.message for d in answer.diagnostics if d.code == "stages-assumed")


@pytest.mark.parametrize("order", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (2, 8), (4, 4)])
def test_the_bubble_is_that_of_the_schedule(tmp_path, order, stages, microbatches):
    """Each stage works microbatches · (F + B), and waits (stages − 1) · (F + B)."""
    answer = step(job_of(tmp_path, *[EQUAL] * 4), f"pp={stages}", f"microbatches={microbatches}", f"schedule={order}")
    stage_ms = 4 / stages * 3
    assert 1e3 * answer.outcome.step_time_s == pytest.approx((microbatches + stages - 1) * stage_ms + 0.5 / stages, rel=0.03)


def test_chunks_make_the_bubble_smaller(tmp_path):
    """With two chunks of a layer each the fill is half as long: (m + (p − 1) / v) · (F + B)."""
    answer = step(job_of(tmp_path, *[EQUAL] * 4), "pp=2", "vpp=2", "microbatches=4")
    assert 1e3 * answer.outcome.step_time_s == pytest.approx((4 + 1 / 2) * 6 + 0.25, rel=0.03)


def test_a_stage_with_more_layers_sets_the_pace(tmp_path):
    """Three layers on two stages. The first, with two of them, is done with two forward passes after 4 ms, and the other with the first
    microbatch after 2 + 1 + 2 ms; from then on the first works without a pause."""
    answer = step(job_of(tmp_path, *[EQUAL] * 3), "pp=2", "microbatches=8")
    assert 1e3 * answer.outcome.step_time_s == pytest.approx(8 * 6 + 1 + 0.5 * 2 / 3, rel=0.005)
    assert "2, 1 layers" in next(d.message for d in answer.diagnostics if d.code == "stages-assumed")


def test_the_ends_have_as_many_layers_as_is_said(tmp_path):
    """One layer on the first of two stages and two on the last, which sets the pace after the first microbatch has come to it."""
    answer = step(job_of(tmp_path, *[EQUAL] * 3), "pp=2", "microbatches=8", "first_layers=1")
    assert "1, 2 layers" in next(d.message for d in answer.diagnostics if d.code == "stages-assumed")
    assert "first_layers = 1" in answer.changes
    assert 1e3 * answer.outcome.step_time_s == pytest.approx(1 + 8 * 6 + 2 + 0.5 / 3, rel=0.01)
    with pytest.raises(UsageError, match="leave 1 of 3 layers, which the 0 other stages"):
        step(job_of(tmp_path, *[EQUAL] * 3), "pp=2", "first_layers=1", "last_layers=1")


def test_fewer_layers_than_stages_are_said(tmp_path):
    with pytest.raises(UsageError, match="2 layers cannot be spread over 4 chunks"):
        step(job_of(tmp_path, EQUAL, EQUAL), "pp=4")


def test_stages_beyond_what_can_be_computed_are_refused_at_once(tmp_path):
    with pytest.raises(LumosError, match=r"--set pp=10000000: the changed job would have about .* tasks"):
        step(job_of(tmp_path, EQUAL, EQUAL), "pp=10000000")


def test_passes_without_a_backward_pass_are_no_pipeline(tmp_path):
    with pytest.raises(LumosError, match="--set pp: rank 0 has no step with forward and backward passes"):
        step(job_of(tmp_path, EQUAL, EQUAL, training=False), "pp=2")


@pytest.mark.parametrize("asked", ["vpp=2", "schedule=1f1b", "first_layers=1", "last_layers=2"])
def test_what_a_pipeline_has_needs_one(tmp_path, asked):
    key = asked.partition("=")[0]
    with pytest.raises(LumosError, match=f"--set {key}: the job has no pipeline; ask for one with --set pp=N"):
        step(job_of(tmp_path, EQUAL, EQUAL), asked)


def test_microbatches_in_an_order_of_no_schedule_are_refused(tmp_path):
    """On the first of two stages the second microbatch runs forward before the first runs backward: one stage alone has no such order."""
    job, graph = pipeline(tmp_path, ONE_F_ONE_B)
    with pytest.raises(LumosError, match="a step runs its 4 microbatches neither one after the other nor first all of them forward"):
        recorded_pipeline(measured_layout(segment(graph, job)), job, 1)


def test_one_stage_is_the_recorded_job(tmp_path):
    answer = step(job_of(tmp_path, EQUAL, EQUAL), "pp=1")
    assert answer.outcome.step_time_s == answer.base.step_time_s
