"""Compiled kernels in a benchmark, with stand-ins for triton and for the GPU."""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.proxy.conftest import Write, annotation, mm, node, operator, tensor

from lumos.proxy.generation import generate_program
from lumos.proxy.running import run_benchmark

torch = pytest.importorskip("torch", reason="torch is not installed, and a benchmark runs its operators")

from lumos.proxy.benchmark import kernels  # noqa: E402 - it imports torch
from lumos.proxy.benchmark.program import Program  # noqa: E402

FILE = "cabc.py"
FAST = ("--device", "cpu", "--warmup", "1", "--repeat", "2")
HERE = SimpleNamespace(type="cuda", index=0)
STREAM = 77

#: As a source of torch 2.7 and later, which knows its grid, and one of before. Both double their first tensor into the second.
SOURCE = """
class Kernel:
    device_props, triton_meta, launched = None, {"device": 3}, []

    def run(self, one, two, size, *, stream):
        self.launched.append((size, stream))
        two.copy_(2 * one)

triton_poi_0 = Kernel()
"""
OLD_SOURCE = SOURCE.replace("*, stream", "*, grid, stream").replace("(size, stream)", "(size, stream, grid)")


class _CompilationError(Exception):
    pass


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with triton and a GPU, as far as a benchmark asks."""
    for name, content in (("triton", {}), ("triton.errors", {"TritonError": _CompilationError})):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(kernels, "cuda", SimpleNamespace(current_stream=lambda: SimpleNamespace(cuda_stream=STREAM)))
    monkeypatch.setattr(kernels, "device_properties", lambda device: HERE)
    monkeypatch.setattr(kernels, "grid_function", lambda name: lambda *sizes: (name, sizes))


def generated(executed: Write, source: str = SOURCE, *extra: tuple[Any, ...]) -> Path:
    """A benchmark of one kernel, from one tensor into another of four elements, with its source."""
    inputs = (tensor(10, 20, [4], device="cuda:0"), tensor(11, 21, [4], device="cuda:0"), (4, [], "Int"), *extra, (99, [], "Int"))
    path = executed(node(3, "triton_poi_0", inputs=inputs, kernel_backend="triton", kernel_file=FILE))
    folder = path.with_name("rank0.et_resources")
    folder.mkdir()
    (folder / FILE).write_text(source)
    generate_program([str(path)], path.parent / "proxy", kernel_sources=True)
    return path.parent / "proxy"


def program(folder: Path, scale: float = 1.0) -> Program:
    """The benchmark's program as for a GPU, but with its tensors in main memory."""
    trace = json.loads((folder / "trace.json").read_text()) | {"folder": str(folder)}
    found = Program(trace, trace["ranks"][0], torch.device("cuda"), "full")
    found.memory.device = torch.device("cpu")
    found.memory.reset(False, scale)
    found.choose()
    return found


def reason(folder: Path, scale: float = 1.0) -> str:
    [item] = program(folder, scale).items
    assert item.role == "stand-in"
    return item.node.reason.partition(";")[0]


@pytest.mark.usefixtures("triton")
def test_a_kernel_is_launched_with_the_recorded_arguments(executed: Write) -> None:
    found = program(generated(executed))
    [item] = found.items
    assert item.role == "real"
    found.call(item)
    one, two = (found.memory.get(slot) for slot in item.refs())
    assert torch.equal(two, 2 * one)
    [kernel] = found.kernels.loaded.values()
    assert kernel.launched == [(4, STREAM)]
    assert (kernel.device_props, kernel.triton_meta) == (HERE, {"device": 0, "device_type": "cuda"})


@pytest.mark.usefixtures("triton")
def test_a_source_that_does_not_know_its_grid_gets_the_recorded_one(executed: Write) -> None:
    found = program(generated(executed, OLD_SOURCE, ("grid(4,)", [], "String")))
    [item] = found.items
    found.call(item)
    [kernel] = found.kernels.loaded.values()
    assert kernel.launched == [(4, STREAM, ("grid", (4,)))]


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize(
    ("source", "extra", "said"),
    [
        (OLD_SOURCE, None, "whose grid was not recorded, of a torch that is newer than this one"),
        (OLD_SOURCE, ("system(4,)", [], "String"), "whose grid was not recorded, of a torch that is newer than this one"),
        (SOURCE, ("grid(4,)", [], "String"), "of a torch that is older than this one"),
        (SOURCE, (None, [], "None"), "whose arguments were not recorded"),
        ("import absent", None, "whose source did not load: ModuleNotFoundError: No module named 'absent'"),
        ("x = 1", None, "whose source did not load: AttributeError: module 'kernel_cabc' has no attribute 'triton_poi_0'"),
        ("triton_poi_0 = 1", None, "whose source did not load: AttributeError: 'int' object has no attribute 'device_props'"),
    ],
)
def test_a_kernel_that_cannot_be_launched_says_why(executed: Write, source: str, extra: Any, said: str) -> None:
    assert reason(generated(executed, source, *([extra] if extra else []))) == f"a compiled kernel {said}"


@pytest.mark.usefixtures("triton")
def test_a_kernel_never_runs_on_tensors_of_other_sizes(executed: Write) -> None:
    assert reason(generated(executed), scale=0.5) == "a compiled kernel, made for other sizes than these scaled ones"


@pytest.mark.usefixtures("triton")
def test_a_changed_source_is_never_run(executed: Write) -> None:
    folder = generated(executed)
    mark = folder / "mark"
    (folder / f"kernel-{FILE}").write_text(f"open({str(mark)!r}, 'w')")
    assert reason(folder) == "a compiled kernel whose source is not the one that was taken along"
    assert not mark.exists()


@pytest.mark.usefixtures("triton")
def test_a_kernel_that_triton_cannot_compile_becomes_a_stand_in(executed: Write) -> None:
    raising = SOURCE.replace("two.copy_(2 * one)", "from triton.errors import TritonError; raise TritonError('out of registers')")
    found = program(generated(executed, raising))
    found.rehearse()
    [item] = found.items
    assert item.role == "stand-in"
    assert item.node.reason.startswith("it failed here: RuntimeError: _CompilationError: out of registers")


def test_without_triton_the_kernel_stands_in(executed: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: None)
    assert reason(generated(executed)) == "a compiled kernel, and triton is not installed"


def test_on_a_cpu_no_source_is_run(executed: Write) -> None:
    folder = generated(executed, "raise SystemExit('the source was run')")
    [row] = run_benchmark(folder, options=FAST)["not_real"]
    assert (row["outcome"], row["reason"].partition(";")[0]) == ("stand_in", "a compiled kernel, which needs a GPU")


def test_compiled_code_on_a_cpu_stands_in_for_what_it_spends_outside_of_operators(kineto: Write) -> None:
    """Of the 100 µs in compiled code 30 are a matrix product, so 70 stand in beside 30 + 50 that run for real."""
    rows = [
        operator("CompiledFunction", 0, 100),
        operator("## Call CompiledFxGraph abc ##", 10, 85),
        mm(20, 30),
        mm(110, 50),
    ]
    path = kineto(annotation("ProfilerStep#1", 0, 200), *rows)
    generate_program([str(path)], path.parent / "proxy")
    result = run_benchmark(path.parent / "proxy", options=FAST)
    assert result["operators"] == {"real": 2, "stand_in": 1, "skipped": 0}
    assert result["coverage"]["stand_in"] == pytest.approx(70 / 150)
    [row] = result["not_real"]
    assert (row["name"], row["recorded_ns"]) == ("CompiledFunction", 70_000)
    [communication] = [run_benchmark(path.parent / "proxy", options=(*FAST, "--mode", "communication"))["operators"]]
    assert communication["stand_in"] == 0
