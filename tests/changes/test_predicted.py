"""A predicted job written as profiler files, which say what was predicted, and moved to other plans, clusters and networks."""

from dataclasses import replace

import msgspec
import pytest
from tests.like_recorded import like_recorded

from lumos.changes.changes import Changes
from lumos.changes.durations import Durations
from lumos.changes.grid import evaluate, parse_grid
from lumos.changes.hardware import network
from lumos.changes.predicted import predicted_job, with_settings
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.cost.cluster import load_cluster
from lumos.errors import LumosError, UsageError
from lumos.graph.build import build
from lumos.plan.configuration import Settings, job_from
from lumos.plan.plan import PlanError
from lumos.prediction.predict import predict_job
from lumos.reports.export.kineto import write_kineto
from lumos.searching.facade import search
from lumos.segment.outline import outline_of
from lumos.segment.segment import segment
from lumos.trace import read
from lumos.vocabulary import Grade, Phase

PLAN = Settings(model="gpt3-126m", cluster="h100", gpus=8, global_batch=16, seq=1024, tp=2, pp=2)


class Written:
    """A job, and its trace and graph as read back from files."""

    def __init__(self, folder, settings=PLAN, ranks="all"):
        self.job = job_from(settings)
        self.folder = str(folder)
        write_kineto(self.folder, predict_job(self.job, coarse=False), ranks=ranks)
        self.traces = read(self.folder)
        self.graph = build(self.traces)

    def whatif(self, *words, **changes):
        return answer_changes(self.traces, self.graph, Changes(parse_settings(words), **changes))

    def truth(self, *words):
        return predict_job(with_settings(self.job, parse_settings(words)), coarse=False).time.time_s


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return Written(tmp_path_factory.mktemp("job"))


@pytest.mark.parametrize(
    "settings",
    [
        PLAN,
        Settings(model="mixtral-8x7b", cluster="h100", gpus=8, global_batch=8, seq=2048, tp=2, ep=2, pp=2),
        Settings(model="llama3-8b", cluster="gb200", gpus=8, global_batch=16, seq=4096, framework="fsdp2", zero=3, recompute="selective"),
    ],
)
def test_the_files_say_what_was_predicted(tmp_path, settings):
    job = Written(tmp_path, settings, ranks="stages")
    found = predicted_job(job.traces)
    assert (found.model, found.plan, found.framework, found.cluster) == (job.job.model, job.job.plan, job.job.framework, job.job.cluster)


@pytest.mark.parametrize("change", ["tp=1", "tp=4", "pp=1", "dp=4", "cp=2", "vpp=2", "seq=2048", "layers=24", "zero=0", "precision=fp8"])
def test_a_changed_plan_is_what_predict_says_of_it(written, change):
    found = written.whatif(change)
    assert found.outcome.step_time_s == pytest.approx(written.truth(change), rel=0.005)
    assert found.outcome.step_time_low_s < found.outcome.step_time_s < found.outcome.step_time_high_s
    assert found.trust.grade is Grade.LIMITED and found.share.modelled == 1.0


def test_no_change_of_plan_is_the_predicted_step(written):
    found = written.whatif("tp=2")
    assert found.outcome.step_time_s == pytest.approx(found.base.step_time_s)
    assert found.moved == ()


def test_durations_of_a_prediction_that_is_made_anew_are_refused(written):
    faster = Durations.parse(["*nccl*=0.5"], (), (), ())
    with pytest.raises(LumosError, match="write that with --kineto FOLDER"):
        written.whatif("tp=4", durations=faster)
    assert written.whatif(durations=faster).outcome.step_time_s < written.whatif("tp=2").base.step_time_s


def test_files_that_were_changed_since_are_refused(written):
    slower = replace(written.graph, duration=written.graph.duration * 2)
    with pytest.raises(LumosError, match="it was changed since, or another release wrote it"):
        answer_changes(written.traces, slower, Changes(parse_settings(["tp=4"])), force=True)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"origin": "predicted"}, "does not say which job was predicted"),
        ({"origin": "predicted", "job": {"model": {"layers": -1}}}, "is no job"),
        ({"origin": "predicted", "job": {"model": 7, "plan": [], "framework": None, "cluster": ""}}, "is no job"),
    ],
)
def test_what_no_prediction_writes_is_refused(written, said, message):
    traces = tuple(replace(trace, metadata={**trace.metadata, "lumos": said}) for trace in written.traces.traces)
    with pytest.raises(LumosError, match=message):
        answer_changes(replace(written.traces, traces=traces), written.graph, Changes(parse_settings(["tp=4"])))


def test_files_of_two_predictions_are_refused(written):
    first, *others = written.traces.traces
    said = {**first.metadata["lumos"], "job": {}}
    mixed = replace(written.traces, traces=(replace(first, metadata={**first.metadata, "lumos": said}), *others))
    with pytest.raises(LumosError, match="of another prediction than"):
        predicted_job(mixed)


def test_the_answer_has_memory_and_utilization(written):
    outcome = written.whatif("pp=4").outcome
    assert 0 < outcome.model_flops_utilization < 1
    assert outcome.memory.fits
    assert outcome.memory.parameters_bytes < written.whatif("pp=2").outcome.memory.parameters_bytes
    assert sum(outcome.breakdown) == pytest.approx(outcome.step_time_s)


def test_faster_links_and_devices_take_less_time(written):
    faster = written.whatif(network=("bandwidth=x2",))
    assert faster.outcome.step_time_s < faster.base.step_time_s
    assert written.whatif(network=("bandwidth=x1,latency=x1",)).outcome.step_time_s == pytest.approx(faster.base.step_time_s)
    assert written.whatif(cluster="b200").outcome.step_time_s < written.whatif(cluster="h100").outcome.step_time_s


def test_a_plan_that_breaks_a_rule_is_refused(written):
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


def test_a_search_starts_from_what_was_predicted(written, tmp_path):
    found = search(written.folder, tp=(1, 2), refine=1)
    assert (found.problem.model, found.problem.gpus, found.problem.global_batch) == (written.job.model, 8, 16)
    recorded = like_recorded(tmp_path, predict_job(written.job, coarse=False), ranks="stages")
    with pytest.raises(LumosError, match="a recording, which does not say what its model and plan are; lumos whatif PATH --grid"):
        search(recorded)


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
    assert {row.repeats for row in outline_of(found).rows if row.block == "layer"} == {6}


def test_recordings_of_one_stage_of_a_pipeline_are_refused(tmp_path):
    job = like_recorded(tmp_path, predict_job(job_from(PLAN), coarse=False), ranks="all")
    part = replace(job, traces=job.traces[:2])
    with pytest.raises(LumosError, match="at least one rank of every pipeline stage"):
        answer_changes(part, build(part), Changes(parse_settings(["layers=24"])))
