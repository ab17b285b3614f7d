"""Recorded transfers on other hardware: the cost model is asked for the bytes that cross the links."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.changes.layout.test_precision import CONVOLUTION, factors, layout_of
from tests.changes.layout.test_replicated import job_of

from lumos.changes.changes import Changes
from lumos.changes.hardware import network, on_accelerator, on_host
from lumos.changes.layout.measured_layout import measured_layout
from lumos.changes.layout.regroup import Links, reexchange
from lumos.changes.layout.reprice import reprice
from lumos.changes.layout.rescale import Devices
from lumos.changes.machine import other_device
from lumos.changes.settings import parse_settings
from lumos.changes.structure import changed_layout
from lumos.changes.whatif import unchecked_answer
from lumos.cost.cluster import load_cluster
from lumos.cost.collective_model import collective
from lumos.cost.gemm_model import gemm
from lumos.errors import LumosError, UnknownDeviceError, UsageError
from lumos.graph.build import build
from lumos.graph.table import Kind
from lumos.segment.segment import segment
from lumos.trace import read
from lumos.vocabulary import CollectiveKind, DType, Grade

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "gpt-2rank-cpu"


def moved_to(layout, job, old, new):
    """The layout on another accelerator, priced."""
    devices = Devices(old.accelerator, new.accelerator)
    return reprice(on_accelerator(layout, job, *devices), job, devices)


@pytest.mark.parametrize(("kind", "parts"), [(CollectiveKind.ALL_REDUCE, 1), (CollectiveKind.ALL_GATHER, 4)])
def test_a_gather_is_costed_by_the_whole_buffer_not_one_ranks_part(kind, parts):
    job = read(str(EXAMPLE))
    graph = build(job)
    facts = replace(
        graph.collectives, kinds=(kind,), nbytes=np.full_like(graph.collectives.nbytes, 2**20), size=np.full_like(graph.collectives.size, 4)
    )
    graph = replace(graph, collectives=facts)
    old, new = load_cluster("h100"), network(load_cluster("h100"), ["bandwidth=x0.5"])
    found = reexchange(measured_layout(segment(graph, job)), job, Links(old, new))
    before, after = (int(collective(kind, 4, parts * 2**20, cluster).time) for cluster in (old, new))
    assert set(found.prices.best[facts.task].tolist()) == {after / before}


def test_the_cpu_of_another_host_takes_longer_or_is_unknown():
    job = read(str(EXAMPLE))
    graph = build(job)
    layout = measured_layout(segment(graph, job))
    works = graph.kind != Kind.COLLECTIVE  # a job on CPUs: all but its transfers
    known, unknown = on_host(layout, 1.5), on_host(layout, None)
    for column in (known.prices.best, known.prices.low, known.prices.high):
        assert np.array_equal(column, np.where(works, 1.5, 1.0))
    assert (known.changes, known.diagnostics) == (("host factor = 1.5",), ())
    assert np.array_equal(unknown.prices.best, np.ones(len(graph)))
    assert np.array_equal(unknown.prices.low, np.where(works, 0.85, 1.0))
    assert np.array_equal(unknown.prices.high, np.where(works, 1.15, 1.0))
    assert [d.code for d in unknown.diagnostics] == ["host-unknown"]


def product_of(tmp_path, kernel, *, shapes, dtype="float", device=None):
    """The layout of a product of matrices of 4096, and its job."""
    sizes = [4096, 4096], [4096, 4096]
    given = {"Input Dims": sizes, "Input type": [dtype, dtype], "Concrete Inputs": ["", ""]} if shapes else {}
    rows = [
        {"cat": "cpu_op", "name": "aten::mm", "tid": 1, "ts": 0, "dur": 20, "args": given},
        {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1, "ts": 5, "dur": 5, "args": {"correlation": 1}},
        {"cat": "kernel", "name": kernel, "tid": 7, "ts": 12, "dur": 900, "args": {"stream": 7, "device": 0, "correlation": 1}},
    ]
    path = tmp_path / "rank0.json"
    header = {"schemaVersion": 1} | ({"deviceProperties": [{"name": device}]} if device else {})
    path.write_text(json.dumps({**header, "traceEvents": [{"ph": "X", "pid": 1, **row} for row in rows]}))
    job = read(str(path))
    return measured_layout(segment(build(job), job)), job


@pytest.mark.parametrize("shapes", [True, False])
@pytest.mark.parametrize(("kernel", "dtype"), [("sm80_xmma_gemm_f32f32_tf32f32", DType.TF32), ("ampere_sgemm_128x64_tn", DType.FP32)])
def test_a_product_in_fp32_moves_at_the_rate_that_its_kernel_works_at(tmp_path, kernel, dtype, shapes):
    """A large product is bound by arithmetic. Without shapes its name says in which type."""
    layout, job = product_of(tmp_path, kernel, shapes=shapes)
    graph = layout.segmentation.graph
    old, new = load_cluster("a100"), load_cluster("b200")
    found = moved_to(layout, job, old, new)
    before, after = (int(gemm(4096, 4096, 4096, c.accelerator, dtype, cast=False).time) for c in (old, new))
    expected = after / before if shapes else old.accelerator.peak_flops[dtype] / new.accelerator.peak_flops[dtype]
    assert found.prices.best[graph.kind == Kind.KERNEL].tolist() == pytest.approx([expected])


@pytest.mark.parametrize(
    ("kernel", "least", "most"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", 312 / 989.4, 312 / 989.4),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT32x32x256_gemm", 312 / 989.4, 312 / 989.4),
        ("ampere_sgemm_128x64_tn", 19.5 / 66.9, 19.5 / 66.9),
        ("some_gemm", 19.5 / 66.9, 312 / 989.4),
    ],
)
def test_a_product_without_shapes_may_be_of_any_type_and_bound_by_memory(tmp_path, kernel, least, most):
    """From an A100 of 2.039 TB/s to an H100 of 3.35: a small product takes 0.61 times as long, whatever its type."""
    layout, job = product_of(tmp_path, kernel, shapes=False)
    found = moved_to(layout, job, load_cluster("a100-80gb"), load_cluster("h100"))
    of = layout.segmentation.graph.kind == Kind.KERNEL
    assert found.prices.best[of].tolist() == pytest.approx([(least * most) ** 0.5], rel=1e-3)
    assert found.prices.low[of].tolist() == pytest.approx([least / 1.3], rel=1e-3)
    assert found.prices.high[of].tolist() == pytest.approx([1.3 * 2.039 / 3.35], rel=1e-3)


def test_a_convolution_on_a_slower_device_keeps_a_part_of_what_it_took_beyond_its_arithmetic(tmp_path):
    """From an A100's 156 TFLOP/s in tf32 to a V100's 15.7 in fp32, 9.94 times less: of the 4 times that it took for its arithmetic it keeps
    4 ** (log 4 / log 9.94) = 2.31. The kernel that brings its input into order takes as much longer as the memory."""
    layout, job = layout_of(tmp_path, CONVOLUTION)
    found = moved_to(layout, job, load_cluster("a100-40gb"), load_cluster("v100"))
    assert factors(found) == pytest.approx([1.555 / 0.9, 9.94 * 2.31 / 4], rel=2e-3)


def test_the_same_cluster_changes_no_exchange():
    job = read(str(EXAMPLE))
    graph = build(job)
    facts = replace(
        graph.collectives,
        kinds=(CollectiveKind.ALL_REDUCE,),
        kind=np.zeros_like(graph.collectives.kind),
        size=np.full_like(graph.collectives.size, 2),
    )
    layout = measured_layout(segment(replace(graph, collectives=facts), job))
    found = reexchange(layout, job, Links(load_cluster("h100"), load_cluster("h100")))
    assert np.array_equal(found.prices.low, layout.prices.low) and np.array_equal(found.prices.high, layout.prices.high)


def test_fp32_takes_the_rate_of_fp32_where_the_new_device_has_no_tf32(tmp_path):
    layout, job = product_of(tmp_path, "sm80_xmma_gemm_f32f32_tf32f32", shapes=True)
    old, new = load_cluster("a100"), load_cluster("v100")
    found = moved_to(layout, job, old, new)
    before, after = (int(gemm(4096, 4096, 4096, c.accelerator, d, cast=False).time) for c, d in ((old, DType.TF32), (new, DType.FP32)))
    assert found.prices.best[layout.segmentation.graph.kind == Kind.KERNEL].tolist() == pytest.approx([after / before])
    unshaped, job = product_of(tmp_path, "sm80_xmma_gemm_f32f32_tf32f32", shapes=False)
    found = moved_to(unshaped, job, old, new)
    assert found.prices.best[unshaped.segmentation.graph.kind == Kind.KERNEL].tolist() == pytest.approx([156 / 15.7])


def test_a_type_that_the_new_device_lacks_is_refused_unless_another_is_asked_for(tmp_path):
    layout, job = product_of(tmp_path, "ampere_bf16_s16816gemm_bf16_128x128", shapes=True, dtype="c10::BFloat16")
    move = {"cluster": "v100", "base_cluster": "a100", "host_factor": 1.0}
    with pytest.raises(LumosError, match="multiplies in bf16, for which v100 has no rate; it has fp64, fp32, fp16"):
        changed_layout(layout, job, Changes(**move))
    changed_layout(layout, job, Changes(parse_settings(["precision=fp16"]), **move))


def test_two_factors_of_one_link_are_refused():
    with pytest.raises(UsageError, match="--network bandwidth: given twice, as x2 and as x4; give it once"):
        network(load_cluster("h100"), ["bandwidth=x2,bandwidth=x4"])


def test_the_device_is_asked_for_only_where_it_makes_an_answer_possible(tmp_path):
    """No cluster would show heads, or shapes; products in bf16 take another time on each."""
    _, job = product_of(tmp_path, "ampere_sgemm_128x64_tn", shapes=True)
    for words, error, text in (
        ("heads=4", LumosError, "do not show heads of a model"),
        ("dp=2", LumosError, "shows no backward pass"),
        ("precision=bf16", UnknownDeviceError, "the header names no device; which was it"),
    ):
        with pytest.raises(LumosError, match=text) as found:
            unchecked_answer(job, build(job), Changes(parse_settings([words])))
        assert type(found.value) is error


def test_microbatches_need_no_device_where_no_gradient_is_shown(tmp_path):
    """Two layers of 1 ms forward and 2 ms backward, and an update of 0.5 ms: the passes run twice."""
    job_of(tmp_path, (2048, 2048), (2048, 2048))
    path = next(iter(tmp_path.glob("*.json")))
    path.write_text(path.read_text().replace("Input Dims", "Some Dims").replace("NVIDIA H100 80GB HBM3", "Unknown 1"))
    job = read(str(path))
    found = unchecked_answer(job, build(job), Changes(parse_settings(["microbatches=2"])))
    assert [1e3 * each.step_time_s for each in (found.base, found.outcome)] == pytest.approx([6.5, 12.5], abs=0.05)


def test_a_stated_device_that_is_not_the_recorded_one_is_said(tmp_path):
    layout, job = product_of(tmp_path, "ampere_sgemm_128x64_tn", shapes=True, device="NVIDIA A100-SXM4-40GB")
    graph = layout.segmentation.graph
    (finding,) = other_device(job, graph, "h100")
    assert (finding.code, finding.grade) == ("other-device", Grade.LIMITED)
    assert "recorded on h100, and the header of" in finding.message
    assert other_device(job, graph, None) == other_device(job, graph, "a100-40gb") == ()
    unnamed = replace(job, traces=tuple(replace(t, metadata={}) for t in job.traces))
    assert other_device(unnamed, graph, "h100") == ()
