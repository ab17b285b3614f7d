"""Multiplications in less time than the device's peak rate allows."""


import pytest
from tests.drawn_rank import DrawnRank

from lumos.changes.certainty.possible import above_peak_rate
from lumos.changes.changes import Changes
from lumos.changes.durations import Durations
from lumos.changes.grid import evaluate
from lumos.changes.whatif import answer_changes
from lumos.cost.cluster import load_cluster
from lumos.graph.build import build
from lumos.trace import read
from lumos.vocabulary import Grade


@pytest.fixture
def product(tmp_path):
    """One multiplication of 4,096 x 4,096 x 4,096 in bf16, 137.4 GFLOP, which takes 200 us on an H100."""
    return recorded(tmp_path, "aten::mm", [4096, 4096], 200)


@pytest.fixture
def sum_of_two(tmp_path):
    """Two tensors of 65,536 x 4,096 values in bf16 are added: 1.61 GB are read and written, in 600 us on an H100."""
    return recorded(tmp_path, "aten::add", [65536, 4096], 600)


def recorded(tmp_path, operator, size, us):
    shapes = {"Input Dims": [size, size], "Input type": ["c10::BFloat16", "c10::BFloat16"], "Concrete Inputs": ["", ""]}
    rank = DrawnRank()
    rank.operator(operator, 0, 20, **shapes)
    rank.call("cudaLaunchKernel", 5, 5, ("gemm", 12, us))
    device = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132, "totalGlobalMem": 85_000_000_000}]
    return read(rank.write(tmp_path / "rank0.json", deviceProperties=device))


@pytest.mark.parametrize(("factor", "missing_us"), [("0.5", 38.9), ("1e-9", 138.9), ("0.8", 0), ("0", 0), ("2", 0)])
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


@pytest.mark.parametrize(("factor", "short"), [("0.5", True), ("0.9", False), ("2", False)])
def test_what_is_missing_to_the_rate_of_the_memory(sum_of_two, factor, short):
    """All but what the cache holds must pass the memory: (1.61 GB − 50 MB) at 3.35 TB/s take 465.9 us, so 300 us are 165.9 too few."""
    accelerator = load_cluster("h100").accelerator
    assert (accelerator.cache_bytes, accelerator.memory_bytes_per_s) == (50e6, 3.35e12)
    graph = build(sum_of_two)
    altered = Durations.parse([f"gemm={factor}"], (), (), ()).apply(graph, sum_of_two)
    found = above_peak_rate(graph, altered, sum_of_two, accelerator, 612e-6)
    assert [reason.share * 612 for reason in found] == ([pytest.approx(465.9 - 300, abs=0.1)] if short else [])


def test_the_answer_and_the_grid_know_it_too(sum_of_two):
    graph = build(sum_of_two)
    halved = Durations.parse(["gemm=0.5"], (), (), ())
    answer = answer_changes(sum_of_two, graph, Changes(durations=halved), force=True)
    assert answer.outcome.step_time_high_s - answer.outcome.step_time_s > 165e-6
    cells = evaluate(sum_of_two, graph, Changes(), {"scale:gemm": ("0.5", "0.9")}, force=True)
    assert ["above the peak rate" in cell.impossible for cell in cells] == [True, False]
    alone = evaluate(sum_of_two, graph, Changes(cluster=None, repeat=True), {"scale:gemm": ("0.5",)}, force=True)
    assert "above the peak rate" in alone[0].impossible


def test_a_device_without_work_is_a_bound_in_every_answer(product):
    """Where the only kernel is left out, answer and grid say so; where it is twice as fast, none does."""
    graph = build(product)
    answer = answer_changes(product, graph, Changes(durations=Durations.parse((), ["gemm"], (), ())), force=True)
    assert "side-left-out" in [reason.code for reason in answer.trust.reasons]
    for repeat in (False, True):
        cells = evaluate(product, graph, Changes(repeat=repeat), {"scale:gemm": ("0", "0.8")}, force=True)
        assert ["no work is left on the devices" in cell.impossible for cell in cells] == [True, False]
