"""PyTorch execution traces (JSON): operators with their inputs and outputs by tensor identity, in call order.

The fields that are present decide how a file is read, so every schema can be: in 1.0.1 the fields are flat and the parent is
`parent`; in later ones there are `attrs`, values, shapes and types in one object each, and the parent is `ctrl_deps`. What
the observer leaves out (a parent that was still running when the file was closed, lists beyond 4,096 items) is reported as
a diagnostic. The times in the header are milliseconds of a clock that is not the profiler's: an execution trace has no timeline.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from lumos.diagnostics import Diagnostic
from lumos.errors import TraceError
from lumos.trace.blocks import unpacked_blocks
from lumos.trace.nesting import DEEPEST
from lumos.trace.table import ABSENT, Int32, Int64, ProcessGroup

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

#: Known schemas. Others are read by the fields that they have, with a diagnostic.
SCHEMAS = re.compile(r"1\.(0\.[1-4]|1\.[01])(-.*)?$")

#: The observer cuts lists at this length.
LONGEST_LIST = 4096

_ROOT = re.compile(r"\[pytorch\|profiler\|execution_(trace|graph)\|(process|thread)\]")
_GROUPS = "## process_group:init ##"


@dataclass(frozen=True, slots=True, eq=False)
class ExecutionTrace:
    """The nodes of one execution trace by id, which is call order (a parent before its children).

    id, rf_id, thread, sequence: int64[n]; sequence is autograd's number, ABSENT none. parent: int32[n], position of the
    calling node, ABSENT where it is not in the file. name: int32[n], index into `strings`. pseudo: the root and threads.
    inputs, outputs: per node the JSON texts (values, shapes, types). input_strides, output_strides: the text of their strides, "[]" in
    schemas before 1.1.1, which have none. attrs: per node the other fields of its schema.
    """

    path: str
    schema: str
    pid: int
    strings: Sequence[str]
    id: Int64
    parent: Int32
    name: Int32
    rf_id: Int64
    sequence: Int64
    thread: Int64
    inputs: Sequence[tuple[str, str, str]]
    outputs: Sequence[tuple[str, str, str]]
    input_strides: Sequence[str]
    output_strides: Sequence[str]
    attrs: Sequence[Mapping[str, Any]]
    groups: tuple[ProcessGroup, ...]
    diagnostics: tuple[Diagnostic, ...]

    def __len__(self) -> int:
        return len(self.id)

    def is_pseudo(self) -> NDArray[np.bool_]:
        """Nodes that represent the process and its threads, as a mask."""
        named = np.array([bool(_ROOT.match(s)) for s in self.strings] or [False])
        mask: NDArray[np.bool_] = named[self.name]
        return mask


#: Ranks of a group at most, some ten times those of the largest job.
_MOST_RANKS = 1 << 20


class _Attribute(msgspec.Struct):
    name: str
    value: Any = None


class _IO(msgspec.Struct):
    values: msgspec.Raw = msgspec.Raw(b"[]")
    shapes: msgspec.Raw = msgspec.Raw(b"[]")
    types: msgspec.Raw = msgspec.Raw(b"[]")
    strides: msgspec.Raw = msgspec.Raw(b"[]")

    @property
    def texts(self) -> tuple[str, str, str]:
        return _text(self.values), _text(self.shapes), _text(self.types)


class _Node(msgspec.Struct):
    """A node of any schema: fields that are flat in one schema are in `attrs` in another."""

    id: int
    name: str
    parent: int | None = None
    ctrl_deps: int | None = None
    rf_id: int | None = None
    seq_id: int | None = None
    tid: int | None = None
    fw_parent: int | None = None
    fw_tid: int | None = None
    scope: int | None = None
    op_schema: str | None = None
    inputs: msgspec.Raw = msgspec.Raw(b"[]")
    outputs: msgspec.Raw = msgspec.Raw(b"[]")
    input_shapes: msgspec.Raw = msgspec.Raw(b"[]")
    input_types: msgspec.Raw = msgspec.Raw(b"[]")
    output_shapes: msgspec.Raw = msgspec.Raw(b"[]")
    output_types: msgspec.Raw = msgspec.Raw(b"[]")
    attrs: list[_Attribute] | None = None


class _File(msgspec.Struct):
    schema: str
    nodes: list[_Node]
    pid: int = ABSENT


def read(path: str | Path) -> ExecutionTrace:
    """Read one execution trace, plain or gzip.

    Raises TraceError: unreadable, cut off, not JSON, not an execution trace, no nodes, two nodes with one id, a cycle of parents.
    """
    path = Path(path)
    data = b"".join(unpacked_blocks(path))
    try:
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if b'"traceEvents"' in data:
            raise TraceError(
                f"{path}: a profiler's file, no execution trace; give the one that torch's observer wrote in its place"
            ) from None
        raise TraceError(
            f"{path}: not a PyTorch execution trace, or a cut-off one: {error}; end the observer before the process ends"
        ) from None
    if not file.nodes:
        raise TraceError(f"{path}: the execution trace has no nodes; record a step between start() and stop()")
    return _table(path, file)


def _table(path: Path, file: _File) -> ExecutionTrace:
    nodes = sorted(file.nodes, key=lambda node: node.id)
    index = {node.id: i for i, node in enumerate(nodes)}
    if len(index) != len(nodes):
        raise TraceError(f"{path}: {len(nodes) - len(index)} nodes repeat an id; record the trace again")
    if nodes[0].id < 0 or nodes[-1].id >= 1 << 63:
        raise TraceError(f"{path}: an id does not fit 63 bits; record the trace again")
    attrs = [_attrs(node) for node in nodes]
    above = [node.parent if node.ctrl_deps is None else node.ctrl_deps for node in nodes]
    parent = [ABSENT if up is None or up == node.id else index.get(up, ABSENT) for node, up in zip(nodes, above, strict=True)]
    _check_tree(path, nodes, parent)
    names: dict[str, int] = {}
    findings = list(_findings(path, file, nodes, parent))
    io = [_io(path, node) for node in nodes]
    return ExecutionTrace(
        path=str(path),
        schema=file.schema,
        pid=file.pid,
        id=np.array([node.id for node in nodes], np.int64),
        parent=np.array(parent, np.int32),
        name=np.array([names.setdefault(node.name, len(names)) for node in nodes], np.int32),
        strings=tuple(names),
        rf_id=_integers(attrs, "rf_id"),
        sequence=_integers(attrs, "seq_id"),
        thread=_integers(attrs, "tid"),
        inputs=[one.texts for one, _ in io],
        outputs=[other.texts for _, other in io],
        input_strides=[_text(one.strides) for one, _ in io],
        output_strides=[_text(other.strides) for _, other in io],
        attrs=attrs,
        groups=tuple(_groups(nodes, findings, path)),
        diagnostics=tuple(findings),
    )


_FLAT = ("rf_id", "seq_id", "tid", "fw_parent", "fw_tid", "scope", "op_schema")


def _attrs(node: _Node) -> Mapping[str, Any]:
    if node.attrs is not None:
        return {a.name: a.value for a in node.attrs}
    return {name: value for name in _FLAT if (value := getattr(node, name)) is not None}


def _integers(attrs: Sequence[Mapping[str, Any]], name: str) -> Int64:
    values = [a.get(name) for a in attrs]
    return np.array([v if isinstance(v, int) and -1 <= v < 1 << 63 else ABSENT for v in values], np.int64)


def _text(raw: msgspec.Raw) -> str:
    return bytes(raw).decode()


def _io(path: Path, node: _Node) -> tuple[_IO, _IO]:
    """The inputs and the outputs of a node. Raises TraceError where values, shapes or types are no list."""
    both = _IO(node.inputs, node.input_shapes, node.input_types), _IO(node.outputs, node.output_shapes, node.output_types)
    if bytes(node.inputs).startswith(b"{"):
        try:
            both = msgspec.json.decode(node.inputs, type=_IO), msgspec.json.decode(node.outputs, type=_IO)
        except msgspec.MsgspecError as error:
            raise TraceError(f"{path}: node {node.id}: inputs or outputs are unreadable ({error}); record the trace again") from None
    for text in (text for one in both for text in one.texts):
        if not text.startswith("["):
            what = "inputs, outputs, their shapes and types must be lists"
            raise TraceError(f"{path}: node {node.id}: {what}, not {text[:40]}; record the trace again")
    return both


def _check_tree(path: Path, nodes: Sequence[_Node], parent: Sequence[int]) -> None:
    """Raise TraceError where the parents of a node form a cycle, or are more than DEEPEST."""
    depth = [0] * len(nodes)  # 0 not visited, -1 on the current path of parents
    for i in range(len(nodes)):
        path_up = []
        while i >= 0 and depth[i] == 0:
            depth[i] = -1
            path_up.append(i)
            i = parent[i]
        below = depth[i] if i >= 0 else 0
        if below < 0:
            raise TraceError(f"{path}: node {nodes[i].id} calls itself through its parents; record the trace again")
        if below + len(path_up) > DEEPEST:
            raise TraceError(f"{path}: more than {DEEPEST} calls in each other at node {nodes[path_up[0]].id}; record the trace again")
        for j in reversed(path_up):
            depth[j] = below = below + 1


def _findings(path: Path, file: _File, nodes: Sequence[_Node], parent: Sequence[int]) -> Iterator[Diagnostic]:
    if not SCHEMAS.match(file.schema):
        yield Diagnostic("execution-trace-schema", f"{path}: unknown schema {file.schema!r}; read by its fields")
    lost = sum(up == ABSENT for up in parent) - 1
    if lost > 0:
        yield Diagnostic(
            "parents-missing", f"{path}: the callers of {lost} nodes are not in the file: they were still running when it was closed"
        )
    cut = sum(bytes(node.inputs).count(b",") >= LONGEST_LIST and _cut(node) for node in nodes)
    if cut:
        yield Diagnostic("lists-cut", f"{path}: inputs of {cut} nodes are lists cut at {LONGEST_LIST} items")


def _cut(node: _Node) -> bool:
    """Whether the longest list of the inputs has exactly as many items as the observer writes at most."""

    def longest(value: object) -> int:
        if isinstance(value, list):
            return max(len(value), *map(longest, value)) if value else 0
        return max(map(longest, value.values()), default=0) if isinstance(value, dict) else 0

    return longest(msgspec.json.decode(node.inputs)) == LONGEST_LIST


def _groups(nodes: Sequence[_Node], findings: list[Diagnostic], path: Path) -> Iterator[ProcessGroup]:
    """The process groups in the node that PyTorch writes for them; an empty list of ranks there means all ranks."""
    for node in nodes:
        if node.name != _GROUPS:
            continue
        values = msgspec.json.decode(node.inputs)
        texts = values.get("values", []) if isinstance(values, dict) else values
        try:
            listed = chain.from_iterable(msgspec.json.decode(text) for text in texts if isinstance(text, str))
            for entry in listed:
                ranks, size = entry.get("ranks", []), int(entry.get("group_size", 0))
                if size > _MOST_RANKS:
                    raise ValueError(f"a group of {size} ranks")
                whole = tuple(int(r) for r in ranks) if ranks else tuple(range(size))
                yield ProcessGroup(str(entry["pg_name"]), whole, str(entry.get("pg_desc", "")))
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError, OverflowError, AttributeError, RecursionError):
            message = f"{path}: node {node.id} holds process groups in a form that is not known; left out"
            findings.append(Diagnostic("groups-unreadable", message))
