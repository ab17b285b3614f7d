"""A predicted job written as profiler files, identified from them, and moved to other plans, clusters and networks."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from lumos.blocks.coefficients import shipped_step_coefficients
from lumos.blocks.price import Pricer
from lumos.changes.changes import Changes
from lumos.changes.durations import Durations
from lumos.changes.grid import evaluate, parse_grid
from lumos.changes.hardware import network
from lumos.changes.plan import identify as identify_module
from lumos.changes.plan.identify import Identification
from lumos.changes.plan.planned import with_settings
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.cost.cluster import load_cluster
from lumos.errors import LumosError, UsageError
from lumos.graph.build import build
from lumos.plan.configuration import Settings, job_from
from lumos.plan.plan import PlanError
from lumos.prediction.predict import predict_job
from lumos.reports.export.kineto import write_kineto
from lumos.segment.outline import outline
from lumos.segment.segment import segment
from lumos.trace import read
from lumos.vocabulary import Phase

PLAN = Settings(model="gpt3-126m", cluster="h100", gpus=8, global_batch=16, seq=1024, tp=2, pp=2)


class Written:
    """A job, and its trace and graph as read back from files. slower: factor on every kernel and link of the job."""

    def __init__(self, folder, settings=PLAN, slower=1.0, ranks="all", jitter=0.0):
        self.job = job_from(settings)
        c = shipped_step_coefficients()
        keys = ("gemm", "attention", "traffic", "collective")
        self.coefficients = msgspec.structs.replace(c, **{key: getattr(c, key) * slower for key in keys})
        prediction = self.predict(self.job)
        write_kineto(str(folder), prediction, ranks=ranks, jitter=jitter, clock_offset_ns=100_000, seed=3)
        self.traces = read(str(folder))
        self.graph = build(self.traces)
        self.plan = Identification(self.traces, self.graph)

    def predict(self, job):
        return predict_job(job, Pricer(job.cluster, self.coefficients), coarse=False)

    def whatif(self, *words, **changes):
        return answer_changes(self.traces, self.graph, Changes(parse_settings(words), **changes), self.plan)

    def truth(self, *words):
        return self.predict(with_settings(self.job, parse_settings(words), None)).time.time_s


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return Written(tmp_path_factory.mktemp("job"))


def test_the_plan_is_read_back_from_the_files(written):
    found = written.plan.on(written.job.cluster)
    assert found.agreement == pytest.approx(1.0)
    assert found.job.plan == written.job.plan
    assert found.job.model == written.job.model
    assert found.stage == (0, 0, 0, 0, 1, 1, 1, 1)


@pytest.mark.parametrize(
    "change", ["tp=1", "tp=4", "pp=1", "pp=4", "dp=4", "cp=2", "vpp=2", "seq=2048", "micro_batch=2", "layers=24", "zero=0"]
)
def test_a_changed_plan_is_what_predict_says_of_it(written, change):
    assert written.whatif(change).outcome.step_time_s == pytest.approx(written.truth(change), rel=0.01)


def test_no_change_of_plan_is_the_measured_step(written):
    found = written.whatif("tp=2")
    assert found.outcome.step_time_s == pytest.approx(found.base.step_time_s)
    assert found.base.step_time_s == pytest.approx(found.measured_step_s, rel=2e-3)
    assert found.moved == ()


def test_the_jobs_own_efficiency_carries_over(tmp_path):
    slow = Written(tmp_path, slower=1.5, ranks="stages")
    for change in ("tp=4", "layers=24"):
        assert slow.whatif(change).outcome.step_time_s == pytest.approx(slow.truth(change), rel=0.015)


@pytest.mark.parametrize(
    ("glob", "keys"),
    [
        ("*nccl*", ["collective"]),
        ("gemm*", ["gemm"]),
        ("device:*", ["gemm", "attention", "traffic", "collective"]),
        ("cpu:*", ["host", "step"]),
    ],
)
@pytest.mark.parametrize("change", ["tp=4", "layers=24"])
def test_changed_durations_carry_over_to_another_plan(written, glob, keys, change):
    found = written.whatif(change, durations=Durations.parse([f"{glob}=0.5"], (), (), ()))
    faster = msgspec.structs.replace(written.coefficients, **{key: getattr(written.coefficients, key) * 0.5 for key in keys})
    job = with_settings(written.job, parse_settings([change]), None)
    truth = predict_job(job, Pricer(job.cluster, faster), coarse=False).time.time_s
    assert found.outcome.step_time_s == pytest.approx(truth, rel=0.01)
    assert found.changes == (change.replace("=", " = "), f"scale {glob} by 0.5")


def test_a_slow_rank_is_one_of_the_new_plan(written):
    slow = Durations.parse((), (), (), ["15=1.5"])
    found = written.whatif("dp=4", durations=slow).outcome.step_time_s
    assert found > 1.1 * written.whatif("dp=4").outcome.step_time_s
    with pytest.raises(LumosError, match="no rank 15"):
        written.whatif("dp=1", durations=slow)


def test_dropped_collectives_leave_a_step_without_communication(written):
    found = written.whatif("tp=4", durations=Durations.parse((), ["*nccl*"], (), ())).outcome
    assert found.breakdown.exposed_communication_s + found.breakdown.overlapped_s == pytest.approx(0, abs=1e-4)
    assert found.step_time_s < written.whatif("tp=4").outcome.step_time_s


def test_mixtures_and_context_parallel_are_identified(tmp_path):
    moe = Settings(model="mixtral-8x7b", cluster="h100", gpus=8, global_batch=8, seq=2048, tp=2, ep=2, pp=2)
    cp = Settings(model="llama3.2-1b", cluster="h100", gpus=8, global_batch=4, seq=8192, tp=2, cp=2, pp=1)
    for number, settings in enumerate((moe, cp)):
        job = Written(tmp_path / str(number), settings, ranks="stages")
        found = job.plan.on(job.job.cluster)
        assert found.job.plan == job.job.plan
        assert found.agreement > 0.99


def test_the_answer_has_memory_and_utilization(written):
    outcome = written.whatif("pp=4").outcome
    assert 0 < outcome.model_flops_utilization < 1
    assert outcome.memory.fits
    assert outcome.memory.parameters_bytes < written.whatif("pp=2").outcome.memory.parameters_bytes
    assert sum(outcome.breakdown) == pytest.approx(outcome.step_time_s)


def test_faster_links_and_devices_take_less_time_and_other_devices_keep_no_measured_one(written):
    faster = written.whatif(network=("bandwidth=x2",))
    assert faster.outcome.step_time_s < faster.base.step_time_s
    assert written.whatif(network=("bandwidth=x1,latency=x1",)).outcome.step_time_s == pytest.approx(faster.base.step_time_s)
    other = written.whatif(cluster="b200")
    assert other.share.measured == 0.0 and other.outcome.step_time_s < written.whatif(cluster="h100").outcome.step_time_s


def test_a_plan_that_breaks_a_rule_and_ranks_of_one_stage_are_refused(written):
    part = replace(written.traces, traces=written.traces.traces[:2])
    with pytest.raises(LumosError, match="at least one rank of every pipeline stage"):
        answer_changes(part, build(part), Changes(parse_settings(["layers=24"])))
    with pytest.raises(PlanError, match="heads"):
        written.whatif("tp=5")
    with pytest.raises(UsageError, match="valid are"):
        written.whatif("schedule=fast")
    with pytest.raises(PlanError, match="experts"):
        written.whatif("ep=2")


def test_a_grid_of_plans(written):
    cells = evaluate(written.traces, written.graph, Changes(), parse_grid(["tp=2,5", "dp=2"]))
    assert [cell.settings for cell in cells] == [{"tp": "2", "dp": "2"}, {"tp": "5", "dp": "2"}]
    assert cells[0].step_time_s == pytest.approx(written.whatif("tp=2").outcome.step_time_s)
    assert cells[1].step_time_s is None
    assert "heads" in cells[1].refused


def test_a_latency_that_is_not_stated_cannot_change():
    h100 = load_cluster("h100")
    bare = msgspec.structs.replace(h100, fabric=msgspec.structs.replace(h100.fabric, latency_s=None))
    with pytest.raises(LumosError, match="states no latency"):
        network(bare, ["latency=x2"])


def test_network_words():
    h100 = load_cluster("h100")
    wide = network(h100, ["bandwidth=x2,latency=x0.5"])
    assert wide.node.nic_bytes_per_s == 2 * h100.node.nic_bytes_per_s
    for word in ("speed=x2", "bandwidth", "bandwidth=fast", "bandwidth=0"):
        with pytest.raises(UsageError, match="--network"):
            network(h100, [word])


def test_the_passes_of_a_pipeline_stage_are_separated(written):
    found = segment(written.graph, written.traces)
    first = [p.label for p in found.pieces if p.rank == 0]
    assert found.layers == 6  # of the 12, on each of two stages
    assert {lb.microbatch for lb in first if lb.phase == Phase.FORWARD and lb.layer >= 0} == set(range(8))
    assert {lb.microbatch for lb in first if lb.phase == Phase.BACKWARD and lb.layer >= 0} == set(range(8))
    assert {row.repeats for row in outline(found).rows if row.block == "layer"} == {6}


def test_a_plan_that_does_not_account_for_the_trace_is_reported(written, monkeypatch):
    found = replace(written.plan.on(written.job.cluster), agreement=0.8)
    monkeypatch.setattr(identify_module, "identify", lambda *_: found)
    answer = answer_changes(written.traces, written.graph, Changes(parse_settings(["microbatches=16"])))
    assert "plan-not-followed" in {d.code for d in answer.diagnostics}


def test_a_grid_identifies_the_job_once(written, monkeypatch):
    asked = []
    monkeypatch.setattr(identify_module, "identify", lambda *job: asked.append(job) or written.plan.on(written.job.cluster))
    cells = evaluate(written.traces, written.graph, Changes(), parse_grid(["tp=1,2,5", "dp=2,4"]))
    assert len([cell for cell in cells if cell.step_time_s]) == 4
    assert len(asked) == 1


def test_a_job_that_cannot_be_identified_is_refused_every_time_and_on_every_cluster(written):
    half = replace(written.traces, traces=written.traces.traces[:4])
    plan = Identification(half, build(half))
    for cluster in ("h100", "h100", "h200"):
        with pytest.raises(LumosError, match="every stage"):
            plan.on(load_cluster(cluster))
