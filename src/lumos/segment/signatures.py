"""What a rank's device did, operation by operation, in a form in which a measured trace and a layout can be compared.

A signature says what a piece of work computes or moves: ("gemm", m, n, k, batch), ("attention", direction, …),
("traffic", bytes), ("collective", kind, ranks, bytes). For an elementwise operator a trace records tensors and not bytes: its
signature has bytes only where the shapes determine them, or where a single tensor goes in, which is then taken to be read and as
much to be written. Elsewhere it is `OTHER`.
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.attribution import innermost
from lumos.blocks.work import Attention, Collective, Gemm, GroupedGemm, Traffic, Work
from lumos.cost.operators import OperatorTime
from lumos.cost.traffic import traffic
from lumos.graph.table import Graph, Kind
from lumos.operators.shaped import ShapedOperator, attention_of, elements, factors, product
from lumos.segment.dimensions import shapes_of
from lumos.segment.units import units
from lumos.trace.collectives import listed_ranks
from lumos.trace.table import Category, Int64, Trace
from lumos.vocabulary import CollectiveKind, Direction, DType, Phase

if TYPE_CHECKING:
    from lumos.analyze.loop.steps import Members

Signature = tuple[str | int, ...]
#: Work of which only the position in the sequence is known.
OTHER: Signature = ("other",)

#: The arithmetic in which a multiplication can compute.
_PRECISIONS = (DType.BF16, DType.FP16, DType.FP32, DType.FP8)
#: Kernels that multiply fp32 on tensor cores, as NVIDIA's libraries name them: by the type, or by the instruction (16 × 8 × 8 in fp32).
_TF32 = re.compile(r"tf32|s1688", re.IGNORECASE)
#: Kernels that multiply in another type, as libraries name them: by the type, by the instruction (NVIDIA), by the letters of the factors
#: (rocBLAS' Tensile: B for bf16, H for fp16, S for fp32).
_NAMED = (
    (DType.BF16, re.compile(r"bf16|bfloat16|cijk_\w+?_bb[sb]?_", re.IGNORECASE)),
    (DType.FP16, re.compile(r"fp16|(?<![a-z])f16|half|h884|s884|h16816|s16816|hgemm|cijk_\w+?_hh?[sh]?_", re.IGNORECASE)),
    (DType.FP32, re.compile(r"sgemm|scudnn|fp32|f32f32|<float\b|cijk_\w+?_sb?_", re.IGNORECASE)),
)
#: Assumed for transfers of which the trace has no element type: most of a training job's traffic has it.
_ASSUMED = DType.BF16


class Measured(NamedTuple):
    """One piece of device work of a rank: its task, its signature, and the phase of the step that it is in.

    ranks, peer: of a collective, the ranks that take part, and the other rank of a transfer (-1 none). precision: of a multiplication.
    """

    task: int
    signature: Signature
    ranks: tuple[int, ...] = ()
    name: str = ""
    peer: int = -1
    phase: Phase = Phase.OTHER
    precision: str = ""


def measured_work(graph: Graph, owners: Members, position: int, trace: Trace) -> list[Measured]:
    """The device work of a rank in the order of its launches."""
    tasks = owners.of_rank(position)
    device = tasks[owners.on_device[tasks] & (owners.launch[tasks] >= 0)]
    device = device[np.argsort(owners.launch[device], kind="stable")]
    calls = graph.event[owners.launch[device]].astype(np.int64)
    operators = np.flatnonzero(trace.is_any(Category.OPERATOR))
    rows = innermost(trace, operators, calls)
    shapes = shapes_of(trace)
    collective = _CollectiveReader(trace)
    main = set(_longest(graph, device, rows).tolist())
    out = []
    for task, row, phase in zip(device.tolist(), rows.tolist(), _phases(trace, calls), strict=True):
        if graph.kind[task] == Kind.COLLECTIVE:
            out.append(collective(task, int(graph.event[task]))._replace(phase=phase))
            continue
        o = shapes[row] if row >= 0 and task in main else None
        name = trace.strings[trace.name[row]] if row >= 0 else ""
        signature = of_operator(o) if o is not None else OTHER
        precision = _precision(o, graph.names[graph.name[task]]) if o is not None and signature[0] in ("gemm", "grouped") else ""
        out.append(Measured(task, signature, (), name, -1, phase, precision))
    return out


def _longest(graph: Graph, device: Int64, rows: Int64) -> Int64:
    """The longest of the tasks `device` that each operator launched, which is the work that its shapes describe. rows: of the operators,
    -1 none."""
    order = np.lexsort((-graph.duration[device], rows))
    first = np.append(True, np.diff(rows[order]) != 0) if len(order) else np.empty(0, bool)
    longest: Int64 = device[order[first]]
    return longest


def _phases(trace: Trace, calls: Int64) -> list[Phase]:
    """The phase of the unit that each call is in."""
    found = units(trace)
    place = np.full(len(trace) + 1, -1, np.int64)  # the additional last entry answers for row -1
    place[found.row] = np.arange(len(found))
    unit = place[innermost(trace, found.row, calls)]
    return [Phase(found.phase[u]) if u >= 0 else Phase.OTHER for u in unit.tolist()]


def _precision(o: ShapedOperator, kernel: str) -> str:
    """The precision of a multiplication by the types of its factors, as plans name it; "" where they do not determine it."""
    for name in o.dtypes:
        dtype = DType.parse(name)
        if dtype is not None and dtype.arithmetic in _PRECISIONS:
            return DType.TF32 if dtype is DType.FP32 and rounds_to_tf32(kernel) else dtype.arithmetic
    return ""


def rounds_to_tf32(kernel: str) -> bool:
    """Whether a kernel of tensors in fp32 multiplies in tf32, by its name."""
    return bool(_TF32.search(kernel))


def type_by_name(kernel: str) -> DType | None:
    """The type in which a kernel multiplies, by its name; None where the name does not say."""
    if rounds_to_tf32(kernel):
        return DType.TF32
    return next((dtype for dtype, pattern in _NAMED if pattern.search(kernel)), None)


def in_tf32(o: ShapedOperator) -> ShapedOperator:
    """An operator on tensors in fp32 whose kernel multiplies in tf32."""
    return o._replace(dtypes=tuple(DType.TF32 if DType.parse(name) is DType.FP32 else name for name in o.dtypes))


def of_operator(o: ShapedOperator) -> Signature:
    """The signature of an operator with shapes."""
    multiplied = factors(o)
    if multiplied is not None and multiplied.groups and not multiplied.of_depth:
        m, n, k, _ = multiplied.whole
        return ("grouped", m, multiplied.groups, k, n)
    found = product(o)
    if found is not None:
        return ("gemm", *found)
    attended = attention_of(o.name, o.shapes)
    if attended is not None:
        return ("attention", Direction.BACKWARD if "backward" in o.name else Direction.FORWARD, *attended[:-1])
    known = traffic(OperatorTime(o.name, o.shapes, o.dtypes, 0, 1))
    if known is not None:
        return ("traffic", round(known[1]))
    inputs = [(shape, name) for shape, name in zip(o.shapes, o.dtypes, strict=True) if shape]
    if len(inputs) != 1:
        return OTHER
    shape, name = inputs[0]
    dtype = DType.parse(name) if name else DType.FP32  # PyTorch's usual type
    return ("traffic", 2 * dtype.bytes * elements(shape)) if dtype is not None else OTHER


def is_heavy(signature: Signature) -> bool:
    """Whether work is of the kind that decides a step: multiplications, attention, communication."""
    return signature[0] in ("gemm", "grouped", "attention", "collective")


def amount(signature: Signature) -> float:
    """How much heavy work it is, in units of its class: multiplications of numbers, or bytes that are moved."""
    sizes = [float(x) for x in signature[1:] if isinstance(x, int)]
    if signature[0] == "collective":
        return sizes[-1]
    if signature[0] == "grouped":
        rows, _, depth, width = sizes
        return rows * depth * width
    if signature[0] == "attention":  # queries times keys, and scores times values
        batch, heads, _, queries, keys, head_dim = sizes
        return 2 * batch * heads * queries * keys * head_dim
    return prod(sizes)


class _CollectiveReader:
    """Makes the `Measured` of a collective from the arguments of its row."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.name, self.ranks, self.dtype = (trace.dense(k) for k in ("Collective name", "Process Group Ranks", "dtype"))
        self.into, self.out, self.size = (trace.dense(k) for k in ("In msg nelems", "Out msg nelems", "Group size"))
        self.source, self.target = trace.dense("Src Rank"), trace.dense("Dst Rank")

    def __call__(self, task: int, row: int) -> Measured:
        strings = self.trace.strings
        name = strings[self.name[row]] if self.name[row] >= 0 else ""
        members = listed_ranks(strings[self.ranks[row]]) if self.ranks[row] >= 0 else ()
        dtype = (DType.parse(strings[self.dtype[row]]) if self.dtype[row] >= 0 else None) or _ASSUMED
        nbytes = int(max(self.into[row], self.out[row])) * dtype.bytes
        size = int(self.size[row]) if self.size[row] > 0 else len(members)
        peer = int(max(self.source[row], self.target[row]))
        kind = CollectiveKind.in_name(name)
        if kind.is_transfer:  # a layout does not distinguish the two sides of a transfer
            kind = CollectiveKind.SEND_RECEIVE
        if peer >= 0:
            kind, size = CollectiveKind.SEND_RECEIVE, 2
        return Measured(task, ("collective", kind, size, nbytes), members, name, peer)


def of_work(work: Work) -> Signature:
    """The signature of a layout's work."""
    if isinstance(work, Gemm):
        return ("gemm", work.m, work.n, work.k, work.batch)
    if isinstance(work, GroupedGemm):
        return ("grouped", work.rows * work.groups, work.groups, work.k, work.n)
    if isinstance(work, Attention):
        return ("attention", work.direction, work.batch, work.heads, work.kv_heads, work.queries, work.keys, work.head_dim)
    if isinstance(work, Collective):
        return ("collective", work.kind, work.ranks, work.size)
    if isinstance(work, Traffic):
        return ("traffic", work.bytes // 4 * 4)
    return OTHER
