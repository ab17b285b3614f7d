"""What the replicas of a recording exchange by: gradients, parameters, and the copies around their exchanges."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from lumos.changes.layout.activations import gathered, of_stream
from lumos.changes.layout.regroup import recorded_exchange
from lumos.graph.places import innermost
from lumos.graph.table import Kind
from lumos.segment.rank import recordings_of
from lumos.trace.table import ABSENT, Category, excluding, unique
from lumos.vocabulary import CollectiveKind, Phase

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.graph.table import Graph
    from lumos.segment.rank import RankRecording
    from lumos.trace.table import Int32, Int64, Job, Trace

#: What DistributedDataParallel calls its copies of gradients into buckets and back, which it makes where it exchanges them.
REDUCER = r"torch(\.|::)distributed(\.ddp\.|::)reducer::"
#: Names of the operators and ranges in which FSDP2, and DDP, copy parameters and gradients together and apart around their exchanges.
COPIES = re.compile(rf"fsdp::|aten::(split_with_sizes_copy|_chunk_cat)|{REDUCER}")
#: Those of them around a gather of parameters.
_UNPACKED = re.compile(r"fsdp::(all_gather_copy_in|split_with_sizes_copy)|aten::split_with_sizes_copy")
#: How replicas that each update a part of the parameters send it to the others.
_OF_PARAMETERS = (CollectiveKind.BROADCAST, CollectiveKind.ALL_GATHER)


class Exchanged:
    """What the replicas of a rank exchange by, as tasks.

    gathers: all-gathers of parameters in the passes; again: those of them in backward passes. gradients: other exchanges of backward passes
    that move no activations. copies: the kernels that copy around the exchanges; unpacked: those of them in backward passes that belong to
    gathers. updated: exchanges of parameters between replicas that each update a part of them. updates: the optimizer's kernels.
    replicas: how many there are; 0 where there are none. shards: how many of them share their states, where not all do in `sets`, between
    which sums: those of the gradients are exchanged that add up parts of them. apart: how far ranks that share states are apart.
    of_unknown_size: whether backward passes reduce something in groups of which
    the recording does not say how large they are.
    """

    def __init__(self, layout: MeasuredLayout, recording: RankRecording, stream: Int64) -> None:
        """stream: what exchanges activations, of `of_stream`."""
        segmentation, graph, trace = layout.segmentation, layout.segmentation.graph, recording.trace
        position = recording.position
        rank, phase = segmentation.owners.rank, segmentation.phase
        none = np.empty(0, np.int64)
        self.gathers = gathered(layout, position, recording.weights(), stream)
        self.again = self.gradients = self.sums = self.copies = self.unpacked = self.updated = none
        self.updates = np.flatnonzero((rank == position) & (phase == Phase.OPTIMIZER) & (graph.kind == Kind.KERNEL))
        facts = graph.collectives
        self.replicas, self.sets, self.apart, self.of_unknown_size = 0, 1, 1, False
        if facts is None or facts.size is None:
            return
        activations = np.isin(np.arange(len(facts.task)), stream)
        reduces = facts.of_kind(CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER)
        own = (rank[facts.task] == position) & ~activations
        mine = own & (facts.size > 1)
        late = facts.of_kind(CollectiveKind.REDUCE_SCATTER) & (phase[facts.task] == Phase.OPTIMIZER) & bool(len(self.gathers))
        reducing = reduces & (phase[facts.task] == Phase.BACKWARD) | late  # what is outside the layers, when the backward pass is done
        self.of_unknown_size = bool((own & reducing & (facts.size == ABSENT)).any())
        chosen = mine & reducing
        if len(self.gathers):  # what is outside the layers is gathered, too
            gathers = mine & facts.of_kind(CollectiveKind.ALL_GATHER) & np.isin(phase[facts.task], (Phase.FORWARD, Phase.BACKWARD))
            self.gathers = np.sort(facts.task[gathers]).astype(np.int64)
        self.again = self.gathers[phase[self.gathers] == Phase.BACKWARD]
        sends = facts.of_kind(*_OF_PARAMETERS)
        self.updated = np.sort(facts.task[mine & sends & (phase[facts.task] == Phase.OPTIMIZER)]).astype(np.int64)
        self.gradients = np.sort(facts.task[chosen]).astype(np.int64)
        scatters = chosen & facts.of_kind(CollectiveKind.REDUCE_SCATTER)
        parts = facts.nbytes[scatters] // facts.size[scatters]  # what a rank has of them
        summed = chosen & facts.of_kind(CollectiveKind.ALL_REDUCE) & np.isin(facts.nbytes, parts)
        self.sums = np.sort(facts.task[summed]).astype(np.int64)
        others = np.flatnonzero(chosen & ~summed)
        self.sets = facts.usual_size(np.flatnonzero(summed)) or 1
        self.replicas = facts.usual_size(others) * self.sets
        self.apart = recorded_exchange(facts, int(others[0])).stride if len(others) else 1
        launch = segmentation.owners.launch
        launched = np.flatnonzero((rank == position) & (graph.kind != Kind.COLLECTIVE) & graph.on_device & (launch >= 0))
        self.copies = launched[_inside(graph, trace, launch[launched], COPIES)]
        self.updates = excluding(self.updates, self.copies)
        unpacked = launched[_inside(graph, trace, launch[launched], _UNPACKED)]
        self.unpacked = unpacked[phase[unpacked] == Phase.BACKWARD]

    @property
    def shards(self) -> int:
        """How many replicas share their states."""
        return self.replicas // self.sets

    @property
    def stage(self) -> int:
        """The stage of ZeRO: 3 where parameters are gathered for both passes, 2 where only for the forward pass, 1 where what each replica
        updated is exchanged after the update, else 0."""
        if len(self.gathers):
            return 3 if len(self.again) else 2
        return int(len(self.updated) > 0)

    @property
    def updates_of_parts(self) -> Int64:
        """The optimizer's kernels where each replica updates its part of every parameter (stages 2 and 3): their shapes are of parts."""
        return self.updates if self.stage >= 2 else self.updates[:0]


def _inside(graph: Graph, trace: Trace, calls: Int32, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Whether each launch is inside an operator or range of such a name."""
    return within_rows(trace, graph.event[calls].astype(np.int64), pattern)


def within_rows(trace: Trace, rows: Int64, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Whether each of a trace's rows is inside an operator or range of such a name."""
    named = np.flatnonzero(trace.named(pattern.match) & trace.is_any(Category.OPERATOR, Category.ANNOTATION))
    return innermost(trace, named, rows) >= 0


def exchanged_by_rank(layout: MeasuredLayout, job: Job) -> tuple[Exchanged, ...]:
    """What the replicas of each rank exchange by, in the order of the traces."""
    stream = of_stream(layout, job)
    return tuple(Exchanged(layout, rank, stream) for rank in recordings_of(layout.segmentation, job))


def gathers_once(layout: MeasuredLayout, job: Job) -> frozenset[int]:
    """The gathers of parameters in the passes, the copies around them, and their launches: a recomputed pass has none of its own, as the
    backward pass of its layer has gathered the parameters before, or they were kept."""
    launch = layout.segmentation.owners.launch
    tasks: set[int] = set()
    for exchanged in exchanged_by_rank(layout, job):
        if len(exchanged.gathers):
            work = unique(exchanged.gathers, exchanged.copies)
            tasks.update(work.tolist(), launch[work][launch[work] >= 0].tolist())
    return frozenset(tasks)


def updates_of_parts(layout: MeasuredLayout, job: Job) -> Int64:
    """The optimizer's kernels of the ranks whose replicas share their parameters (ZeRO stages 2 and 3), each of which updates its part."""
    return np.concatenate([exchanged.updates_of_parts for exchanged in exchanged_by_rank(layout, job)])
