"""The messages between the stages of a pipeline: a send and a receive between every two passes of a microbatch over neighbouring chunks.

A pass begins when the activations, or their gradients, have come from the stage that has them. Nothing else waits for a message.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.errors import LumosError
from lumos.graph.table import Kind
from lumos.whatif.layout.placed import AddedTimes, Addition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumos.trace.table import Int64
    from lumos.whatif.layout.placed import Placed


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
    first, last = _ends(placed)
    known = {(r.replica, r.step, r.backward, r.microbatch, r.place): i for i, r in enumerate(runs)}
    meetings: dict[tuple[int, int], int] = defaultdict(lambda: len(meetings))
    for i, run in enumerate(runs):
        ahead = -1 if run.backward else 1
        for sends, place in ((False, run.place - ahead), (True, run.place + ahead)):
            other = known.get((run.replica, run.step, run.backward, run.microbatch, place)) if 0 <= place < places else None
            if other is None or runs[other].rank == run.rank:
                continue
            what = "gradients" if run.backward else "activations"
            name = f"{'send' if sends else 'receive'} of {what} (assumed)"
            meets = meetings[(i, other) if sends else (other, i)]
            tasks = [t for t in (last if sends else first)[run.first : run.last + 1].tolist() if t >= 0]
            if not tasks:
                raise LumosError("--set pp: a pass of the recording has no work on its device, so its stages cannot be told")
            task = tasks[-1] if sends else tasks[0]
            after, before = ((task,), ()) if sends else ((), (task,))
            yield Addition(name, run.rank, name, time, after, before, run.last if sends else run.first, meets=meets)


def _ends(placed: Placed) -> tuple[Int64, Int64]:
    """The first and the last task of every instance that computes, on the device where the job has one; -1 for none."""
    graph = placed.graph
    works = np.flatnonzero(graph.kind == (Kind.KERNEL if graph.on_device.any() else Kind.OPERATOR))
    works = works[placed.source[works] >= 0]
    instances = placed.instance[works]
    length = int(placed.instance.max(initial=-1)) + 1
    first, last = np.full(length, -1, np.int64), np.full(length, -1, np.int64)
    first[instances[::-1]], last[instances] = works[::-1], works
    return first, last
