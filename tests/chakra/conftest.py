"""Sets small enough to check by hand, and a way to break them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.chakra import two_stages

from lumos.chakra.export import export_graph
from lumos.trace.chakra_et import stream
from lumos.trace.chakra_wire import Attribute, ChakraNode, Metadata, encode_metadata, encode_node, frame


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
        metadata, placed = stream(path)
        nodes = {p.node.id: p.node for p in placed}
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
