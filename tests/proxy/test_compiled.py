"""Kernels that torch.compile made for a job: how they were launched, and which sources a benchmark takes along."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.proxy.conftest import Write, annotation, node, operator, tensor

from lumos.errors import UsageError
from lumos.proxy import compiled
from lumos.proxy.compiled import compiled_kernel, sources_beside
from lumos.proxy.generation import generate_program

FILE = "cabc.py"
SOURCE = b"triton_poi_0 = None\n"
TRITON = {"kernel_backend": "triton", "kernel_file": FILE}


def kernel_node(number: int = 3, parent: int = 2) -> dict[str, Any]:
    """A kernel of one tensor and its size, behind which stands the address of its stream."""
    inputs = (tensor(10, 20, [4]), (4, [], "Int"), (140382148398488, [], "Int"))
    return node(number, "triton_poi_0", parent, inputs, **TRITON)


def beside(trace: Path, name: str = "rank0.et_resources") -> Path:
    folder = trace.with_name(name)
    folder.mkdir()
    (folder / FILE).write_bytes(SOURCE)
    return folder


def written(folder: Path) -> Any:
    return json.loads((folder / "trace.json").read_text())


def test_the_stream_is_no_argument_of_the_kernel_and_one_with_a_grid_is_not_launched() -> None:
    one = {"tensor": 0}
    assert compiled_kernel(TRITON, [one, 16, 99]) == (FILE, [one, 16])
    assert compiled_kernel(TRITON, None) == (FILE, None)
    assert compiled_kernel(TRITON, [one, 16, "grid(16,)", 99]) == ("", [one, 16, "grid(16,)", 99])
    assert compiled_kernel({"kernel_backend": "", "kernel_file": ""}, [one, 16]) == ("", [one, 16])


@pytest.mark.parametrize("name", ["../torch.py", "/etc/passwd", "k.py/../../x.py", "a b.py", "k.sh", "", 7])
def test_a_source_has_a_plain_name(name: Any) -> None:
    assert compiled_kernel({**TRITON, "kernel_file": name}, [4, 99]) == ("", [4, 99])


def test_sources_are_taken_along_where_that_is_asked_for(executed: Write, tmp_path: Path) -> None:
    path = executed(kernel_node())
    beside(path)
    program, notes = generate_program([str(path)], tmp_path / "proxy", kernel_sources=True)
    assert notes == ()
    assert (tmp_path / "proxy" / f"kernel-{FILE}").read_bytes() == SOURCE
    assert written(tmp_path / "proxy")["kernels"] == {FILE: hashlib.sha256(SOURCE).hexdigest()}
    [kernel] = written(tmp_path / "proxy")["ranks"][0]["operators"]
    assert kernel["compiled"] == FILE
    assert kernel["inputs"] == [{"tensor": 0}, 4]
    assert "code of the job" in (tmp_path / "proxy" / "README.md").read_text()
    assert list(program.sources) == [FILE]


def test_without_being_asked_for_no_code_of_the_job_is_written(executed: Write, tmp_path: Path) -> None:
    path = executed(kernel_node())
    beside(path)
    _, [note] = generate_program([str(path)], tmp_path / "proxy")
    assert note.code == "compiled-kernels"
    assert "1 compiled kernel will be stand-ins: their sources lie beside" in note.message
    assert "--kernel-sources" in note.message
    assert written(tmp_path / "proxy")["kernels"] == {}
    assert sorted(file.name for file in (tmp_path / "proxy").iterdir()) == ["README.md", "benchmark.py", "trace.json"]


def test_links_and_large_sources_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = beside(tmp_path / "rank0.et.json")
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "link.py").symlink_to(tmp_path / "secret")
    (folder / "large.py").write_bytes(b"#" * 65)
    (folder / "second.py").write_bytes(b"#" * 60)
    monkeypatch.setattr(compiled, "LARGEST_SOURCE", 64)
    monkeypatch.setattr(compiled, "LARGEST_ALL", 64)
    found = sources_beside(str(tmp_path / "rank0.et.json"), ["link.py", "large.py", FILE, "second.py", "absent.py"])
    assert list(found) == [FILE]


def test_a_profiled_kernel_takes_its_launch_from_the_execution_trace(kineto: Write, executed: Write, tmp_path: Path) -> None:
    """Of 20 µs on the device the kernel takes 5, which stands in: a quarter."""
    rows = [operator("aten::mm", 0, 10, inputs=[("float", [4, 4], ""), ("float", [4, 4], "")]), operator("triton_poi_0", 20, 10)]
    for at, (name, took) in enumerate((("gemm", 15), ("triton_poi_0", 5))):
        launch = {"correlation": at + 1}
        rows += [
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 1, "ts": 20 * at + 1, "dur": 2, "args": launch},
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 20 * at + 5, "dur": took, "args": {**launch, "stream": 7}},
        ]
    profiled = kineto(annotation("ProfilerStep#1", 0, 50), *rows)
    square = tensor(10, 20, [4, 4])
    trace = executed(node(3, "ProfilerStep#1"), node(4, "aten::mm", 3, (square, square)), kernel_node(5, 3))
    program, notes = generate_program([str(profiled)], tmp_path / "proxy", execution_traces=[str(trace)])
    [_, kernel] = program.ranks[0].operators
    assert (kernel.name, kernel.compiled, kernel.device_ns) == ("triton_poi_0", FILE, 5000)
    [message] = [note.message for note in notes if note.code == "compiled-kernels"]
    assert "1 compiled kernel (25.0% of the device's time) will be stand-ins" in message


def test_hidden_names_and_sources_contradict_each_other(executed: Write, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--kernel-sources takes code of the job along, whose names --obfuscate hides"):
        generate_program([str(executed(kernel_node()))], tmp_path / "proxy", kernel_sources=True, obfuscate=True)
