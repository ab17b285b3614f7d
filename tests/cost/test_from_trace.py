"""Calibration on a trace: operators joined to their kernels, bytes from shapes, ratios by class."""

import json
from pathlib import Path
from typing import Any

import pytest

from lumos.cost.attention_model import attention
from lumos.cost.cluster import load_cluster
from lumos.cost.coefficients import overlay, shipped_coefficients
from lumos.cost.estimate import SCALED
from lumos.cost.from_trace import accelerator_of, calibrated, class_ratios, cluster_of
from lumos.cost.gemm_model import gemm
from lumos.cost.memory_bound_model import moved
from lumos.cost.operators import OperatorTime, operator_times
from lumos.cost.traffic import traffic
from lumos.errors import LumosError
from lumos.operators.table import argument_places
from lumos.trace import Trace, read


def operator(
    name: str, shapes: list[list[int]], dtypes: list[str], start: float, kernel_us: float, correlation: int
) -> list[dict[str, Any]]:
    """An operator row, its launch inside it, and its kernel."""
    args = {"External id": correlation, "Input Dims": shapes, "Input type": dtypes}
    return [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": 20, "args": args},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": start + 5, "dur": 5,
         "args": {"correlation": correlation, "External id": correlation}},
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": start + 15, "dur": kernel_us,
         "args": {"correlation": correlation, "External id": correlation, "stream": 7, "device": 0}},
    ]  # fmt: skip


def trace_of(tmp_path: Path, events: list[dict[str, Any]], device: str = "NVIDIA H100 80GB HBM3") -> Trace:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"deviceProperties": [{"id": 0, "name": device}], "traceEvents": events}))
    return read(str(path)).traces[0]


def test_without_device_work_an_operator_did_its_own_time(tmp_path: Path) -> None:
    def cpu(name: str, start: float, duration: float) -> dict[str, Any]:
        args = {"Input Dims": [[4, 8], [8, 2]], "Input type": ["float", "float"]}
        return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": duration, "args": args}

    events = [cpu("aten::matmul", 0, 100), cpu("aten::mm", 10, 60), cpu("aten::resolve_conj", 15, 5), cpu("aten::mm", 200, 40)]
    found = [(o.name, o.work_ns) for o in operator_times(trace_of(tmp_path, events))]
    assert found == [("aten::matmul", 40_000), ("aten::mm", 55_000), ("aten::resolve_conj", 5_000), ("aten::mm", 40_000)]


def test_the_recorded_cpu_job_calibrates_the_host() -> None:
    trace = read(str(Path(__file__).parents[2] / "examples/gpt-2rank-cpu")).traces[0]
    ratios = {(r.model, r.variant): r for r in class_ratios(trace, load_cluster("host").accelerator)}
    assert ratios["gemm", "fp32"].operators > 100
    assert ratios["gemm", "fp32"].ratio > 1  # two cores of a busy machine against a 64-core server


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes", "kernel_class", "moved"),
    [
        ("aten::add", [[8, 4], [8, 4], []], ["float", "float", "Scalar"], "pointwise", 3 * 32 * 4),
        ("aten::add_", [[8, 4], [4], []], ["c10::BFloat16", "c10::BFloat16", "Scalar"], "strided", 2 * (32 + 4 + 32)),
        ("aten::gelu", [[8, 4], []], ["c10::Half", ""], "pointwise", 2 * 32 * 2),
        ("aten::copy_", [[8, 4], [8, 4], []], ["float", "c10::BFloat16", ""], "pointwise", 32 * 6),
        ("aten::copy_", [[8, 4], [8, 4], []], ["float", "float", ""], "strided", 32 * 8),
        ("aten::fill_", [[8, 4], []], ["float", "Scalar"], "pointwise", 32 * 4),
        ("aten::sum", [[8, 4], [], [], []], ["float", "", "", ""], "reduction", 32 * 4),
        ("aten::native_layer_norm", [[8, 4], [], [4], [4], []], ["float", "", "float", "float", ""], "normalisation", 2 * (32 + 4 + 8) * 4),
        ("aten::cat", [[8, 4], [8, 4]], ["float", "float"], "strided", 2 * 64 * 4),
        ("aten::index_select", [[100, 4], [], [8]], ["float", "Scalar", "long int"], "strided", 2 * 32 * 4 + 8 * 8),
    ],
)
def test_bytes_follow_from_shapes(name: str, shapes: list[list[int]], dtypes: list[str], kernel_class: str, moved: float) -> None:
    call = OperatorTime(name, tuple(map(tuple, shapes)), tuple(dtypes), 1, 1)  # type: ignore[arg-type]
    assert traffic(call) == (kernel_class, moved)


def job(tmp_path: Path, slower: float) -> Trace:
    """Multiplications and additions that take `slower` times what the shipped models say."""
    h100 = load_cluster("h100").accelerator
    events: list[dict[str, Any]] = []
    for i, m in enumerate((1024, 2048, 4096)):
        start = 10_000.0 * (2 * i + 1)
        product = int(gemm(m, 4096, 4096, h100).time) * slower / 1e3
        events += operator("aten::mm", [[m, 4096], [4096, 4096]], ["c10::BFloat16"] * 2, start, product, 2 * i + 1)
        added = int(moved(6 * m * 65536, h100).time) * slower / 1e3
        events += operator("aten::add", [[m, 65536], [m, 65536], []], ["c10::BFloat16"] * 2 + ["Scalar"], start + 5000, added, 2 * i + 2)
    return trace_of(tmp_path, events)


def test_ratios_by_class_and_predictions_that_start_from_them(tmp_path: Path) -> None:
    trace = job(tmp_path, 1.3)
    h100 = accelerator_of(trace)
    ratios = {(r.model, r.variant): r for r in class_ratios(trace, h100)}
    assert set(ratios) == {("gemm", "bf16"), ("memory_bound", "pointwise")}
    assert all(r.ratio == pytest.approx(1.3, rel=0.01) and r.operators == 3 for r in ratios.values())
    own = gemm(8192, 4096, 4096, h100, book=overlay(shipped_coefficients(), calibrated(class_ratios(trace, h100), h100)))
    plain = gemm(8192, 4096, 4096, h100)
    assert own.time == pytest.approx(1.3 * int(plain.time), rel=0.01)
    assert own.source == SCALED
    assert own.high / own.time < plain.high / plain.time


@pytest.mark.parametrize("causal", [True, False])
def test_attention_is_held_against_the_model_with_its_own_mask(tmp_path: Path, *, causal: bool) -> None:
    modelled = int(attention(4, 4096, 16, 128, load_cluster("h100").accelerator, causal=causal).time)
    name = "aten::_flash_attention_forward"
    events = operator(name, [[4, 4096, 16, 128]] * 3, ["c10::BFloat16"] * 3, 0, modelled / 1e3, 1)
    events[0]["args"]["Concrete Inputs"] = [""] * argument_places(name)["is_causal"] + [str(causal)]
    trace = trace_of(tmp_path, events)
    assert class_ratios(trace, accelerator_of(trace))[0].ratio == pytest.approx(1, rel=0.01)


def test_a_trace_without_shapes_cannot_be_calibrated_on(tmp_path: Path) -> None:
    events = operator("aten::mm", [], [], 0, 5, 1)
    for event in events:
        event["args"].pop("Input Dims", None)
    with pytest.raises(LumosError, match="record_shapes=True"):
        class_ratios(trace_of(tmp_path, events), load_cluster("h100").accelerator)


@pytest.mark.parametrize(
    ("device", "found"),
    [
        ({"name": "NVIDIA A100-PG509-200", "numSms": 108, "totalGlobalMem": 42_297_524_224}, "a100-40gb"),
        ({"name": "NVIDIA A100 80GB PCIe", "numSms": 108, "totalGlobalMem": 84_987_740_160}, "a100-pcie"),
        ({"name": "NVIDIA H100 PCIe", "numSms": 114, "totalGlobalMem": 84_929_347_584}, "h100-pcie"),
        ({"name": "", "numSms": 304, "totalGlobalMem": 206_141_652_992}, "mi300x"),  # ROCm may leave the name out
        ({"name": "NVIDIA H100 80GB HBM3"}, "h100"),
    ],
)
def test_the_device_is_known_by_its_name_or_by_its_memory_and_sms(tmp_path: Path, device: dict[str, Any], found: str) -> None:
    assert cluster_of(described(tmp_path, device), "--on").name == found


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ({"name": "NVIDIA GeForce RTX 2080 Ti", "numSms": 68, "totalGlobalMem": 11_554_586_624}, "68 SMs and 12 GB is none that Lumos"),
        ({"name": "NVIDIA H100 PCIe", "numSms": 120, "totalGlobalMem": 84_929_347_584}, "'NVIDIA H100 PCIe', 120 SMs and 85 GB"),
        ({"name": "", "numSms": 132, "totalGlobalMem": 84_929_347_584}, r"like h100, h100-nvl, h800\?"),
        ({}, "names no device"),
        (7, "names no device"),
    ],
)
def test_an_unknown_device_is_a_question(tmp_path: Path, device: Any, reason: str) -> None:
    with pytest.raises(LumosError, match=rf"{reason}.*--base-cluster CLUSTER says so"):
        cluster_of(described(tmp_path, device), "--base-cluster")


def described(tmp_path: Path, device: Any) -> Trace:
    """A trace of one operator whose header describes a device."""
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"deviceProperties": [device], "traceEvents": operator("aten::mm", [], [], 0, 1, 1)}))
    return read(str(path)).traces[0]
