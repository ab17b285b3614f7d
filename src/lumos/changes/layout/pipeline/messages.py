"""The messages between the stages of a pipeline: a send and a receive between every two passes of a microbatch over neighbouring chunks.

A pass begins when the activations, or their gradients, have come from the stage that has them. Nothing else waits for a message.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.steps import members
from lumos.changes.layout.placed import AddedTimes, Addition, on_busiest
from lumos.errors import LumosError
from lumos.graph.table import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumos.changes.layout.placed import Placed


class PassRun(NamedTuple):
    """A pass of one microbatch over one chunk. place: the chunk's among all, in the order of the forward pass. first, last: instances of
    the layout, numbered through over its ranks."""

    rank: int
    replica: int
    step: int
    backward: bool
    microbatch: int
    place: int
    first: int
    last: int


def messages(runs: Sequence[PassRun], places: int, time: AddedTimes, placed: Placed) -> Iterator[Addition]:
    """A send and a receive between every two passes of a microbatch over neighbouring chunks, each rank's in the order of its passes."""
    ends = _ends(placed, runs)
    known = {(r.replica, r.step, r.backward, r.microbatch, r.place): i for i, r in enumerate(runs)}
    meetings: dict[tuple[int, int], int] = defaultdict(lambda: len(meetings))
    for i, run in enumerate(runs):
        ahead = -1 if run.backward else 1
        for sends, neighbour in ((False, run.place - ahead), (True, run.place + ahead)):
            other = known.get((run.replica, run.step, run.backward, run.microbatch, neighbour)) if 0 <= neighbour < places else None
            if other is None or runs[other].rank == run.rank:
                continue
            what = "gradients" if run.backward else "activations"
            name = f"{'send' if sends else 'receive'} of {what} (assumed)"
            meets = meetings[(i, other) if sends else (other, i)]
            first, last = ends[i]
            after, before = ((last,), ()) if sends else ((), (first,))
            yield Addition(name, run.rank, name, time, after, before, run.last if sends else run.first, meets=meets)


def _ends(placed: Placed, runs: Sequence[PassRun]) -> list[tuple[int, int]]:
    """The first and the last task of every pass that computes, on the device where the job has one. They are those that one thread runs or
    launches, the one of most of them, on the stream of most of them: what another thread does after the pass, as a schedule that divides
    gradients, no message waits for, nor what another stream does beside it, as gathers of parameters.

    Raises LumosError where a pass has no such task.
    """
    graph = placed.graph
    works = np.flatnonzero(graph.kind == (Kind.KERNEL if graph.on_device.any() else Kind.OPERATOR))
    works = works[placed.source[works] >= 0]
    works = works[np.argsort(placed.instance[works], kind="stable")]
    instance = placed.instance[works]
    launch = members(graph).launch[works]
    thread = graph.processor[np.where(launch >= 0, launch, works)]
    out = []
    for run in runs:
        mine = slice(int(np.searchsorted(instance, run.first, "left")), int(np.searchsorted(instance, run.last, "right")))
        if mine.start == mine.stop:
            raise LumosError("--set pp: a pass of the recording has no work on its device, so its stages cannot be told")
        own = on_busiest(graph, works[mine][thread[mine] == np.bincount(thread[mine]).argmax()])
        out.append((int(own[0]), int(own[-1])))
    return out
