"""Compiled kernels in a benchmark, with stand-ins for triton and for the GPU."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.proxy.conftest import Write, annotation, mm, node, operator, tensor

from lumos.proxy.generation import generate_program
from lumos.proxy.running import run_benchmark

torch = pytest.importorskip("torch", reason="torch is not installed, and a benchmark runs its operators")

from lumos.proxy.benchmark import kernels  # noqa: E402 - it imports torch

FILE = "cabc.py"
FAST = ("--device", "cpu", "--warmup", "1", "--repeat", "2")
HERE = SimpleNamespace(type="cuda", index=0)
STREAM = 77

#: As a source of torch 2.7 and later, which knows its grid. It doubles its first tensor into the second.
SOURCE = """
class Kernel:
    device_props, triton_meta, launched = None, {"device": 3}, []

    def run(self, one, two, size, *, stream):
        self.launched.append((size, stream))
        two.copy_(2 * one)

triton_poi_0 = Kernel()
"""


class _CompilationError(Exception):
    pass


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with triton and a GPU, as far as a benchmark asks."""
    module = ModuleType("triton.errors")
    module.__dict__["TritonError"] = _CompilationError
    monkeypatch.setitem(sys.modules, "triton.errors", module)
    monkeypatch.setattr(kernels, "cuda", SimpleNamespace(current_stream=lambda: SimpleNamespace(cuda_stream=STREAM)))
    monkeypatch.setattr(kernels, "device_properties", lambda device: HERE)


def generated(executed: Write, source: str = SOURCE) -> Path:
    """A benchmark of one kernel, from one tensor into another of four elements, with its source."""
    inputs = (tensor(10, 20, [4], device="cuda:0"), tensor(11, 21, [4], device="cuda:0"), (4, [], "Int"), (99, [], "Int"))
    path = executed(node(3, "triton_poi_0", inputs=inputs, kernel_backend="triton", kernel_file=FILE))
    folder = path.with_name("rank0.et_resources")
    folder.mkdir()
    (folder / FILE).write_text(source)
    generate_program([str(path)], path.parent / "proxy", kernel_sources=True)
    return path.parent / "proxy"


def bound(folder: Path, device: str = "cuda") -> tuple[kernels.Kernels, Any]:
    hashes = json.loads((folder / "trace.json").read_text())["kernels"]
    found = kernels.Kernels(hashes, torch.device(device), folder)
    return found, found.bind(FILE, "triton_poi_0")


@pytest.mark.usefixtures("triton")
def test_a_kernel_is_launched_with_the_recorded_arguments(executed: Write) -> None:
    found, launch = bound(generated(executed))
    one, two = torch.ones(4), torch.zeros(4)
    launch(one, two, 4)
    assert torch.equal(two, 2 * one)
    [kernel] = found.loaded.values()
    assert kernel.launched == [(4, STREAM)]
    assert (kernel.device_props, kernel.triton_meta) == (HERE, {"device": 0, "device_type": "cuda"})


@pytest.mark.usefixtures("triton")
def test_a_changed_source_is_never_run(executed: Write) -> None:
    folder = generated(executed)
    mark = folder / "mark"
    (folder / f"kernel-{FILE}").write_text(f"open({str(mark)!r}, 'w')")
    with pytest.raises(LookupError, match="is not one that was taken along"):
        bound(folder)
    assert not mark.exists()


def test_on_a_cpu_no_source_is_run(executed: Write) -> None:
    folder = generated(executed, "raise SystemExit('the source was run')")
    [row] = run_benchmark(folder, options=FAST)["not_real"]
    assert (row["outcome"], row["reason"]) == ("skipped", "it failed here: LookupError: a compiled kernel needs a GPU")


def test_compiled_code_on_a_cpu_stands_in_for_what_it_spends_outside_of_operators(kineto: Write) -> None:
    """Of the 100 µs in compiled code 30 are a matrix product, so 10 + 10 + 45 + 5 stand in beside 30 + 50 that run for real."""
    rows = [
        operator("CompiledFunction", 0, 100),
        operator("## Call CompiledFxGraph abc ##", 10, 85),
        mm(20, 30),
        mm(110, 50),
    ]
    path = kineto(annotation("ProfilerStep#1", 0, 200), *rows)
    generate_program([str(path)], path.parent / "proxy")
    result = run_benchmark(path.parent / "proxy", options=FAST)
    assert result["operators"] == {"real": 2, "stand_in": 4, "skipped": 0}
    assert result["coverage"]["stand_in"] == pytest.approx(70 / 150)
    assert [(row["name"], row["recorded_ns"]) for row in result["not_real"]] == [
        ("## Call CompiledFxGraph abc ##", 55_000), ("CompiledFunction", 15_000),
    ]  # fmt: skip
    [communication] = [run_benchmark(path.parent / "proxy", options=(*FAST, "--mode", "communication"))["operators"]]
    assert communication["stand_in"] == 0
