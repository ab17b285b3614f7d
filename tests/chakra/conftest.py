"""Sets small enough to check by hand, and a way to break them."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.chakra import two_stages
from tests.drawn_graph import drawn_graph

from lumos.chakra.exporting import export_graph
from lumos.graph.table import Dependency, Graph, Kind, Processor, Step
from lumos.trace.chakra.et import stream
from lumos.trace.chakra.protobuf import frame
from lumos.trace.chakra.schema import Attribute, ChakraNode, Metadata
from lumos.trace.chakra.wire import encode_metadata, encode_node


@pytest.fixture
def stages(tmp_path: Path) -> Path:
    """The set of two pipeline stages, on the network whose times are known."""
    folder = tmp_path / "set"
    export_graph(two_stages.two_stages(), folder, astra_sim=True)
    (folder / "net.yml").write_text(two_stages.NETWORK)
    return folder


def attribute(node: ChakraNode, name: str, kind: str | None = None, value: Any = None) -> None:
    """Replace an attribute of a node, or remove it where no kind is given."""
    others = tuple(a for a in node.attrs if a.name != name)
    node.attrs = others if kind is None else (*others, Attribute(name, kind, value))


@pytest.fixture
def rewrite() -> Callable[..., None]:
    """Change the nodes of a file: rewrite(path, change), where change(nodes by id) may add, drop and alter them."""

    def run(path: Path, change: Callable[[dict[int, ChakraNode]], Any]) -> None:
        metadata, listed = stream(path)
        nodes = {node.id: node for node in listed}
        change(nodes)
        write_nodes(path, list(nodes.values()), metadata)

    return run


def write_nodes(path: Path, nodes: list[ChakraNode], metadata: Metadata | None = None) -> None:
    """Write a file of these nodes."""
    path.write_bytes(b"".join(frame(m) for m in [encode_metadata(metadata or Metadata()), *map(encode_node, nodes)]))


def comp(id: int, us: int, *deps: int, **more: Any) -> ChakraNode:
    """A kernel that takes `us` microseconds."""
    return ChakraNode(id, f"COMP_NODE_{id}", data_deps=deps, duration_micros=us, attrs=(Attribute("is_cpu_op", "bool", False),), **more)


@pytest.fixture
def groups() -> Callable[[Path, Any], None]:
    """Write another groups.json."""
    return lambda folder, value: (folder / "groups.json").write_text(json.dumps(value)) and None


@pytest.fixture
def traces() -> Path:
    """The folder of public traces."""
    root = os.environ.get("LUMOS_TRACES")
    if not root:
        pytest.skip("LUMOS_TRACES is not set: the public traces are not here")
    return Path(root)


@pytest.fixture
def ahead() -> Graph:
    """Three launches of 10 µs, one a step, and kernels of 30 µs behind them: the steps are complete at 40, 70 and 100 µs. A second
    thread works in the first and the last step only; its pause, which begins in the first, begins no step."""
    us, launches = 1000, [0, 1, 2]
    rows = [(0, Kind.LAUNCH, 10 * i, 10 * i + 10) for i in launches]
    rows += [(1, Kind.OPERATOR, 0, 2), (1, Kind.HOST, 2, 21), (1, Kind.OPERATOR, 21, 23)]
    rows = sorted(rows, key=lambda row: (row[2], row[0])) + [(2, Kind.KERNEL, 10 + 30 * i, 40 + 30 * i) for i in launches]
    calls = [task for task, row in enumerate(rows) if row[1] == Kind.LAUNCH]
    return drawn_graph(
        [Processor(0, False, "main", lane=1), Processor(0, False, "other", lane=2), Processor(0, True, "stream 7", 0, 7)],
        [(processor, kind, "work", (end - start) * us) for processor, kind, start, end in rows],
        [(call, 6 + i, Dependency.LAUNCH) for i, call in enumerate(calls)],
        measured_start=np.array([row[2] for row in rows], np.int64) * us,
        measured_end=np.array([row[3] for row in rows], np.int64) * us,
        steps=tuple(Step(0, f"ProfilerStep#{i}", 10 * i * us, (10 * i + 10) * us, lane=1) for i in launches),
    )
