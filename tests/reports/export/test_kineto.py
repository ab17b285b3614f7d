"""Predicted jobs written as profiler files: Lumos reads them and replays the same step."""

import gzip
import json
from collections import Counter
from dataclasses import replace

import pytest

from lumos.analyze.replay import replay
from lumos.cost.cluster import load_cluster
from lumos.errors import UsageError
from lumos.graph.build import build
from lumos.model import load_model
from lumos.plan.job import PlannedJob
from lumos.plan.plan import Plan
from lumos.plan.profiles import framework_profile
from lumos.prediction.predict import predict_job
from lumos.prediction.ranks import expand
from lumos.reports.export.kineto import write_kineto
from lumos.simulation import simulate
from lumos.trace import read

SMALL = replace(load_model("llama3.2-1b"), layers=4, vocab=1024)
MIXTURE = replace(load_model("qwen3-30b-a3b"), layers=4, vocab=1024)
JOBS = {
    "tensor and pipeline": (SMALL, Plan(1024, 8, tp=2, pp=2, dp=2, zero=1, sequence_parallel=True), "nemo"),
    "interleaved": (SMALL, Plan(1024, 8, pp=2, vpp=2, schedule="interleaved", dp=2, zero=1), "megatron-core"),
    "fully sharded": (SMALL, Plan(1024, 8, dp=4, zero=3), "fsdp2"),
    "context": (SMALL, Plan(2048, 4, cp=4, zero=1), "megatron-core"),
    "experts": (MIXTURE, Plan(1024, 8, ep=4, dp=4, zero=1), "megatron-core"),
    "old": (SMALL, Plan(1024, 8, tp=2, dp=2, recompute="full"), "megatron-2021"),
}


def predicted(name):
    model, plan, framework = JOBS[name]
    return predict_job(PlannedJob(model, plan, framework_profile(framework), load_cluster("h100")), coarse=False)


@pytest.mark.parametrize("name", JOBS)
def test_replay_of_the_files_gives_the_predicted_step(tmp_path, name):
    prediction = predicted(name)
    written = write_kineto(str(tmp_path), prediction)
    assert len(written) == prediction.job.plan.devices
    graph = build(read(str(tmp_path)))
    result = replay(graph, simulate(graph))
    assert len(graph.ranks) == prediction.job.plan.devices
    longest = max(step.measured_ns for step in result.steps)
    assert longest * 1e-9 == pytest.approx(prediction.time.time_s, rel=0.001)
    assert result.max_abs_error is not None and result.max_abs_error < 0.001


def facts(graph):
    """The number of collectives of each rank by kind, input bytes and size of the group."""
    found = graph.collectives
    columns = (found.task, found.kind, found.nbytes, found.size, found.peer)
    ranks = graph.rank_of_task
    return Counter(
        (int(ranks[t]), found.kinds[k], n, size, peer) for t, k, n, size, peer in zip(*(c.tolist() for c in columns), strict=True)
    )


def sized_alike(found):
    """The counts without the size of the group: for a message it is two in a predicted job, in files that of the communicator."""
    out = Counter()
    for (rank, kind, nbytes, size, peer), count in found.items():
        out[rank, kind, nbytes, None if kind.is_transfer else size, peer] += count
    return out


@pytest.mark.parametrize("name", JOBS)
def test_a_collective_says_the_same_in_a_predicted_job_and_in_its_files(tmp_path, name):
    prediction = predicted(name)
    write_kineto(str(tmp_path), prediction)
    plan, folded = prediction.job.plan, prediction.timeline.graph
    measured = sized_alike(facts(build(read(str(tmp_path)))))
    assert sized_alike(facts(expand(folded, plan, prediction.collectives, 8).graph)) == measured
    peers = plan.tp * plan.cp * plan.dp
    of_stages = Counter({(r // peers, k, n, s, p if p < 0 else p // peers): c for (r, k, n, s, p), c in measured.items() if r % peers == 0})
    assert sized_alike(facts(folded)) == of_stages


def test_rows_look_like_a_profilers(tmp_path):
    write_kineto(str(tmp_path), predicted("tensor and pipeline"), ranks="stages")
    files = sorted(p.name for p in tmp_path.iterdir())
    assert files == ["rank0.json.gz", "rank4.json.gz"]
    document = json.loads(gzip.decompress((tmp_path / "rank4.json.gz").read_bytes()))
    assert document["distributedInfo"]["rank"] == 4
    events = document["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    launches = {e["args"]["correlation"] for e in events if e.get("name") == "cudaLaunchKernel"}
    assert {e["args"]["correlation"] for e in kernels} == launches
    reduce = next(e for e in kernels if e["args"].get("Collective name") == "_reduce_scatter_base")
    assert reduce["args"]["Process Group Ranks"] in ("[4, 5]", "[4, 6]")
    assert {e["args"]["Collective name"] for e in kernels if "Src Rank" in e["args"] or "Dst Rank" in e["args"]} == {"send", "recv"}


def test_coarse_predictions_are_refused(tmp_path):
    model, plan, framework = JOBS["old"]
    coarse = predict_job(PlannedJob(model, plan, framework_profile(framework), load_cluster("h100")), coarse=True)
    with pytest.raises(UsageError, match="kernel granularity"):
        write_kineto(str(tmp_path), coarse)
