"""How much an answer depends on single rows: which rows are left out, and what is said of an answer that moves."""

import json

import numpy as np
import pytest

import lumos
from lumos.analyze.loop.steady import altered, steady
from lumos.analyze.loop.steps import members
from lumos.changes.certainty import probe as probes
from lumos.changes.certainty.probe import launched_pairs, probe, probe_evidence, probe_of_base, probed_jobs
from lumos.graph.build import build
from lumos.graph.table import Kind
from lumos.simulation.durations import scale
from lumos.trace import read
from lumos.vocabulary import Grade


def rows_of(kernels, graph_of=0):
    """Rows in µs: so many launches of 10, with a kernel of 5 each; then a collective, and a graph launch of so many kernels."""
    rows, at = [], 0

    def row(cat, name, start, dur, tid, **args):
        rows.append({"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": dur, "args": args})

    names = [*(["add"] * kernels), "ncclDevKernel_AllReduce_Sum_f32"]
    for i, name in enumerate(names, 1):
        row("cuda_runtime", "cudaLaunchKernel", at, 10, 100, correlation=i)
        row("kernel", name, at + 10, 5, 7, correlation=i, stream=7, device=0, grid=[i, 1, 1])
        at += 10
    if graph_of:
        row("cuda_runtime", "cudaGraphLaunch", at, 10, 100, correlation=1000)
    for i in range(graph_of):
        row("kernel", "captured", at + 10 + 5 * i, 5, 7, correlation=1000, stream=7, device=0, grid=[1, 1, 1])
    return rows


@pytest.fixture
def job(tmp_path):
    def make(rows):
        (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": rows}))
        return read(str(tmp_path))

    return make


def test_pairs_are_kernels_with_a_call_of_their_own(job):
    """Neither a collective nor the kernels of a CUDA graph."""
    trace = job(rows_of(3, graph_of=2)).traces[0]
    pairs = launched_pairs(trace)
    assert [trace.strings[i] for i in trace.name[pairs[:, 0]]] == ["add"] * 3
    assert (trace.correlation[pairs[:, 0]] == trace.correlation[pairs[:, 1]]).all()


@pytest.mark.parametrize(("kernels", "left_out"), [(3, 1), (2000, 2)])
def test_one_kernel_in_a_thousand_is_left_out_with_its_launch(job, kernels, left_out):
    whole = job(rows_of(kernels))
    probed = probed_jobs(whole)
    assert probed.pairs == kernels and len(probed.jobs) == 2
    for each in probed.jobs:
        assert len(each.job.traces[0]) == len(whole.traces[0]) - 2 * left_out
        for kind, before in ((Kind.LAUNCH, kernels + 1), (Kind.KERNEL, kernels), (Kind.COLLECTIVE, 1)):
            assert int((each.base[0].graph.kind == kind).sum()) == before - (left_out if kind != Kind.COLLECTIVE else 0)
    again = probed_jobs(whole)
    assert [(a.base[0].graph.event == b.base[0].graph.event).all() for a, b in zip(probed.jobs, again.jobs, strict=True)] == [True, True]


def test_a_job_without_such_kernels_is_not_probed(job):
    cpu = job([row for row in rows_of(3) if row["cat"] == "cuda_runtime"])
    whole = members(build(job(rows_of(3))))
    assert probe(cpu, (whole, steady(whole)), 0.5, 0.0, lambda _, graph: graph) == ()


def test_a_question_is_asked_again_of_the_job_without_single_rows(job):
    """Half of all device work, asked of a job whose rows are all alike, moves nothing; one that the whole recording alone gives moves."""
    whole = job(rows_of(30))

    def halved(_, graph):
        return scale(graph, graph.on_device, 0.5)

    owners = members(build(whole))
    base = steady(owners)
    ratio = altered(base, members(halved(whole, owners.graph))).step_time_ns / base.step_time_ns
    assert probe(whole, (owners, base), ratio, 0.01, halved) == ()
    slower = scale(owners.graph, owners.graph.on_device, 90)
    found = altered(base, members(slower)).step_time_ns / base.step_time_ns
    (evidence,) = probe(whole, (owners, base), found, 0.01, lambda of, its: slower if of is whole else its)
    assert (evidence.code, evidence.grade, evidence.share) == ("probe", Grade.LIMITED, 1.0)
    assert probe_of_base(whole, owners, base) == ()
    assert all("base" not in vars(each) for each in probed_jobs(job(rows_of(30))).jobs)


def test_a_base_is_asked_for_what_a_change_makes_of_devices_beside_the_cpu(job, monkeypatch):
    """Devices that take three times as long; all work twice over, which is no other job; and half, for a change that nobody knows."""
    whole = job(rows_of(3))
    owners, asked = members(build(whole)), []
    graph = owners.graph
    monkeypatch.setattr(probes, "MANY_PAIRS", 1)
    monkeypatch.setattr(probes, "probe", lambda job, base, ratio, half, ask: asked.append(ask(job, graph).duration) or ())
    for changed in (scale(graph, graph.on_device, 3), scale(graph, graph.duration > 0, 2), None):
        probe_of_base(whole, owners, steady(owners), changed)
    for found, times in zip(asked, (3, 1, 0.5), strict=True):
        assert np.allclose(found, graph.duration * np.where(graph.on_device, times, 1), atol=1)


def test_the_time_of_the_kernels_themselves_is_no_dependence(job):
    """Three kernels of 100 µs and a collective of 200: tripled kernels make it 2.2 times as long, and 2 times without one of them."""
    rows = rows_of(3)
    for i, row in enumerate(each for each in rows if each["cat"] == "kernel"):
        row["ts"], row["dur"] = 10 + 100 * i, 100 if row["name"] == "add" else 200
    whole = job(rows)
    owners = members(build(whole))
    base = steady(owners)

    def tripled(_, graph):
        return scale(graph, graph.kind == Kind.KERNEL, 3)

    found = altered(base, members(tripled(whole, owners.graph))).step_time_ns / base.step_time_ns
    assert found == pytest.approx(2.2, abs=0.05)
    assert probe(whole, (owners, base), found, 0.01, tripled) == ()


def test_a_graph_that_is_given_is_not_probed(job, tmp_path):
    whole = job(rows_of(30))
    found = lumos.whatif(whole, graph=build(whole), scale={"add": 0.5})
    assert "not-probed" in [reason.code for reason in found.trust.reasons]
    assert "not-probed" not in [reason.code for reason in lumos.whatif(whole, scale={"add": 0.5}).trust.reasons]


def test_an_answer_that_moves_by_more_than_its_interval_depends_on_single_rows():
    assert probe_evidence(0.5, (0.51, 0.49), 0.02, 5000) == ()
    (few,), (many,) = (probe_evidence(0.506, (0.506, 0.736), 0.02, pairs) for pairs in (999, 4350))
    assert (few.code, few.grade, many.grade) == ("probe", Grade.LIMITED, Grade.UNSOUND) and few.share == pytest.approx(0.23)
    assert "without 4 kernels of 4,350" in many.message and "0.736 times as long instead of 0.506 times" in many.message
