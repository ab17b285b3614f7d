"""Replicas that each update a part of the parameters, and then send it to the others.

The part of a replica is made of whole parameters, as PyTorch's `ZeroRedundancyOptimizer` shares them: the largest first, each to the
replica that has least so far. So a large embedding can make the parts unequal; the interval reaches to equal parts, as where parameters
are cut. After the update every parameter is broadcast, one after the other, and what comes next waits for the last. Megatron's distributed
optimizer gathers them all at once, which is the low end of the interval where nobody says which of the two the job does.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from lumos.changes.layout.placed import AddedTimes, Addition
from lumos.changes.layout.replicated import gradient_bytes, times_ready
from lumos.operators.shaped import elements
from lumos.trace.table import unique
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.changes.layout.placed import Placed
    from lumos.changes.layout.rates import Rates
    from lumos.plan.framework import Framework
    from lumos.segment.rank import RankRecording
    from lumos.trace.table import Int64


def parameters_of(layout: MeasuredLayout, rank: RankRecording) -> list[int]:
    """The bytes of every parameter of a rank; of all of a layer together where the trace shows no more. rank: with the shapes that the
    changed job has."""
    times = times_ready(layout, rank.position)
    sizes = [(g.layer, g.width * elements(g.shape)) for g in rank.gradients] or list(gradient_bytes(rank).items())
    return [nbytes for layer, nbytes in sizes if nbytes for _ in range(times[layer])]


def largest_part(parameters: Sequence[int], replicas: int) -> float:
    """The share of all parameters that the replica with most of them updates."""
    parts = [0] * replicas
    for nbytes in sorted(parameters, reverse=True):
        heapq.heapreplace(parts, parts[0] + nbytes)
    return max(parts) / sum(parts) if sum(parts) else 1.0


def sending(parameters: Sequence[int], replicas: int, rates: Rates, framework: Framework | None) -> AddedTimes:
    """What it takes to send all updated parameters to all replicas. framework: of the job, where somebody said."""
    at_once = rates.exchange(CollectiveKind.ALL_GATHER, replicas, sum(parameters))
    if framework is not None and not framework.dtensor:
        return at_once
    broadcasts = [rates.exchange(CollectiveKind.BROADCAST, replicas, nbytes) for nbytes in parameters]
    best, low, high = (sum(getattr(broadcast, end) for broadcast in broadcasts) for end in AddedTimes._fields)
    return AddedTimes(best, min(at_once.low, best) if framework is None else low, high)


def sent(updates: Sequence[Int64], times: Sequence[AddedTimes], placed: Placed) -> Iterator[Addition]:
    """The exchange of updated parameters in every step of every rank, between its last update and what comes next on that stream.

    updates: the optimizer's tasks in the recording, and times: what the exchange takes, by position of the rank.
    """
    ends = [_ends(placed, tasks) for tasks in updates]
    for rank, (of_rank, time) in enumerate(zip(ends, times, strict=True)):
        for last, following in of_rank:
            name, instance = "broadcast of parameters (assumed)", int(placed.instance[last])
            yield Addition(name, rank, "assumed broadcast", time, (last,), following, instance, group=len(updates))


def _ends(placed: Placed, updates: Int64) -> list[tuple[int, tuple[int, ...]]]:
    """The last update of every step on the stream that has most of them, and the task behind it there, if there is one."""
    tasks = np.flatnonzero(np.isin(placed.source, updates))
    if not len(tasks):
        return []
    stream = int(np.bincount(placed.graph.processor[tasks]).argmax())
    all_of_stream = np.flatnonzero(placed.graph.processor == stream)
    tasks, out = tasks[placed.graph.processor[tasks] == stream], []
    for step in unique(placed.owners.step[tasks]).tolist():
        last = int(tasks[placed.owners.step[tasks] == step][-1])
        behind = all_of_stream[np.searchsorted(all_of_stream, last, "right") :][:1]
        if step >= 0:
            out.append((last, tuple(behind.tolist())))
    return out
