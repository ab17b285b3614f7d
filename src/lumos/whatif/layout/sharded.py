"""Replicas that share their parameters, as PyTorch's FSDP2 shares them, in place of replicas that each have all (DDP); and the reverse.

With zero = 3 every layer's parameters are gathered before its forward and its backward pass, while the pass over the layer before still
computes, copied into place, and freed; its gradients are copied together and scattered, summed, after its backward pass in the last
microbatch, while the passes go on; what is outside the layers is gathered once, before the forward pass. The optimizer updates a rank's
part. With zero = 0 the gradients are copied into buckets (`replicated`), exchanged and copied back, and the optimizer updates all weights.

Exchanges take the time of the model of a collective over the stated or usual link. They take nothing from the work beside them, and the CPU
no time. The recorded exchanges of the other kind, and the copies around them, take no time any more.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.attribution import innermost
from lumos.analyze.loop.steps import members
from lumos.cost.collective import collective
from lumos.cost.memory_bound import moved
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.graph.table import Kind
from lumos.segment.dimensions import Resize, sizes
from lumos.segment.weights import weights
from lumos.trace.table import Category
from lumos.vocabulary import CollectiveKind, Phase
from lumos.whatif.layout.activations import gathered, of_stream
from lumos.whatif.layout.placed import AddedTimes, Addition, added_work, times_of
from lumos.whatif.layout.replicated import buckets_of, gradient_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.cost.cluster import Accelerator, Cluster
    from lumos.trace.table import Job
    from lumos.whatif.layout.measured_layout import Instance, MeasuredLayout
    from lumos.whatif.layout.placed import Placed
    from lumos.whatif.layout.replicated import Bucket

#: Names of the operators and ranges in which FSDP2, and DDP, copy parameters and gradients together and apart around their exchanges.
_COPIES = re.compile(r"fsdp::|aten::(split_with_sizes_copy|_chunk_cat)|torch(\.|::)distributed(\.ddp\.|::)reducer::")


class _Unit(NamedTuple):
    """What the exchanges of one layer, or of all that is outside (-1), take."""

    gather: AddedTimes
    unpack: AddedTimes
    pack: AddedTimes
    scatter: AddedTimes


def sharded(layout: MeasuredLayout, job: Job, accelerator: Accelerator | None, stage: int, cluster: Cluster | None) -> MeasuredLayout:
    """The layout of replicas with ZeRO stage 3, or 0, where the recording has the other.

    Raises LumosError where the recording has neither, where another stage is asked for, and where device or links are not known.
    """
    found = [_Exchanged(layout, job, position) for position in range(len(job.traces))]
    replicas = max(f.replicas for f in found)
    if replicas < 2:
        raise LumosError(
            f"--set zero={stage}: the recording shows no replicas that exchange gradients or gather parameters in their passes; record two"
            " of them or more, with record_shapes=True"
        )
    measured = 3 if any(len(f.gathers) for f in found) else 0
    change = f"zero = {stage} (measured: {measured})"
    if stage == measured:
        return replace(layout, changes=(*layout.changes, change))
    if stage not in (0, 3):
        raise LumosError(
            f"--set zero={stage}: what ZeRO stages 1 and 2 exchange, and when, differs between frameworks, and the recording shows neither;"
            " 0 and 3 can be asked for"
        )
    if accelerator is None or cluster is None:
        raise LumosError(f"--set zero={stage}: the device or its links are not known; describe them with --base-cluster FILE.toml or NAME")
    columns = layout.factor.copy(), layout.low.copy(), layout.high.copy()
    for each in found:
        gone = np.union1d(each.gathers, each.gradients)
        for column in columns:
            column[gone], column[each.copies] = 0.0, 0.0
            column[each.updates] *= replicas if measured == 3 else 1 / replicas
    make = partial(_gathers, layout, _units(layout, job, replicas, accelerator, cluster))
    if stage == 0:
        make = partial(_reduces, layout, _bucketed(layout, job, replicas, accelerator, cluster))
    text = (
        f"zero = {stage}: the recording shows zero = {measured}; assumed are"
        f" {'gathers and scatters of every layer (FSDP2)' if stage else 'buckets of 25 MiB (DDP)'} between {replicas} replicas over the"
        f" links of {cluster.name}, beside the passes, and that they take the CPU no time"
    )
    return replace(
        layout,
        factor=columns[0],
        low=columns[1],
        high=columns[2],
        assumed=(*layout.assumed, make),
        changes=(*layout.changes, change),
        diagnostics=(*layout.diagnostics, Diagnostic("sharding-assumed", text)),
    )


class _Exchanged:
    """What the replicas of a rank exchange by, as tasks.

    gathers: all-gathers of parameters in the passes. gradients: other exchanges of backward passes that move no activations. copies: the
    kernels that copy around the exchanges. updates: the optimizer's kernels. replicas: the size of the groups; 0 where there are none.
    """

    def __init__(self, layout: MeasuredLayout, job: Job, position: int) -> None:
        segmentation, graph, trace = layout.segmentation, layout.segmentation.graph, job.traces[position]
        rank = np.array([p.rank for p in segmentation.pieces], np.int64)[segmentation.piece]
        phase = np.array([p.label.phase for p in segmentation.pieces], np.uint8)[segmentation.piece]
        none = np.empty(0, np.int64)
        same = Resize(sizes(trace), sizes(trace))
        self.gathers = gathered(layout, position, weights(segmentation, position, trace, same))
        self.gradients = self.copies = none
        self.updates = np.flatnonzero((rank == position) & (phase == Phase.OPTIMIZER) & (graph.kind == Kind.KERNEL))
        facts = graph.collectives
        self.replicas = 0
        if facts is None or facts.size is None:
            return
        activations = np.isin(np.arange(len(facts.task)), of_stream(layout, job))
        reduces = np.array([k in (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER) for k in facts.kinds], bool)[facts.kind]
        mine = (rank[facts.task] == position) & (facts.size > 1) & ~activations
        chosen = mine & reduces & (phase[facts.task] == Phase.BACKWARD)
        if len(self.gathers):  # what is outside the layers is gathered, too
            gathers = np.array([k is CollectiveKind.ALL_GATHER for k in facts.kinds], bool)[facts.kind]
            self.gathers = np.sort(facts.task[mine & gathers & np.isin(phase[facts.task], (Phase.FORWARD, Phase.BACKWARD))]).astype(
                np.int64
            )
        self.gradients = np.sort(facts.task[chosen]).astype(np.int64)
        groups = facts.size[chosen]
        self.replicas = int(np.bincount(groups).argmax()) if len(groups) else 0
        launch = members(graph).launch
        launched = np.flatnonzero((rank == position) & (graph.kind != Kind.COLLECTIVE) & graph.on_device & (launch >= 0))
        named = np.flatnonzero(trace.named(_COPIES.match) & trace.is_any(Category.OPERATOR, Category.ANNOTATION))
        self.copies = launched[innermost(trace, named, graph.event[launch[launched]].astype(np.int64)) >= 0]


def gathers_once(layout: MeasuredLayout, job: Job) -> frozenset[int]:
    """The gathers of parameters in the passes, the copies around them, and their launches: a recomputed pass has none of its own, as the
    backward pass of its layer has gathered the parameters before, or they were kept."""
    launch = members(layout.segmentation.graph).launch
    found: set[int] = set()
    for position in range(len(job.traces)):
        exchanged = _Exchanged(layout, job, position)
        if len(exchanged.gathers):
            work = np.union1d(exchanged.gathers, exchanged.copies)
            found.update(work.tolist(), launch[work][launch[work] >= 0].tolist())
    return frozenset(found)


def _units(layout: MeasuredLayout, job: Job, replicas: int, accelerator: Accelerator, cluster: Cluster) -> list[dict[int, _Unit]]:
    """What the exchanges of every layer take, by position of the rank."""
    out = []
    for position, trace in enumerate(job.traces):
        units = {}
        for layer, nbytes in gradient_bytes(layout, trace, position).items():
            copied = times_of(moved(2 * nbytes, accelerator, "pointwise"))
            gather, scatter = (
                times_of(collective(kind, replicas, nbytes, cluster)) for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
            )
            units[layer] = _Unit(gather, copied, copied, scatter)
        out.append(units)
    return out


class _Exchange(NamedTuple):
    """A bucket, what its exchange takes, and what copying it takes, once."""

    bucket: Bucket
    time: AddedTimes
    copy: AddedTimes


def _bucketed(layout: MeasuredLayout, job: Job, replicas: int, accelerator: Accelerator, cluster: Cluster) -> list[list[_Exchange]]:
    """The exchanges of DDP, by position of the rank."""
    return [
        [
            _Exchange(
                bucket,
                times_of(collective(CollectiveKind.ALL_REDUCE, replicas, bucket.nbytes, cluster)),
                times_of(moved(2 * bucket.nbytes, accelerator, "pointwise")),
            )
            for bucket in buckets_of(layout, gradient_bytes(layout, trace, position), position)
        ]
        for position, trace in enumerate(job.traces)
    ]


def _reduces(layout: MeasuredLayout, found: list[list[_Exchange]], placed: Placed) -> Iterator[Addition]:
    """The exchanges of DDP in every step, each between two copies of its bucket, of which the second are after the backward pass."""
    joined, count = len(layout.ranks) > 1, 0
    for rank, of_rank in enumerate(found):
        of_step: list[tuple[int, _Exchange]] = []
        for number, each in enumerate(of_rank):
            filling = tuple(added_work(placed, each.bucket.after)[-1:].tolist())
            following = tuple(added_work(placed, each.bucket.after + 1)[:1].tolist())
            if not filling or not following:
                continue
            meets = number if joined else -1
            lanes = "assumed copies", "assumed exchange"
            yield Addition("copy of gradients (assumed)", rank, lanes[0], each.copy, filling, following, each.bucket.after)
            yield Addition("all_reduce of gradients (assumed)", rank, lanes[1], each.time, filling, (), each.bucket.after, (count,), meets)
            of_step.append((count + 1, each))
            count += 2
            if each.bucket.last:
                for exchange, other in of_step:
                    name = "copy of reduced gradients (assumed)"
                    yield Addition(name, rank, lanes[0], other.copy, filling, following, each.bucket.after, (exchange,))
                    count += 1
                of_step = []


class _Run(NamedTuple):
    """A pass over one layer, or over what lies before, between or after layers (-1). first, last: its tasks on the device."""

    layer: int
    phase: Phase
    inner: bool
    first: int
    last: int
    instance: int


class _Additions:
    """The additions so far, and the rank that they are of. number: of the rank's exchanges, which is the same on all of them."""

    def __init__(self, joined: bool) -> None:
        self.all: list[Addition] = []
        self.joined, self.rank, self.number = joined, -1, 0

    def next_rank(self) -> None:
        self.rank, self.number = self.rank + 1, 0

    def copy(
        self, name: str, time: AddedTimes, after: tuple[int, ...], before: tuple[int, ...], run: _Run, follows: tuple[int, ...]
    ) -> int:
        """Add a copy on the device; returns its position."""
        self.all.append(Addition(f"copy of {name} (assumed)", self.rank, "assumed copies", time, after, before, run.instance, follows))
        return len(self.all) - 1

    def exchange(
        self, name: str, time: AddedTimes, after: tuple[int, ...], before: tuple[int, ...], run: _Run, follows: tuple[int, ...]
    ) -> int:
        """Add an exchange between the replicas; returns its position."""
        meets = self.number if self.joined else -1
        self.number += 1
        lane = f"assumed {name.split()[0]}"
        self.all.append(Addition(f"{name} (assumed)", self.rank, lane, time, after, before, run.instance, follows, meets))
        return len(self.all) - 1


def _gathers(layout: MeasuredLayout, units: list[dict[int, _Unit]], placed: Placed) -> Iterator[Addition]:
    """The exchanges of FSDP2 in every step."""
    out = _Additions(joined=len(layout.ranks) > 1)
    for rank, runs in enumerate(_runs(layout, placed)):
        out.next_rank()
        unpacked: tuple[int, ...] = ()
        for before, run, following in zip([None, *runs[:-1]], runs, [*runs[1:], None], strict=True):
            unit = units[rank].get(run.layer)
            if unit is None or run.phase not in (Phase.FORWARD, Phase.BACKWARD):
                continue
            begins = run.phase == Phase.FORWARD and (before is None or before.phase not in (Phase.FORWARD, Phase.BACKWARD))
            if run.layer >= 0 or begins:
                got = out.exchange("all_gather of parameters", unit.gather, (), (run.first,), run, unpacked)
                after = (before.last,) if before is not None else ()
                unpacked = (out.copy("parameters", unit.unpack, after, (run.first,), run, (got,)),)
            ends = following is None or following.phase != Phase.BACKWARD
            if run.phase == Phase.BACKWARD and not run.inner and (run.layer >= 0 or ends):
                then = (following.first,) if following is not None else ()
                packed = out.copy("gradients", unit.pack, (run.last,), then, run, ())
                out.exchange("reduce_scatter of gradients", unit.scatter, (run.last,), then if ends else (), run, (packed,))
    return iter(out.all)


def _runs(layout: MeasuredLayout, placed: Placed) -> list[list[_Run]]:
    """The passes over single layers of every rank, in order."""
    on_device = np.flatnonzero((placed.graph.kind == Kind.KERNEL) & (placed.source >= 0))
    tasks: dict[int, list[int]] = defaultdict(list)
    for task, instance in zip(on_device.tolist(), placed.instance[on_device].tolist(), strict=True):
        tasks[instance].append(task)
    out, number = [], 0
    for items in layout.ranks:
        numbered = list(enumerate(items, number))
        number += len(items)
        runs: list[_Run] = []
        for (_, phase, layer, _, _), group in groupby(numbered, key=lambda e: _key(layout, e[1])):
            mine = list(group)
            found = [task for n, _ in mine for task in tasks[n]]
            if found:
                runs.append(_Run(layer, Phase(phase), mine[-1][1].inner, found[0], found[-1], mine[-1][0]))
        out.append(runs)
    return out


def _key(layout: MeasuredLayout, item: Instance) -> tuple[int, int, int, int, bool]:
    """What the instances of one pass over one layer share: step, phase, layer and microbatch, and whether it runs for the second time."""
    piece = layout.pieces[item.piece]
    label = piece.label
    phase = Phase.BACKWARD if label.phase == Phase.RECOMPUTE else label.phase
    return piece.step, int(phase), label.layer, label.microbatch, item.thread_of >= 0
