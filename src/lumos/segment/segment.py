"""A measured graph cut into blocks: which layer, phase and microbatch every task belongs to.

The layers of a forward pass are found as repetition (`repetition`); a pass in which nothing repeats has one layer for every
operator with weights (a VGG's convolutions and linear layers). A backward unit belongs to the layer of the forward unit that
autograd linked it to, or, in traces without such links, to the layer that repetition shows. An optimizer that updates one
parameter after the other repeats as well. A CPU task belongs to the unit that it started in, or else to the next unit on its
thread; a device task to the unit of its launch; a collective on the CPU to the unit that issued it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.spans import span_ends
from lumos.analyze.loop.steps import members
from lumos.graph.joined.collectives import issuers
from lumos.graph.lists import equal_rows, list_of
from lumos.graph.one_off import recurring
from lumos.graph.table import Dependency, Graph, Kind
from lumos.segment.pass_layers import forward_layers, heavy_units, layers_in, microbatches_of, phases_of_passes
from lumos.segment.repetition import find_run, find_stacks
from lumos.segment.units import Units, numbers_inside, numbers_of_nodes, transfers, units
from lumos.trace.table import unique
from lumos.vocabulary import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from lumos.analyze.loop.steps import Members
    from lumos.trace.table import Int32, Int64, Job, Trace

#: How backward passes were found where autograd links each of their nodes to the forward operator that recorded it.
LINKS = "forward-backward links"


class Label(NamedTuple):
    """What a block is. layer: -1 outside the layers, where `part` names the block ("embedding", "head", …)."""

    phase: Phase
    microbatch: int
    layer: int
    part: str

    @property
    def name(self) -> str:
        """The part of the model in words; of a layer, with its number."""
        return f"layer {self.layer}" if self.layer >= 0 else self.part


@dataclass(frozen=True, slots=True)
class Piece:
    """One measured run of a block. rank: its position in `graph.joined.ranks`. step: index into the steps of `analyze.loop.steps.members`,
    -1 outside all of them."""

    rank: int
    step: int
    label: Label


@dataclass(frozen=True, eq=False)
class Segmentation:
    """A measured graph of n tasks with the piece that each belongs to.

    owners: the steps that own the tasks of the graph. pieces: by rank, in the order in which they began. piece: int32[n], index into
    `pieces`. layers: how many the model has. stacks: how many each of its stacks has (an encoder's, a decoder's), in the order of the
    forward pass; layers are numbered through.
    confidence: 0 to 1, how alike the layers are, times the share of the passes (by units) that agree on their number; of stacks of two
    layers half of that, for what occurs twice may be two halves of one.
    evidence: how the layers of each phase were found. units, unit_labels: by position of the rank. unit: int32[n], index into
    the units of the task's rank.

    phase, layer: of the piece that each task belongs to, int64[n]. Its rank and its step are those of `owners`.
    """

    owners: Members
    pieces: tuple[Piece, ...]
    piece: Int32
    layers: int
    stacks: tuple[int, ...]
    confidence: float
    evidence: dict[str, str]
    units: tuple[Units, ...]
    unit_labels: tuple[tuple[Label, ...], ...]
    unit: Int32

    @property
    def graph(self) -> Graph:
        """The measured graph."""
        return self.owners.graph

    @cached_property
    def phase(self) -> Int64:
        return self._of_tasks(lambda piece: piece.label.phase)

    @cached_property
    def layer(self) -> Int64:
        return self._of_tasks(lambda piece: piece.label.layer)

    def _of_tasks(self, value: Callable[[Piece], int]) -> Int64:
        column: Int64 = np.fromiter(map(value, self.pieces), np.int64, len(self.pieces))[self.piece]
        column.setflags(write=False)
        return column


class _RankLabels(NamedTuple):
    """The labels of the units of one rank. stacks: the layers of each stack. alike: how alike the layers are; agreeing: share of the
    passes with these stacks."""

    labels: list[Label]
    stacks: tuple[int, ...]
    alike: float
    agreeing: float
    evidence: dict[str, str]

    @property
    def layers(self) -> int:
        return sum(self.stacks)

    @property
    def confidence(self) -> float:
        return self.alike * self.agreeing


class Cut:
    """A job and its graph, cut into layers and passes without what happened only once: when somebody first asks, and then not again."""

    def __init__(self, job: Job, graph: Graph) -> None:
        self._job, self._graph = job, graph

    @cached_property
    def segmentation(self) -> Segmentation:
        """The cut job."""
        return segment(recurring(self._graph), self._job)


def segment(graph: Graph, job: Job) -> Segmentation:
    """Cut the graph of `job` into pieces. Every task belongs to exactly one."""
    owners = members(graph)
    rank_units = [units(trace) for trace in job.traces]
    labelled = [
        _labels(trace, u, _step_of(owners, position, u, trace))
        for position, (trace, u) in enumerate(zip(job.traces, rank_units, strict=True))
    ]
    unit = np.full(len(graph), -1, np.int32)
    for position, (trace, u) in enumerate(zip(job.traces, rank_units, strict=True)):
        _assign(graph, owners.of_rank(position), owners.on_device, owners.launch, trace, u, unit)
    pieces: list[Piece] = []
    piece = np.full(len(graph), -1, np.int32)
    for position, rank in enumerate(labelled):
        tasks = owners.of_rank(position)
        _pieces(position, tasks, unit, owners.step, rank.labels, pieces, piece)
        _in_order(graph, tasks, piece)
    stacks = max((rank.stacks for rank in labelled), key=sum, default=())
    confidence = min((rank.confidence for rank in labelled if rank.layers), default=0.0)
    evidence: dict[str, str] = {}
    for rank in labelled:
        evidence.update(rank.evidence)
    unit_labels = tuple(tuple(rank.labels) for rank in labelled)
    return Segmentation(owners, tuple(pieces), piece, sum(stacks), stacks, confidence, evidence, tuple(rank_units), unit_labels, unit)


def _step_of(owners: Members, position: int, u: Units, trace: Trace) -> Int64:
    """Index of the step mark in whose span each unit began (`analyze.loop.spans`); -1 outside all spans."""
    graph = owners.graph
    marks = [s for s in graph.steps if s.rank == graph.ranks[position]]
    if not marks or not len(u):
        return np.zeros(len(u), np.int64)
    shift = _shift(graph, owners.of_rank(position), trace)
    start = trace.start[u.row] + shift
    begin, end = np.array([s.start for s in marks], np.int64), span_ends(marks)
    at = np.searchsorted(begin, start, "right") - 1
    inside = (at >= 0) & (start < end[np.maximum(at, 0)])
    return np.where(inside, at, -1)


def _shift(graph: Graph, tasks: Int64, trace: Trace) -> int:
    """Graph time minus trace time of a rank with these tasks: the offset of the graph's origin and the correction of the rank's clock."""
    known = tasks[graph.event[tasks] >= 0]
    if graph.measured_start is None or not len(known):
        return -graph.origin
    return int((graph.measured_start[known] - trace.start[graph.event[known]]).min())


def _labels(trace: Trace, u: Units, step: Int64) -> _RankLabels:
    """The label of every unit of one rank."""
    heavy = heavy_units(trace, u)
    u = replace(u, phase=phases_of_passes(u, step, heavy))
    microbatch = microbatches_of(trace, u, step, heavy)
    labels: list[Label | None] = [None] * len(u)
    evidence: dict[str, str] = {}
    counts: Counter[tuple[int, ...]] = Counter()
    likeness: list[float] = []
    for low, high in _stretches(u.phase, microbatch, step, Phase.FORWARD):
        layer, part, stacks, similar, how = forward_layers(trace, u, low, high)
        if how:
            evidence["forward"] = how
            likeness.append(similar)
            counts[stacks] += high - low
        for i in range(low, high):
            labels[i] = Label(Phase.FORWARD, int(microbatch[i]), int(layer[i - low]), part[i - low])
    stacks = counts.most_common(1)[0][0] if counts else ()
    agreeing = counts[stacks] / counts.total() if counts else 0.0
    layers = sum(stacks)
    _backward(trace, u, microbatch, step, labels, evidence, layers)
    for low, high in _stretches(u.phase, microbatch, step, Phase.OPTIMIZER):
        _update(u, low, high, labels, layers, int(microbatch[low]), evidence)
    complete = [
        label or Label(Phase(int(u.phase[i])), int(microbatch[i]), -1, Phase(int(u.phase[i])).word) for i, label in enumerate(labels)
    ]
    return _RankLabels(complete, stacks, float(np.mean(likeness)) if likeness else 0.0, agreeing, evidence)


def _stretches(phase: np.ndarray, microbatch: Int64, step: Int64, wanted: Phase) -> list[tuple[int, int]]:
    """[low, high) of consecutive units of one phase, microbatch and step."""
    chosen = np.flatnonzero(phase == wanted)
    if not len(chosen):
        return []
    key = np.stack([microbatch[chosen], step[chosen]])
    new = np.flatnonzero((np.diff(chosen) > 1) | (np.diff(key, axis=1) != 0).any(axis=0))
    lows = np.concatenate(([0], new + 1))
    highs = np.concatenate((new, [len(chosen) - 1]))
    return [(int(chosen[a]), int(chosen[b]) + 1) for a, b in zip(lows, highs, strict=True)]


def _backward(
    trace: Trace, u: Units, microbatch: Int64, step: Int64, labels: list[Label | None], evidence: dict[str, str], layers: int
) -> None:
    """Label the backward and recomputed units by autograd's links to forward units, or by repetition where there are no links."""
    number, unit = numbers_inside(trace, u)
    mine = np.flatnonzero(np.isin(u.phase, (Phase.BACKWARD, Phase.RECOMPUTE)))
    if not len(mine):
        return
    wanted = numbers_of_nodes(trace, u.node[mine])
    at = np.minimum(np.searchsorted(number, wanted), max(len(number) - 1, 0))
    linked = (wanted >= 0) & (number[at] == wanted) if len(number) else np.zeros(len(mine), bool)
    if linked.any():
        evidence["backward"] = LINKS
        targets = np.where(linked, unit[at], -1)
        _follow(u, mine, targets, np.append(True, np.diff(mine) > 1), transfers(trace, u.row[mine]), labels)
        return
    as_backward = np.where(u.phase == Phase.RECOMPUTE, np.uint8(Phase.BACKWARD), u.phase)
    for low, high in _stretches(as_backward, microbatch, step, Phase.BACKWARD):
        runs = find_stacks(u.symbol[low:high].tolist())
        if not runs or sum(run.layers for run in runs) != layers:
            continue
        evidence["backward"] = "repetition"
        layer = layers_in(runs, high - low)
        for i in range(low, high):
            layer_number = int(layer[i - low])
            part = "head" if i - low < runs[0].bounds[0] else "embedding" if i - low >= runs[-1].bounds[-1] else "between stacks"
            labels[i] = Label(Phase(int(u.phase[i])), int(microbatch[i]), layers - 1 - layer_number if layer_number >= 0 else -1, part)


def _follow(
    u: Units, mine: Int64, target: Int64, begins: NDArray[np.bool_], moves: NDArray[np.bool_], labels: list[Label | None]
) -> None:
    """Give backward units the labels of their forward units, and a unit without a link the label of the unit before it in its pass, or,
    where a pass begins, of the unit behind it.

    A recomputed unit has the label of the node that it is inside; a node whose link leads to a recomputed unit has that unit's label. A
    transfer to another stage, and what comes behind it without a link, is outside the layers as the embedding is. target: the forward
    units, -1 without a link. begins: where a pass begins. moves: which units are transfers.
    """
    last: Label | None = None
    begun = False
    waiting: list[int] = []
    for i, forward, begin, transfer in zip(mine.tolist(), target.tolist(), begins.tolist(), moves.tolist(), strict=True):
        if begin:
            begun, waiting = False, []
        waiting.append(i)
        linked = labels[forward] if forward >= 0 else None
        if linked is None and transfer and last is not None:
            linked = last._replace(layer=-1, part="embedding")
        begun, last = begun or linked is not None, linked or last
        if begun and last is not None:
            for of_pass in waiting:
                labels[of_pass] = last._replace(phase=Phase(int(u.phase[of_pass])))
            waiting.clear()


def _update(u: Units, low: int, high: int, labels: list[Label | None], layers: int, microbatch: int, evidence: dict[str, str]) -> None:
    """Label the units of an optimizer that updates one parameter after the other, and so repeats as the layers do."""
    run = find_run(u.symbol[low:high].tolist()) if layers > 1 else None
    if run is None or run.layers != layers:
        return
    evidence["optimizer"] = "repetition"
    layer = layers_in((run,), high - low)
    for i in range(low, high):
        labels[i] = Label(Phase.OPTIMIZER, microbatch, int(layer[i - low]), "optimizer")


def _assign(graph: Graph, tasks: Int64, on_device: np.ndarray, launch: Int32, trace: Trace, u: Units, unit: Int32) -> None:
    """Write the unit of every task of one rank into `unit`."""
    if not len(tasks):
        return
    if not len(u):
        unit[tasks] = 0
        return
    unit_of_row = np.full(len(trace), -1, np.int32)
    unit_of_row[u.row] = np.arange(len(u))
    if u.from_kernels:
        device = tasks[on_device[tasks]]
        unit[device] = unit_of_row[graph.event[device]]
    else:
        shift = _shift(graph, tasks, trace)
        _by_time(graph, tasks[~on_device[tasks]], trace, u, shift, unit)
        device = tasks[on_device[tasks]]
        known = launch[device] >= 0
        unit[device[known]] = unit[launch[device[known]]]
    cpu = tasks[(graph.kind[tasks] == Kind.COLLECTIVE) & ~on_device[tasks] & (graph.event[tasks] >= 0)]
    if len(cpu) and not u.from_kernels:
        issuer = issuers(trace, graph.event[cpu])
        known = issuer >= 0
        unit[cpu[known]] = unit_at(trace, u, issuer[known].astype(np.int64))
    _fill(graph, tasks, unit)


def _by_time(graph: Graph, tasks: Int64, trace: Trace, u: Units, shift: int, unit: Int32) -> None:
    """Write the unit of CPU tasks: the unit that they start in, else the next on their thread, else the thread's last. What a thread does
    before it waits for another one belongs to the unit before that, and not to the one after it."""
    if graph.measured_start is None:
        return
    lane_of = np.array([p.lane for p in graph.processors], np.int64)[graph.processor[tasks]]
    start = graph.measured_start[tasks] - shift
    lanes = trace.lane[u.row]
    resumes = _resumes(graph)[tasks]
    for lane in unique(lane_of):
        here, mine = np.flatnonzero(lanes == lane), np.flatnonzero(lane_of == lane)
        if not len(here):
            continue
        begins, ends = trace.start[u.row[here]], trace.start[u.row[here]] + trace.duration[u.row[here]]
        at = np.minimum(np.searchsorted(ends, start[mine], "right"), len(here) - 1)
        resumed = np.sort(start[mine[resumes[mine]]])
        waits_before = np.searchsorted(resumed, begins[at], "right") - np.searchsorted(resumed, start[mine], "right")
        unit[tasks[mine]] = here[np.where((waits_before > 0) & (at > 0), at - 1, at)]


def _resumes(graph: Graph) -> NDArray[np.bool_]:
    """The tasks with which a thread goes on after it waited for another thread, bool[n]."""
    out = np.zeros(len(graph), bool)
    out[list_of(graph.pred_offset)[graph.pred_kind == Dependency.HAND_OFF]] = True
    out &= graph.kind == Kind.RETURN
    return out


def unit_at(trace: Trace, u: Units, rows: Int64) -> Int64:
    """The unit in which each row began, else the next on its thread, else the thread's last; 0 on a thread without units."""
    out = np.zeros(len(rows), np.int64)
    lanes = trace.lane[u.row]
    for lane in unique(trace.lane[rows]):
        here, mine = np.flatnonzero(lanes == lane), trace.lane[rows] == lane
        if len(here):
            ends = trace.start[u.row[here]] + trace.duration[u.row[here]]
            out[mine] = here[np.minimum(np.searchsorted(ends, trace.start[rows[mine]], "right"), len(here) - 1)]
    return out


def _fill(graph: Graph, tasks: Int64, unit: Int32) -> None:
    """Give tasks without a unit that of the next task with one on their processor, else of the one before, else of the last task that
    started before them anywhere on the rank."""
    for processor in unique(graph.processor[tasks]):
        mine = tasks[graph.processor[tasks] == processor]
        known = unit[mine] >= 0
        if known.all():
            continue
        if known.any():
            index = np.arange(len(mine))
            following = np.minimum.accumulate(np.where(known, index, len(mine))[::-1])[::-1]
            before = np.maximum.accumulate(np.where(known, index, -1))
            unit[mine] = unit[mine[np.where(following < len(mine), following, before)]]
    left = tasks[unit[tasks] < 0]
    if len(left) and graph.measured_start is not None:
        assigned = tasks[unit[tasks] >= 0]
        if not len(assigned):
            unit[left] = 0
            return
        order = assigned[np.argsort(graph.measured_start[assigned], kind="stable")]
        at = np.searchsorted(graph.measured_start[order], graph.measured_start[left], "right") - 1
        unit[left] = unit[order[np.maximum(at, 0)]]


def _in_order(graph: Graph, tasks: Int64, piece: Int32) -> None:
    """Move a task that a processor runs after it has begun a later piece into that later piece, so that no processor returns to a piece."""
    for mine in (tasks[alike] for alike in equal_rows(graph.processor[tasks])):
        piece[mine] = np.maximum.accumulate(piece[mine])


def _pieces(rank: int, tasks: Int64, unit: Int32, step: Int32, labels: list[Label], pieces: list[Piece], piece: Int32) -> None:
    """Join consecutive units of one label and step into a piece: append it to `pieces` and write its index to `piece`."""
    if not len(tasks):
        return
    if not labels:
        labels = [Label(Phase.OTHER, 0, -1, "other")]
    of_unit = np.full(len(labels), -1, np.int32)
    steps = np.full(len(labels), -1, np.int32)
    np.maximum.at(steps, unit[tasks], step[tasks])
    last: tuple[Label, int] | None = None
    for i, label in enumerate(labels):
        if last != (label, int(steps[i])):
            pieces.append(Piece(rank, int(steps[i]), label))
            last = (label, int(steps[i]))
        of_unit[i] = len(pieces) - 1
    piece[tasks] = of_unit[unit[tasks]]
