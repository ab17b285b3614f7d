"""Replicas that exchange their gradients as DistributedDataParallel would, where the recording does not show it: a job of one process as
one of several, or replicas that shared their states.

All of it is assumed: gradients have the sizes and types that autograd gathers, and are ready where it does so; where the trace does not
show that, they are those of the weights that the multiplications read, and ready at the end of a layer. They are gathered into buckets in
the order of the backward pass of the last microbatch; a bucket is exchanged as soon as it is full, one after the other on a stream of their
own, beside the rest of the backward pass; what follows the backward pass waits for the last, after which its gradients are copied back,
those of the buckets before while it is exchanged, and after it where their copies take longer. The exchange takes the time of the model of
an all-reduce over the stated or usual link, a copy that of the memory that it moves, and on the CPU that of an operator with one kernel.
New replicas do the same work at the same time, and the exchange takes nothing from the work beside it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.changes.layout.accumulate import accumulation
from lumos.changes.layout.measured_layout import NOTHING, Extra, by_repetition
from lumos.changes.layout.parallel.split import stream_width
from lumos.changes.layout.placed import SPREAD, Addition, added_work, on_busiest, that_compute, times_of
from lumos.changes.layout.rates import unrecorded
from lumos.cost.collective_model import collective
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.graph.lists import grouped
from lumos.graph.table import Kind
from lumos.operators.shaped import elements
from lumos.segment.rank import recordings_of
from lumos.units import count as counted
from lumos.vocabulary import CollectiveKind, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lumos.changes.layout.measured_layout import Instance, MeasuredLayout
    from lumos.changes.layout.placed import AddedTimes, Placed
    from lumos.changes.machine import Machine
    from lumos.cost.cluster import Accelerator
    from lumos.segment.rank import RankRecording
    from lumos.segment.segment import Label
    from lumos.trace.table import Job

#: Bytes of gradients that DistributedDataParallel exchanges at once, the first time and later (torch 2: bucket_cap_mb=25 and a first
#: bucket of 1 MiB).
FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20


class Bucket(NamedTuple):
    """One exchange of a step. after: the instance of the layout that fills the bucket. task: the recorded one in it behind which the bucket
    is full, -1 for its last one. last: whether it is the last of its pass, for which the instance behind the pass waits."""

    after: int
    task: int
    nbytes: int
    last: bool


def replicate(layout: MeasuredLayout, job: Job, shaped: Job, copies: tuple[int, int], machine: Machine) -> MeasuredLayout:
    """The layout of one process as one of several. shaped: the traces with the shapes that the changed job has. copies: the replicas, and
    the ranks of each that share its sequences; all of them exchange gradients. machine: on which they run.

    Raises LumosError where the recording does not show the weights or the backward pass, and where nothing says what links there are.
    """
    (replicas, sharing), cluster = copies, machine.link("dp")

    def time(nbytes: int) -> AddedTimes:
        modelled = collective(CollectiveKind.ALL_REDUCE, replicas * sharing, nbytes, cluster)
        return unrecorded(times_of(modelled), stated=machine.stated)

    gradients = GradientBuckets(layout, job, shaped, machine.accelerator, time)
    if not any(gradients.of_rank):
        raise LumosError(
            f"--set dp: {job.traces[0].path} shows no backward pass with the shapes of its weights, so it is not known how many gradients"
            " its replicas would exchange; record a training step with record_shapes=True"
        )
    buckets = gradients.of_rank[0]
    steps = sum(bucket.last for bucket in buckets)
    megabytes = sum(bucket.nbytes for bucket in buckets) / steps / 1e6
    text = (
        f"{f'dp = {replicas}' if replicas > 1 else f'cp = {sharing}'}: the recording is of one process and shows no exchange of gradients;"
        f" assumed are {megabytes:,.0f} MB a step in {counted(len(buckets) // steps, 'bucket')}, exchanged beside the backward pass over"
        f" the {'' if machine.stated else 'usual '}links of {cluster.name}, and all work alike"
        + ("" if machine.stated else f"; --base-cluster says which they are: else they take half to {SPREAD:.0f} times as long")
    )
    notes = (*layout.diagnostics, Diagnostic("exchange-assumed", text))
    changes = (*layout.changes, *((f"dp = {replicas} (measured: 1)",) if replicas > 1 else ()))
    return replace(layout, assumed=(*layout.assumed, gradients.exchanged), changes=changes, diagnostics=notes)


def gradient_bytes(rank: RankRecording) -> dict[int, int]:
    """Bytes of the gradients by layer, -1 outside the layers."""
    total: dict[int, int] = defaultdict(int)
    for gradient in rank.gradients:
        total[gradient.layer] += gradient.width * elements(gradient.shape)
    if total:
        return dict(total)
    width = stream_width(rank.trace)
    return {layer: width * n for layer, n in rank.weights().items() if n}


def times_ready(layout: MeasuredLayout, position: int = 0) -> Counter[int]:
    """How often a step of the rank at a position has the gradients of every recorded layer, and of what is outside (-1)."""
    times = next((sum(step.ready.values(), Counter[int]()) for step in backward_ends(layout, position)), Counter[int]())
    times[-1] = 1
    return times


def moments(rank: RankRecording) -> dict[int, list[tuple[int, int]]]:
    """By piece the gradients that a rank gathers in it, in order: the task of the piece behind which each is ready, -1 for what was
    launched before the piece, and its bytes. rank: with the shapes that the changed job has."""
    segmentation, mine = rank.segmentation, rank.tasks
    unit, piece = segmentation.unit, segmentation.piece
    piece_of = dict(zip(unit[mine].tolist(), piece[mine].tolist(), strict=True))
    working = that_compute(segmentation.graph, mine)
    inside = grouped(piece[working], len(segmentation.pieces))
    number = {int(row): i for i, row in enumerate(rank.units.row.tolist())}
    numbered = ((number[row], g.width * elements(g.shape)) for g in rank.gradients for row in g.rows)
    out: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for at, nbytes in sorted(one for one in numbered if one[0] in piece_of):
        one = piece_of[at]
        tasks = working[inside.flat[inside.offset[one] : inside.offset[one + 1]]]
        before = tasks[unit[tasks] <= at]
        out[one].append((int(before[-1]) if len(before) else -1, nbytes))
    return dict(out)


class BackwardEnd(NamedTuple):
    """The end of a backward pass. ready: the instances after which gradients are ready, and the layers whose they are (-1: outside
    the layers). instances: all of the pass, in order."""

    ready: dict[int, Counter[int]]
    instances: tuple[int, ...]

    @property
    def end(self) -> int:
        """The last instance."""
        return self.instances[-1]


def backward_ends(layout: MeasuredLayout, position: int = 0, exchanging: frozenset[int] = frozenset()) -> Iterator[BackwardEnd]:
    """The ends of those backward passes of the rank at a position that exchange gradients: the last of each step, and those with a piece of
    `exchanging`. The gradients of a layer are ready after the last of its pieces, those outside the layers where the layers begin or at the
    end of the backward pass."""
    first = sum(map(len, layout.ranks[:position]))
    numbered = enumerate(layout.ranks[position], first)
    backward = [e for e in numbered if _label(layout, e).phase == Phase.BACKWARD and not e[1].inner and e[1].thread_of < 0]
    for _, group in groupby(backward, key=lambda e: layout.pieces[e[1].piece].step):
        of_step = list(group)
        last = _label(layout, of_step[-1]).microbatch
        for microbatch, one_pass in groupby(of_step, key=lambda e: _label(layout, e).microbatch):
            items = list(one_pass)
            if microbatch == last or any(item.piece in exchanging for _, item in items):
                yield _backward_end(layout, items)


def _backward_end(layout: MeasuredLayout, one_pass: list[tuple[int, Instance]]) -> BackwardEnd:
    """The end of a backward pass of these numbered instances."""
    ready: dict[int, Counter[int]] = defaultdict(Counter)
    of_stage = not layout.of_recorded_ranks  # of a new stage, which may have neither what is before the layers nor what is after them
    for layer, run in groupby(one_pass, key=lambda e: _label(layout, e).layer):
        if layer >= 0:
            for once in by_repetition(run):
                ready[once[-1][0]][layer] += 1
        elif ready:
            of_stage = False
    instances = tuple(number for number, _ in one_pass)
    ready[instances[-1]][-1] += not of_stage
    return BackwardEnd(ready, instances)


def _label(layout: MeasuredLayout, numbered: tuple[int, Instance]) -> Label:
    return layout.pieces[numbered[1].piece].label


def buckets_of(
    layout: MeasuredLayout, rank: RankRecording, position: int = 0, exchanging: frozenset[int] = frozenset()
) -> Iterator[Bucket]:
    """The exchanges of every step of the rank at a position, in order. rank: of which it is made, with the shapes that the changed job has.
    exchanging: as `backward_ends`."""
    by_layer, gathered = gradient_bytes(rank), moments(rank)
    first = sum(map(len, layout.ranks[:position]))
    for step in backward_ends(layout, position, exchanging):
        in_pieces = ((instance, gathered.get(layout.ranks[position][instance - first].piece, ())) for instance in step.instances)
        ready = [(instance, task, nbytes) for instance, several in in_pieces for task, nbytes in several]
        if not ready:
            totals = ((at, sum(times * by_layer.get(layer, 0) for layer, times in of.items())) for at, of in sorted(step.ready.items()))
            ready = [(at, -1, nbytes) for at, nbytes in totals if nbytes]
        waiting, limit = 0, FIRST_BUCKET
        for number, (instance, task, nbytes) in enumerate(ready, 1):
            waiting += nbytes
            if waiting >= limit or number == len(ready):
                yield Bucket(instance, task, waiting, last=number == len(ready))
                waiting, limit = 0, BUCKET


class GradientBuckets:
    """The exchanges of gradients of all ranks of a layout, in buckets. of_rank: the buckets of each. exchanging: by position the pieces in
    which the recording exchanged gradients, so that their passes do. time: what the exchange of so many bytes takes."""

    def __init__(
        self,
        layout: MeasuredLayout,
        job: Job,
        shaped: Job,
        accelerator: Accelerator | None,
        time: Callable[[int], AddedTimes],
        exchanging: Sequence[frozenset[int]] = (),
    ) -> None:
        self.layout, self.time = layout, cache(time)
        self.exchanging = exchanging or [frozenset()] * len(layout.ranks)
        self.of_rank: list[list[Bucket]] = []
        self.copies: list[dict[int, Extra]] = []
        before, after = (recordings_of(layout.segmentation, traces_of) for traces_of in (job, shaped))
        for position, recorded in enumerate(layout.recorded):
            self.of_rank.append(list(buckets_of(layout, after[recorded], position, self.exchanging[position])))
            self.copies.append(accumulation(before[recorded], accelerator, passes=2, after=after[recorded]))

    def exchanged(self, placed: Placed) -> Iterator[Addition]:
        """A piece of added work for every bucket, the last of a pass with what copying its gradients into the buckets and back takes."""
        for position, buckets in enumerate(self.of_rank):
            ends = iter(backward_ends(self.layout, position, self.exchanging[position]))
            for before_it, bucket in zip([None, *buckets], buckets, strict=False):
                step = next(ends) if bucket.last else None
                filling = added_work(placed, bucket.after)
                filling = filling[placed.source[filling] == bucket.task] if bucket.task >= 0 else filling
                waiting = added_work(placed, step.end + 1)[:1] if step else filling[:0]
                since = before_it.after if before_it is not None else -1
                copies = _copies(placed, self.copies[position], step, since, self.time(bucket.nbytes).best) if step else ()
                if len(filling) or len(waiting):
                    name, after, before = "all_reduce of gradients (assumed)", tuple(filling[-1:].tolist()), tuple(waiting.tolist())
                    yield Addition(
                        name, position, "assumed exchange", self.time(bucket.nbytes), after, before, bucket.after,
                        group=len(placed.graph.ranks), copies=copies,
                    )  # fmt: skip


def _copies(placed: Placed, of_layer: Mapping[int, Extra], step: BackwardEnd, since: int, exchange: int) -> tuple[tuple[int, int], ...]:
    """What copying the gradients of a backward pass into the buckets and back adds to tasks of the placed job: to the last ones until the
    layer's gradients are ready, where most of the pass runs, and for the way back to the last operator of the pass and to the first kernel
    after it. of_layer: what copying the gradients of each layer takes. since: the instance behind which the last bucket begins: those
    before it are copied back while it is exchanged, and after that where this takes longer than the exchange, ns."""
    of_instance, kind = placed.instance, placed.graph.kind
    out: list[tuple[int, int]] = []
    back, beside, in_pass = Extra(), 0, np.isin(of_instance, step.instances)
    lanes = [on_busiest(placed.graph, np.flatnonzero(in_pass & (kind == of_kind))) for of_kind in (Kind.OPERATOR, Kind.KERNEL)]
    for instance, layers in step.ready.items():
        extra = sum((of_layer.get(layer, NOTHING) for layer in layers.elements()), NOTHING)
        back += extra if instance > since else Extra(cpu=extra.cpu)
        beside += extra.device if instance <= since else 0
        for tasks, ns in zip(lanes, extra, strict=True):
            out += [(task, ns) for task in tasks[of_instance[tasks] <= instance][-1:].tolist()]
    operators = np.flatnonzero((of_instance == step.end) & (kind == Kind.OPERATOR))[-1:]
    kernels = np.flatnonzero((of_instance == step.end + 1) & (kind == Kind.KERNEL))[:1]
    device = back.device + max(0, beside - exchange)
    return (*out, *((task, back.cpu) for task in operators.tolist()), *((task, device) for task in kernels.tolist()))
