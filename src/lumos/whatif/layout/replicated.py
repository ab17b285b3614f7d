"""A job of one process as one of several replicas: it exchanges its gradients as DistributedDataParallel would.

The recording shows no exchange, so all of it is assumed: gradients have the sizes and types that autograd gathers or, where the trace
does not show these, those of the weights that the multiplications read; they are gathered into buckets in the order of the backward pass
of the last microbatch; a bucket is exchanged as soon as the layers that fill it have run, one after the other on a stream of their own,
beside the rest of the backward pass; what follows the backward pass waits for the last. The exchange takes the time of the model of an
all-reduce over the stated or usual link. New replicas do the same work at the same time, and the exchange takes nothing from the work
beside it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from lumos.cost.collective import collective
from lumos.cost.operators import elements
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.segment.dimensions import Resize, Shapes, sizes
from lumos.segment.weights import gradients, weights
from lumos.units import count as counted
from lumos.vocabulary import CollectiveKind, DType, Phase
from lumos.whatif.layout.placed import AddedTimes, Addition, add_work, added_work, times_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.cost.cluster import Cluster
    from lumos.trace.table import Trace
    from lumos.whatif.layout.measured_layout import MeasuredLayout
    from lumos.whatif.layout.placed import Placed

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
    buckets = list(buckets_of(layout, gradient_bytes(layout, trace)))
    if not buckets:
        raise LumosError(
            f"--set dp: {trace.path} shows no backward pass with the shapes of its weights, so it is not known how many gradients its"
            " replicas would exchange; record a training step with record_shapes=True"
        )
    times = [collective(CollectiveKind.ALL_REDUCE, replicas, b.nbytes, cluster) for b in buckets]
    added = add_work(placed, list(_exchanges(placed, buckets, [times_of(t) for t in times])))
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


def gradient_bytes(layout: MeasuredLayout, trace: Trace, position: int = 0) -> dict[int, int]:
    """Bytes of the gradients by layer, -1 outside the layers."""
    total: dict[int, int] = defaultdict(int)
    for gradient in gradients(layout.segmentation, position, trace):
        total[gradient.layer] += gradient.width * elements(gradient.shape)
    if total:
        return dict(total)
    same, each = Resize(sizes(trace), sizes(trace)), _weight_bytes(trace)
    return {layer: each * n for layer, n in weights(layout.segmentation, position, trace, same).items() if n}


def buckets_of(layout: MeasuredLayout, gradients: dict[int, int], position: int = 0) -> Iterator[Bucket]:
    """The exchanges of every step of the rank at a position, in order. The gradients of a layer are ready after the last of its pieces,
    those outside the layers at the end of the backward pass."""
    first = sum(map(len, layout.ranks[:position]))
    items = [(number, item, layout.pieces[item.piece]) for number, item in enumerate(layout.ranks[position], first)]
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


def _exchanges(placed: Placed, buckets: list[Bucket], times: list[AddedTimes]) -> Iterator[Addition]:
    """A piece of added work for every bucket."""
    for bucket, time in zip(buckets, times, strict=True):
        filling = added_work(placed, bucket.after)
        waiting = added_work(placed, bucket.after + 1)[:1] if bucket.last else filling[:0]
        if len(filling) or len(waiting):
            name = "all_reduce of gradients (assumed)"
            after, before = tuple(filling[-1:].tolist()), tuple(waiting.tolist())
            yield Addition(name, 0, "assumed exchange", time, after, before, bucket.after)
