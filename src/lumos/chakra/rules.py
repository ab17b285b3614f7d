"""The rules by which ASTRA-sim accepts a set of `.et` files, as far as they can be checked on one rank's file alone.

Every rule was tried on the simulator with a file made by hand. `docs/chakra.md` lists them, with what the simulator does where one is
broken: in some of the worst cases it reports "finished" although work is left undone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, NamedTuple

from lumos.chakra.collectives import LOWERED
from lumos.errors import TraceError
from lumos.trace.chakra.et import KNOWN_VERSIONS, stream
from lumos.trace.chakra.schema import Attribute, ChakraNode, CollectiveType, NodeType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

#: Numbers that ASTRA-sim converts into one another, booleans among them.
_INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u", "s") for bits in (32, 64)) | {
    *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool"),
}

#: The collective type that ASTRA-sim lets run for the node's own duration on each rank, without a transfer and without the other ranks.
ALONE = CollectiveType.BROADCAST

#: The attributes that a node must have, and those that it may have, by type of node.
_ATTRIBUTES: Mapping[int, tuple[tuple[str, ...], tuple[str, ...]]] = {
    NodeType.COLL: (("comm_type", "comm_size"), ("pg_name", "comm_priority", "involved_dim")),
    NodeType.SEND: (("comm_dst", "comm_size", "comm_tag"), ("comm_src",)),
    NodeType.RECV: (("comm_src", "comm_size", "comm_tag"), ("comm_dst",)),
}
_OF_ROOFLINE = ("num_ops", "tensor_size")
#: The attributes that ASTRA-sim reads, and the types of value of those that are no integers.
_READ = {"is_cpu_op", *_OF_ROOFLINE, *(name for both in _ATTRIBUTES.values() for names in both for name in names)}
_KINDS = {"pg_name": frozenset({"string"}), "involved_dim": frozenset({"bool_list"})}


class Violation(NamedTuple):
    """A rule that a file breaks. node: the id of the node, None where the file or the set as a whole breaks the rule."""

    rule: str
    file: str
    node: int | None
    message: str


@dataclass(slots=True)
class RankFile:
    """The nodes of a file, as far as it could be read, and the rules that it breaks."""

    path: Path
    rank: int
    nodes: list[ChakraNode] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def find(self, rule: str, node: int | None, message: str) -> None:
        self.violations.append(Violation(rule, self.path.name, node, message))


def check_file(path: Path, rank: int, *, roofline: bool, memory: bool) -> RankFile:
    """Read one file and apply the rules to each node. `roofline`, `memory`: whether the system file switches roofline mode
    on, and whether the memory file has a memory expansion."""
    out = RankFile(path, rank)
    with path.open("rb") as file:
        if file.read(2) == b"\x1f\x8b":
            out.find("packed", None, "the file is gzip; unpack it")
    try:
        metadata, nodes = stream(path)
        if not metadata.version and not metadata.attrs:
            out.find("metadata", None, "the metadata message is empty; set its version")
        if metadata.version and metadata.version not in KNOWN_VERSIONS:
            out.warnings.append(f"unknown Chakra version {metadata.version!r}; read by its fields")
        out.nodes.extend(nodes)
    except TraceError as error:
        text = str(error).removeprefix(f"{path}: ")
        rule = "metadata" if "lacks its metadata" in text else "frame" if path.stat().st_size else "no-nodes"
        out.find(rule, None, text)
        return out
    if not out.nodes:
        out.find("no-nodes", None, "the file holds no nodes")
    for node in out.nodes:
        for rule, message in _node(node, rank, roofline, memory):
            out.find(rule, node.id, message)
    _structure(out)
    empty = {a.name for node in out.nodes for a in node.attrs if not a.kind and a.name not in _READ}
    passed_over = {  # by simulators, and no rule is about them
        f"attributes without a value ({', '.join(sorted(empty))})": bool(empty),
        "a broadcast takes its own duration on each rank: the simulator neither prices it nor waits for the others": any(
            node.type == NodeType.COLL and node.value("comm_type") == ALONE for node in out.nodes
        ),
        "nodes with fields that the schema lacks": any(node.unknown for node in out.nodes),
    }
    out.warnings += (text for text, occurs in passed_over.items() if occurs)
    return out


def _node(node: ChakraNode, rank: int, roofline: bool, memory: bool) -> Iterator[tuple[str, str]]:
    attrs = {a.name: a for a in node.attrs}
    on_cpu = "is_cpu_op" in attrs and bool(attrs["is_cpu_op"].value)
    priced = roofline and node.type == NodeType.COMP and not on_cpu
    required, optional = (_OF_ROOFLINE, ()) if priced else _ATTRIBUTES.get(node.type, ((), ()))
    for name in ("is_cpu_op", *required, *optional):
        attribute, kinds = attrs.get(name), _KINDS.get(name, _INTEGERS)
        if attribute is None and name in required:
            yield "roofline" if priced else "communication-attribute", f"{name} is missing"
        elif attribute is not None and attribute.kind not in kinds:
            wanted = "an integer" if kinds is _INTEGERS else min(kinds)
            yield "attribute-type", f"{name} is a {attribute.kind}, not {wanted}" if attribute.kind else f"{name} has no value"
        elif attribute is not None and isinstance(attribute.value, int) and attribute.value < 0:
            yield "communication-attribute", f"{name} is {attribute.value}"
        elif attribute is not None and priced and name in required and attribute.value == 0:
            yield "roofline", f"{name} is 0"
    if node.type in _ATTRIBUTES:
        if on_cpu:
            yield "communication-on-cpu", "a communication node with is_cpu_op true"
        own = attrs.get({NodeType.SEND: "comm_src", NodeType.RECV: "comm_dst"}.get(NodeType(node.type), ""))
        if own is not None and own.value != rank:
            yield "peer", f"{own.name} is {own.value!r}, the file's rank is {rank}"
        yield from _collective(attrs) if node.type == NodeType.COLL else ()
    elif node.type in (NodeType.MEM_LOAD, NodeType.MEM_STORE):
        if not memory or "tensor_size" not in attrs:
            lacks = "tensor_size" if memory else "a memory expansion in the memory file"
            yield "node-type", f"{NodeType(node.type).name} without {lacks}"
    elif node.type != NodeType.COMP:
        yield "node-type", f"node type {node.type} ({NodeType(node.type).name if node.type in list(NodeType) else 'unknown'})"


def _collective(attrs: Mapping[str, Attribute]) -> Iterator[tuple[str, str]]:
    kind, group = (attrs[name].value if name in attrs else None for name in ("comm_type", "pg_name"))
    if isinstance(kind, int) and kind not in (*LOWERED.values(), ALONE):
        name = CollectiveType(kind).name if kind in list(CollectiveType) else "unknown"
        yield "collective-type", f"comm_type {kind} ({name}) is not simulated"
    if isinstance(group, str) and group and not (group.isascii() and group.isdigit()):
        yield "group-name", f"pg_name {group!r} is no decimal integer"


def _structure(file: RankFile) -> None:
    """Ids, dependencies and cycles."""
    row_of = {node.id: row for row, node in enumerate(file.nodes)}
    deps = {}
    for row, node in enumerate(file.nodes):
        if row_of[node.id] != row:
            file.find("duplicate-id", file.nodes[row_of[node.id]].id, "another node of the file has this id")
        wanted = {*node.data_deps, *node.ctrl_deps} if row_of[node.id] == row else set[int]()
        for dep in sorted(wanted - row_of.keys()):
            file.find("absent-dependency", node.id, f"depends on node {dep}, which the file lacks")
        deps[row] = sorted(row_of[dep] for dep in wanted & row_of.keys())
    try:
        TopologicalSorter(deps).prepare()
    except CycleError as error:
        cycle = [file.nodes[row].id for row in error.args[1]]
        file.find("cycle", cycle[0], f"nodes {' -> '.join(map(str, cycle))} wait for one another")
