"""Hand-drawn profiler files and execution traces, for proxies."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Write = Callable[..., Path]


def operator(name: str, start: float, duration: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    """One operator row; times in us. `inputs`: (type, dims, concrete) of each argument."""
    inputs = args.pop("inputs", None)
    if inputs is not None:
        args["Input type"] = [kind for kind, _, _ in inputs]
        args["Input Dims"] = [dims for _, dims, _ in inputs]
        args["Concrete Inputs"] = [value for _, _, value in inputs]
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": tid, "ts": start, "dur": duration, "args": args}


def annotation(name: str, start: float, duration: float, tid: int = 1) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 7, "tid": tid, "ts": start, "dur": duration, "args": {}}


def mm(start: float, duration: float, n: int = 4, **args: Any) -> dict[str, Any]:
    return operator("aten::mm", start, duration, inputs=[("float", [n, n], ""), ("float", [n, n], "")], **args)


@pytest.fixture
def kineto(tmp_path: Path) -> Write:
    """Write rows as a profiler file; keywords become keys of the file."""

    def write(*rows: dict[str, Any], name: str = "rank0.json", **header: Any) -> Path:
        path = tmp_path / name
        path.write_text(json.dumps({"schemaVersion": 1, **header, "traceEvents": list(rows)}))
        return path

    return write


def node(
    number: int, name: str, parent: int = 2, inputs: tuple[Any, ...] = (), outputs: tuple[Any, ...] = (), **attrs: Any
) -> dict[str, Any]:
    """One node of an execution trace; inputs and outputs: (value, shape, type) of each."""

    def io(side: tuple[Any, ...]) -> dict[str, Any]:
        return {"values": [v for v, _, _ in side], "shapes": [s for _, s, _ in side], "types": [t for _, _, t in side]}

    listed = [{"name": key, "type": "", "value": value} for key, value in attrs.items()]
    return {"id": number, "name": name, "ctrl_deps": parent, "inputs": io(inputs), "outputs": io(outputs), "attrs": listed}


def tensor(identity: int, storage: int, shape: list[int], kind: str = "float", device: str = "cpu") -> tuple[Any, list[int], str]:
    count = 1
    for size in shape:
        count *= size
    return [identity, storage, 0, count, 4, device], shape, f"Tensor({kind})"


@pytest.fixture
def executed(tmp_path: Path) -> Write:
    """Write nodes as an execution trace with its root and one thread."""

    def write(*nodes: dict[str, Any], schema: str = "1.1.0-chakra.0.0.4", name: str = "rank0.et.json") -> Path:
        path = tmp_path / name
        roots = [node(1, "[pytorch|profiler|execution_trace|process]", 1), node(2, "[pytorch|profiler|execution_trace|thread]", 1)]
        path.write_text(json.dumps({"schema": schema, "pid": 1, "nodes": [*roots, *nodes]}))
        return path

    return write
