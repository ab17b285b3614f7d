"""A job is what its heavy work shows: the names of operators, and kernels that take no time, change no answer."""

import gzip
import json
from functools import cache
from pathlib import Path

import pytest
from tests.like_recorded import without_origin

from lumos.changes.changes import Changes
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.graph.build import build
from lumos.operators.shaped import ShapedOperator, product
from lumos.plan.configuration import Settings, job_from
from lumos.prediction.predict import predict_job
from lumos.reports.export.kineto import write_kineto
from lumos.segment.segment import Cut
from lumos.trace import read

CHANGES = ("layers=24", "microbatches=16", "dp=4")


def renamed(events):
    """Every operator that PyTorch does not have belongs to another library."""
    return [{**e, "name": e["name"].replace("lumos::", "mine::")} for e in events]


def without_aten(events):
    """Multiplications are called as Transformer Engine calls them."""
    return [{**e, "name": "te::general_gemm" if e["name"] == "aten::mm" else e["name"]} for e in events]


def sprinkled(events):
    """After every fourth kernel another one of 2 ns, launched by the operator that launched that one."""
    launches = {e["args"]["correlation"]: e for e in events if e.get("cat") == "cuda_runtime"}
    out, kernels = [], 0
    for e in events:
        out.append(e)
        kernels += e.get("cat") == "kernel"
        if e.get("cat") == "kernel" and kernels % 4 == 0:
            launch, ids = launches[e["args"]["correlation"]], {"correlation": 10**7 + kernels, "External id": 10**7 + kernels}
            where = {key: e["args"][key] for key in ("device", "context", "stream")}
            out.append({**e, "name": "tiny_fill_kernel", "ts": e["ts"] + e["dur"], "dur": 0.002, "args": {**where, **ids}})
            out.append({**launch, "ts": launch["ts"] + launch["dur"], "dur": 0.002, "args": ids})
    return out


class Rewritten:
    """The files of a predicted job with other events, and the steps that its changes take."""

    def __init__(self, folder: Path, rewrite=lambda events: events):
        job = job_from(Settings(model="gpt3-126m", cluster="h100", gpus=8, global_batch=16, seq=1024, tp=2, pp=2))
        write_kineto(str(folder), predict_job(job), ranks="all")
        for path in folder.glob("*.json.gz"):
            with gzip.open(path, "rt") as file:
                document = json.load(file)
            named = [e for e in document["traceEvents"] if "args" in e]
            document["traceEvents"] = rewrite(named)
            with gzip.open(path, "wt", compresslevel=1) as file:
                json.dump(document, file)
        self.traces = without_origin(read(str(folder)))
        self.graph = build(self.traces)
        self.cut = Cut(self.traces, self.graph)

    @cache  # noqa: B019
    def step(self, change):
        return answer_changes(self.traces, self.graph, Changes(parse_settings([change])), self.cut).outcome.step_time_s


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return Rewritten(tmp_path_factory.mktemp("original"))


@pytest.mark.parametrize("rewrite", [renamed, without_aten, sprinkled])
def test_neither_names_nor_tiny_kernels_change_an_answer(original, tmp_path, rewrite):
    other = Rewritten(tmp_path, rewrite)
    for change in CHANGES:
        assert other.step(change) == pytest.approx(original.step(change), rel=0.01), change


@pytest.mark.parametrize(
    ("shapes", "sizes"),
    [
        (((64, 32), (32, 16)), (64, 16, 32, 1)),
        (((4, 64, 32), (16, 32)), (256, 16, 32, 1)),
        (((), (8,), (64, 32), (16, 32)), (64, 16, 32, 1)),
        (((8, 64, 32), (8, 32, 16)), (64, 16, 32, 8)),
        (((64, 32), (31, 16)), None),
    ],
)
def test_the_factors_of_another_librarys_multiplication_are_those_that_fit(shapes, sizes):
    o = ShapedOperator("te::general_gemm", shapes, ("",) * len(shapes), multiplies=True)
    assert product(o) == sizes
    assert product(o._replace(multiplies=False)) is None
