"""Multiplications in less time than the device's peak rate allows."""

from __future__ import annotations

import json

import pytest

from lumos.cost.cluster import load_cluster
from lumos.graph.build import build
from lumos.trace import read
from lumos.vocabulary import Grade
from lumos.whatif.certainty.peak import above_peak_rate
from lumos.whatif.durations import Durations
from lumos.whatif.whatif import Changes, answer_changes


@pytest.fixture
def product(tmp_path):
    """One multiplication of 4,096 x 4,096 x 4,096 in bf16, 137.4 GFLOP, which takes 200 us on an H100."""
    size, queue = [4096, 4096], {"pid": 0, "tid": 7, "args": {"stream": 7, "device": 0, "correlation": 1}}
    shapes = {"Input Dims": [size, size], "Input type": ["c10::BFloat16", "c10::BFloat16"], "Concrete Inputs": ["", ""]}
    rows = [
        {"cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 20, "args": shapes},
        {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 5, "dur": 5, "args": {"correlation": 1}},
        {"cat": "kernel", "name": "gemm", "ts": 12, "dur": 200, **queue},
    ]
    events = [{"ph": "X", "pid": 1, "tid": 1, **row} for row in rows]
    device = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132, "totalGlobalMem": 85_000_000_000}]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": device, "traceEvents": events}))
    return read(path)


@pytest.mark.parametrize(("factor", "missing_us"), [("0.5", 38.9), ("0.8", 0), ("0", 0), ("2", 0)])
def test_what_is_missing_to_the_peak_rate(product, factor, missing_us):
    """989.4 TFLOP/s take 138.9 us: 100 us are too few, 160 us are not, and no time at all leaves the product out."""
    graph = build(product)
    altered = Durations.parse([f"gemm={factor}"], (), (), ()).apply(graph, product)
    found = above_peak_rate(graph, altered, product, load_cluster("h100").accelerator, 212e-6)
    assert [round(reason.share * 212, 1) for reason in found] == ([missing_us] if missing_us else [])


def test_an_impossible_kernel_makes_the_answer_limited(product):
    found = answer_changes(product, build(product), Changes(durations=Durations.parse(["gemm=0.5"], (), (), ())), force=True)
    assert found.trust.grade is not Grade.SOUND and "above-peak-rate" in [reason.code for reason in found.trust.reasons]
    assert found.outcome.step_time_high_s > found.outcome.step_time_s + 38e-6
