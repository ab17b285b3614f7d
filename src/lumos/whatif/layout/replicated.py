"""A job of one process as one of several replicas: it exchanges its gradients as DistributedDataParallel would.

The recording shows no exchange, so all of it is assumed: gradients are as wide as the weights that the multiplications read; they are
gathered into buckets in the order of the backward pass of the last microbatch; a bucket is exchanged as soon as the layers that fill it
have run, one after the other on a stream of their own, beside the rest of the backward pass; what follows the backward pass waits for the
last. The exchange takes the time of the model of an all-reduce over the stated or usual link. New replicas do the same work at the same
time, and the exchange takes nothing from the work beside it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.steps import assigned
from lumos.cost.collective import collective
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.graph.edges import Edges
from lumos.graph.lists import list_of
from lumos.graph.table import Dependency, Kind, Processor
from lumos.segment.dimensions import Resize, Shapes, sizes
from lumos.segment.weights import weights
from lumos.units import count as counted
from lumos.vocabulary import CollectiveKind, DType, Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.cost.cluster import Cluster
    from lumos.trace.table import Int64, Trace
    from lumos.whatif.layout.measured_layout import MeasuredLayout
    from lumos.whatif.layout.place import Placed

#: Bytes of gradients that DistributedDataParallel exchanges at once, the first time and later (torch 2: bucket_cap_mb=25 and a first
#: bucket of 1 MiB).
FIRST_BUCKET, BUCKET = 1 << 20, 25 << 20


class Bucket(NamedTuple):
    """One exchange of a step. after: the instance of the layout that fills the bucket. last: whether it is the last of its step, for which
    the instance after it waits."""

    after: int
    nbytes: int
    last: bool


class Replicated(NamedTuple):
    """The placed job with the exchanges of its gradients, and its layout, which says what is assumed."""

    placed: Placed
    layout: MeasuredLayout


def replicate(placed: Placed, layout: MeasuredLayout, trace: Trace, replicas: int, cluster: Cluster) -> Replicated:
    """The placed job of one process as one of `replicas`.

    Raises LumosError where the recording does not show the weights or the backward pass.
    """
    buckets = list(_buckets(layout, _gradient_bytes(layout, trace, _weight_bytes(trace))))
    if not buckets:
        raise LumosError(
            f"--set dp: {trace.path} shows no backward pass with the shapes of its weights, so it is not known how many gradients its"
            " replicas would exchange; record a training step with record_shapes=True"
        )
    times = [collective(CollectiveKind.ALL_REDUCE, replicas, b.nbytes, cluster) for b in buckets]
    added = _added(placed, buckets, [(int(t.time), int(t.low), int(t.high)) for t in times])
    steps = sum(b.last for b in buckets)
    megabytes = sum(b.nbytes for b in buckets) / steps / 1e6
    text = (
        f"dp = {replicas}: the recording is of one process and shows no exchange of gradients; assumed are {megabytes:,.0f} MB a step in"
        f" {counted(len(buckets) // steps, 'bucket')}, exchanged beside the backward pass over the links of {cluster.name}, and replicas"
        " that work alike"
    )
    notes = (*layout.diagnostics, Diagnostic("exchange-assumed", text))
    return Replicated(added, replace(layout, changes=(*layout.changes, f"dp = {replicas} (measured: 1)"), diagnostics=notes))


def _weight_bytes(trace: Trace) -> int:
    """Bytes of one weight: of the type that most multiplications and convolutions read; 4 where the trace does not say."""
    found: Counter[str] = Counter()
    for o, times in Shapes(trace).counted():
        if len(o.dtypes) > 1 and o.dtypes[1] and any(word in o.name for word in ("linear", "conv", "addmm")) and "backward" not in o.name:
            found[o.dtypes[1]] += times
    dtype = DType.parse(found.most_common(1)[0][0]) if found else None
    return dtype.bytes if dtype is not None else DType.FP32.bytes


def _gradient_bytes(layout: MeasuredLayout, trace: Trace, each: int) -> dict[int, int]:
    """Bytes of the gradients by layer, -1 outside the layers."""
    same = Resize(sizes(trace), sizes(trace))
    return {layer: each * n for layer, n in weights(layout.segmentation, 0, trace, same).items() if n}


def _buckets(layout: MeasuredLayout, gradients: dict[int, int]) -> Iterator[Bucket]:
    """The exchanges of every step, in order. The gradients of a layer are ready after the last of its pieces, those outside the layers at
    the end of the backward pass."""
    items = [(number, item, layout.pieces[item.piece]) for number, item in enumerate(layout.ranks[0])]
    backward = [e for e in items if e[2].label.phase == Phase.BACKWARD and not e[1].inner and e[1].thread_of < 0]
    for _, group in groupby(backward, key=lambda e: e[2].step):
        of_step = list(group)
        last_pass = [e for e in of_step if e[2].label.microbatch == of_step[-1][2].label.microbatch]
        runs = [list(run) for _, run in groupby(last_pass, key=lambda e: e[2].label.layer)]
        ready: dict[int, int] = defaultdict(int)
        for run in runs:
            if run[0][2].label.layer >= 0:
                repeats = Counter(item.piece for _, item, _ in run).most_common(1)[0][1]
                ready[run[-1][0]] += gradients.get(run[0][2].label.layer, 0) * repeats
        ready[last_pass[-1][0]] += gradients.get(-1, 0)
        yield from _filled(ready, last_pass[-1][0])


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


def _added(placed: Placed, buckets: list[Bucket], times: list[tuple[int, int, int]]) -> Placed:
    """The placed job with a task for every bucket, on a processor of its own."""
    graph, owners, n = placed.graph, placed.owners, len(placed.graph)
    on_device = bool(graph.on_device.any())
    filling = [_work_of(placed, b.after, on_device) for b in buckets]
    new = np.arange(n, n + len(buckets))
    edges = Edges()
    for kind in Dependency:
        same = graph.pred_kind == kind
        edges.add(graph.pred[same].astype(np.int64), list_of(graph.pred_offset)[same], kind)
    own_kind = Dependency.STREAM_WAIT if on_device else Dependency.HAND_OFF
    last = np.array([w[-1] if len(w) else -1 for w in filling], np.int64)
    edges.add(last, new, own_kind)
    if on_device:
        edges.add(np.where(last >= 0, owners.launch[last], -1).astype(np.int64), new, Dependency.LAUNCH)
    pairs = np.array(list(pairwise(new.tolist())), np.int64).reshape(-1, 2)
    edges.add(pairs[:, 0], pairs[:, 1], Dependency.STREAM_ORDER if on_device else Dependency.THREAD_ORDER)
    for task, bucket in zip(new.tolist(), buckets, strict=True):
        if bucket.last:
            following = _work_of(placed, bucket.after + 1, on_device)[:1]
            edges.add(np.full(len(following), task), following, own_kind)
    predecessors = edges.predecessors(n + len(new))
    name = "all_reduce of gradients (assumed)"
    lane = Processor(graph.ranks[0], on_device, "assumed exchange", device=0 if on_device else -1, stream=1 << 20 if on_device else -1)
    columns = np.array(times, np.int64).reshape(-1, 3)
    size = len(new)
    graph = replace(
        graph,
        processors=(*graph.processors, lane),
        names=(*graph.names, name),
        duration=np.concatenate((graph.duration, columns[:, 0])),
        processor=np.concatenate((graph.processor, np.full(size, len(graph.processors), np.int32))),
        kind=np.concatenate((graph.kind, np.full(size, Kind.COLLECTIVE, graph.kind.dtype))),
        name=np.concatenate((graph.name, np.full(size, len(graph.names), np.int32))),
        event=np.concatenate((graph.event, np.full(size, -1, np.int32))),
        pred_offset=predecessors.offset,
        pred=predecessors.task,
        pred_kind=predecessors.kind,
    )
    after = np.array([b.after for b in buckets], np.int64)
    step = np.concatenate((owners.step, np.array([owners.step[t] if t >= 0 else -1 for t in last.tolist()], np.int32)))
    return replace(
        placed,
        graph=graph,
        owners=assigned(graph, owners.steps, step, owners.apart),
        low=np.concatenate((placed.low, np.minimum(columns[:, 1], columns[:, 0]))),
        high=np.concatenate((placed.high, np.maximum(columns[:, 2], columns[:, 0]))),
        source=np.concatenate((placed.source, np.full(size, -1))),
        instance=np.concatenate((placed.instance, after)),
    )


def _work_of(placed: Placed, instance: int, on_device: bool) -> Int64:
    """The tasks of an instance that compute, on the device where there is one, in order."""
    tasks = np.flatnonzero(placed.instance == instance)
    found: Int64 = tasks[placed.graph.on_device[tasks] == on_device]
    return found
