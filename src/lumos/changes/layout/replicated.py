"""A job of one process as one of several replicas: it exchanges its gradients as DistributedDataParallel would.

The recording shows no exchange, so all of it is assumed: gradients have the sizes and types that autograd gathers or, where the trace
does not show these, those of the weights that the multiplications read; they are gathered into buckets in the order of the backward pass
of the last microbatch; a bucket is exchanged as soon as the layers that fill it have run, one after the other on a stream of their own,
beside the rest of the backward pass; what follows the backward pass waits for the last, after which the gradients are copied back. The
exchange takes the time of the model of an all-reduce over the stated or usual link, a copy that of the memory that it moves, and on the
CPU that of an operator with one kernel. New replicas do the same work at the same time, and the exchange takes nothing from the work
beside it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.changes.layout.accumulate import accumulation, operator_ns
from lumos.changes.layout.measured_layout import NOTHING, Extra, by_repetition
from lumos.changes.layout.placed import AddedTimes, Addition, add_work, added_work, longer, roughly, times_of
from lumos.cost.collective_model import collective
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.graph.table import Kind
from lumos.operators.shaped import elements
from lumos.segment.dimensions import shapes_of
from lumos.segment.weights import gradients, weights
from lumos.units import count as counted
from lumos.vocabulary import CollectiveKind, DType, Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.changes.layout.measured_layout import Instance, MeasuredLayout
    from lumos.changes.layout.placed import Placed
    from lumos.cost.cluster import Accelerator, Cluster
    from lumos.segment.segment import Label
    from lumos.trace.table import Int8, Int64, Trace

#: Bytes of gradients that DistributedDataParallel exchanges at once, the first time and later (torch 2: bucket_cap_mb=25 and a first
#: bucket of 1 MiB).
FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20
#: In place of a layer: what comes before all layers in a backward pass.
HEAD = -2


class Bucket(NamedTuple):
    """One exchange of a step. after: the instance of the layout that fills the bucket. last: whether it is the last of its pass, for which
    the instance after it waits."""

    after: int
    nbytes: int
    last: bool


class Replicated(NamedTuple):
    """The placed job with the exchanges of its gradients, and its layout, which says what is assumed."""

    placed: Placed
    layout: MeasuredLayout


def replicate(
    placed: Placed,
    layout: MeasuredLayout,
    trace: Trace,
    after: Trace,
    copies: tuple[int, int],
    cluster: Cluster,
    accelerator: Accelerator | None,
) -> Replicated:
    """The placed job of one process as one of several. after: its trace with the shapes that the changed job has. copies: the replicas, and
    the ranks of each that share its sequences; all of them exchange gradients. accelerator: on which it ran; None for a CPU.

    Raises LumosError where the recording does not show the weights or the backward pass.
    """
    buckets = list(buckets_of(layout, ready_bytes(layout, after)))
    if not buckets:
        raise LumosError(
            f"--set dp: {trace.path} shows no backward pass with the shapes of its weights, so it is not known how many gradients its"
            " replicas would exchange; record a training step with record_shapes=True"
        )
    replicas, sharing = copies
    times = [collective(CollectiveKind.ALL_REDUCE, replicas * sharing, b.nbytes, cluster) for b in buckets]
    each = operator_ns(layout, 0, trace) if accelerator is not None else 0.0
    copied = longer(placed, _copies(placed, layout, accumulation(layout, 0, trace, accelerator, passes=2, after=after)))
    added = add_work(copied, list(_exchanges(placed, buckets, [times_of(t) for t in times])), [each])
    steps = sum(b.last for b in buckets)
    megabytes = sum(b.nbytes for b in buckets) / steps / 1e6
    text = (
        f"{f'dp = {replicas}' if replicas > 1 else f'cp = {sharing}'}: the recording is of one process and shows no exchange of gradients;"
        f" assumed are {megabytes:,.0f} MB a step in {counted(len(buckets) // steps, 'bucket')}, exchanged beside the backward pass over"
        f" the links of {cluster.name}, and all work alike"
    )
    notes = (*layout.diagnostics, Diagnostic("exchange-assumed", text))
    changes = (*layout.changes, *((f"dp = {replicas} (measured: 1)",) if replicas > 1 else ()))
    return Replicated(added, replace(layout, changes=changes, diagnostics=notes))


def _weight_bytes(trace: Trace) -> int:
    """Bytes of one weight: of the type that most multiplications and convolutions read; 4 where the trace does not say."""
    found: Counter[str] = Counter()
    for o, times in shapes_of(trace).counted():
        if len(o.dtypes) > 1 and o.dtypes[1] and any(word in o.name for word in ("linear", "conv", "addmm")) and "backward" not in o.name:
            found[o.dtypes[1]] += times
    dtype = DType.parse(found.most_common(1)[0][0]) if found else None
    return dtype.bytes if dtype is not None else DType.FP32.bytes


def gradient_bytes(layout: MeasuredLayout, trace: Trace, position: int = 0) -> dict[int, int]:
    """Bytes of the gradients by layer, -1 outside the layers."""
    total: dict[int, int] = defaultdict(int)
    for gradient in gradients(layout.segmentation, position, trace):
        total[gradient.layer] += gradient.width * elements(gradient.shape)
    if total:
        return dict(total)
    each = _weight_bytes(trace)
    return {layer: each * n for layer, n in weights(layout.segmentation, position, trace).items() if n}


def times_ready(layout: MeasuredLayout, position: int = 0) -> Counter[int]:
    """How often a step of the rank at a position has the gradients of every recorded layer, and of what is outside (-1)."""
    found = next((sum(step.ready.values(), Counter[int]()) for step in backward_ends(layout, position)), Counter[int]())
    found[-1] = 1
    return found


def ready_bytes(layout: MeasuredLayout, trace: Trace, position: int = 0) -> dict[int, int]:
    """The same, with those that are gathered before any layer's (an output layer's own) under HEAD."""
    total = gradient_bytes(layout, trace, position)
    found = gradients(layout.segmentation, position, trace)
    if any(gradient.layer >= 0 for gradient in found):
        first = takewhile(lambda gradient: gradient.layer < 0, found)
        total[HEAD] = sum(gradient.width * elements(gradient.shape) for gradient in first)
        total[-1] = total.get(-1, 0) - total[HEAD]
    return total


def _copies(placed: Placed, layout: MeasuredLayout, of_layer: dict[int, Extra]) -> dict[int, AddedTimes]:
    """What copying the gradients into the buckets and back adds to tasks of the placed job: to the last ones of the layer whose gradients
    they are, and for the way back to the last operator of the backward pass and to the first kernel after it. of_layer: what copying the
    gradients of each layer takes."""
    of_instance, kind = placed.instance, placed.graph.kind
    more: Counter[int] = Counter()
    for step in backward_ends(layout):
        back = Extra()
        for instance, layers in step.ready.items():
            extra = sum((of_layer.get(layer, NOTHING) for layer in layers.elements()), NOTHING)
            back += extra
            _lengthen(more, np.flatnonzero(of_instance == instance), kind, extra)
        _lengthen(more, np.flatnonzero(of_instance == step.end), kind, Extra(cpu=back.cpu))
        following = np.flatnonzero((of_instance == step.end + 1) & (kind == Kind.KERNEL))[:1]
        _lengthen(more, following, kind, Extra(device=back.device))
    return {task: roughly(ns) for task, ns in more.items()}


def _lengthen(more: Counter[int], tasks: Int64, kind: Int8, extra: Extra) -> None:
    """Add the extra time to that of the last operator and of the last kernel among tasks, in place."""
    for of_kind, ns in ((Kind.OPERATOR, extra.cpu), (Kind.KERNEL, extra.device)):
        for task in tasks[kind[tasks] == of_kind][-1:].tolist():
            more[task] += ns


class BackwardEnd(NamedTuple):
    """The end of a backward pass. ready: the instances after which gradients are ready, and the layers whose they are (-1: outside
    the layers, HEAD: before them). end: the last instance."""

    ready: dict[int, Counter[int]]
    end: int


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
    for layer, run in groupby(one_pass, key=lambda e: _label(layout, e).layer):
        if layer >= 0:
            for once in by_repetition(run):
                ready[once[-1][0]][layer] += 1
        elif not ready:
            ready[list(run)[-1][0]][HEAD] += 1
    end = one_pass[-1][0]
    ready[end][-1] += 1
    return BackwardEnd(ready, end)


def _label(layout: MeasuredLayout, numbered: tuple[int, Instance]) -> Label:
    return layout.pieces[numbered[1].piece].label


def buckets_of(
    layout: MeasuredLayout, gradients: dict[int, int], position: int = 0, exchanging: frozenset[int] = frozenset()
) -> Iterator[Bucket]:
    """The exchanges of every step of the rank at a position, in order. gradients: their bytes by layer. exchanging: as `backward_ends`."""
    for step in backward_ends(layout, position, exchanging):
        nbytes = {
            instance: sum(times * gradients.get(layer, 0) for layer, times in layers.items()) for instance, layers in step.ready.items()
        }
        yield from _filled(nbytes, step.end)


def _filled(ready: dict[int, int], end: int) -> Iterator[Bucket]:
    """Buckets from the bytes that are ready after each instance. end: the last instance of the backward pass."""
    waiting, limit = 0, FIRST_BUCKET
    for instance, nbytes in sorted(ready.items()):
        waiting += nbytes
        if waiting >= limit and instance != end:
            yield Bucket(instance, waiting, last=False)
            waiting, limit = 0, BUCKET
    if any(ready.values()):
        yield Bucket(end, max(waiting, 1), last=True)


def _exchanges(placed: Placed, buckets: list[Bucket], times: list[AddedTimes]) -> Iterator[Addition]:
    """A piece of added work for every bucket."""
    for bucket, time in zip(buckets, times, strict=True):
        filling = added_work(placed, bucket.after)
        waiting = added_work(placed, bucket.after + 1)[:1] if bucket.last else filling[:0]
        if len(filling) or len(waiting):
            name = "all_reduce of gradients (assumed)"
            after, before = tuple(filling[-1:].tolist()), tuple(waiting.tolist())
            yield Addition(name, 0, "assumed exchange", time, after, before, bucket.after)
