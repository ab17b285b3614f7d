"""The sends and receives that a pipeline's passes imply, where a recording has only the passes.

Each pass needs the output of the previous stage (forward) or of the next stage (backward) for its microbatch and chunk.
Without interleaving, transfers block, as in Megatron-LM's 1F1B: between two passes of one direction a rank sends, then
receives; where the direction changes, both are one call with one peer. With interleaving they overlap with compute: there
is no call to receive, and the pass waits for the send.

A call lasts from the end of the pass before it to the start of the pass after it. Where that time is shared by a send and
then a receive, the send gets its first `transfer` ns.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from lumos.graph.operations.table import OPERATION_COLUMNS, RECEIVES, SENDS, Operations
from lumos.trace.operations import LANE_OF, LANES
from lumos.trace.table import ABSENT

FORWARD, BACKWARD = 0, 1


class _Pass(NamedTuple):
    """One pass. takes, gives: the links by which it receives its input and sends its output, each as (direction, from stage, to
    stage, microbatch, chunk at the sender); None at the ends of the pipeline. at: its operation."""

    at: int
    direction: int
    takes: tuple[int, ...] | None
    gives: tuple[int, ...] | None


def with_transfers(operations: Operations, transfer: int = 0) -> Operations:
    """The passes with their sends and receives. Both sides of a transfer have the same sequence number."""
    names = (*operations.names, *(n for n in (*SENDS, *RECEIVES) if n not in operations.names))
    rows = _Rows(operations, {name: i for i, name in enumerate(names)})
    bounds = np.flatnonzero(np.diff(operations.rank * len(operations.steps) + operations.step)) + 1
    for low, high in pairwise([0, *bounds.tolist(), len(operations)]):
        if operations.plan.chunks == 1:
            _blocking(rows, [_pass(operations, i) for i in range(low, high)], transfer)
        else:
            _overlapped(rows, [_pass(operations, i) for i in range(low, high)], transfer)
    added = np.array(rows.columns, np.int64).reshape(-1, len(OPERATION_COLUMNS)).T
    call = np.array(rows.call, np.int64)
    columns: dict[str, Any] = {key: np.concatenate((getattr(operations, key), added[i])) for i, key in enumerate(OPERATION_COLUMNS)}
    columns["call"][: len(operations)] = call
    order = np.lexsort((columns["lane"], columns["call"], columns["step"], columns["rank"]))
    columns = {key: values[order] for key, values in columns.items()}
    columns["asynchronous"] = columns["asynchronous"].astype(bool)
    return replace(operations, names=names, **columns)


class _Rows:
    """Rows to add (in the order of COLUMNS) and the new call numbers of the passes."""

    def __init__(self, operations: Operations, index: dict[str, int]) -> None:
        self.operations = operations
        self.index = index
        self.links: dict[tuple[int, ...], int] = {}
        self.columns: list[tuple[int, ...]] = []
        self.call: list[int] = []

    def add(
        self, kind: tuple[str, str], link: tuple[int, ...], at: int, call: int, start: int, end: int, asynchronous: bool = False
    ) -> None:
        """Add one transfer of the rank and step of the pass `at`."""
        ops, name = self.operations, kind[link[0]]
        sequence = link[3] * ops.plan.chunks + link[4]
        self.columns.append(
            (
                int(ops.rank[at]), int(ops.step[at]), call, self.index[name], LANES.index(LANE_OF[name]), start, max(start, end),
                ABSENT, int(ops.stage[at]), int(ops.dp[at]), link[3], link[4], sequence, int(asynchronous),
            )
        )  # fmt: skip


def _pass(ops: Operations, at: int) -> _Pass:
    """The pass of operation `at`, with its links."""
    stages, chunks = ops.plan.stages, ops.plan.chunks
    direction = FORWARD if ops.names[ops.name[at]] == "forward-compute" else BACKWARD
    microbatch = int(ops.microbatch[at])
    here = int(ops.chunk[at]) * stages + int(ops.stage[at])  # place among all chunks of the model, in forward order
    move = 1 if direction == FORWARD else -1
    before, behind = here - move, here + move

    def link(sender: int, receiver: int) -> tuple[int, ...] | None:
        if not (0 <= sender < stages * chunks and 0 <= receiver < stages * chunks):
            return None
        return direction, sender % stages, receiver % stages, microbatch, sender // stages

    return _Pass(at, direction, link(before, here), link(here, behind))


def _blocking(rows: _Rows, passes: list[_Pass], transfer: int) -> None:
    """Add the calls of one rank and step without interleaving."""
    ops, call = rows.operations, 0
    first = passes[0]
    if first.takes is not None:
        rows.add(RECEIVES, first.takes, first.at, call, 0, int(ops.start[first.at]))
        call += 1
    for this, following in [*pairwise(passes), (passes[-1], None)]:
        rows.call.append(call)
        call += 1
        begin = int(ops.end[this.at])
        finish = begin + transfer if following is None else int(ops.start[following.at])
        takes = None if following is None else following.takes
        both = this.gives is not None and takes is not None
        together = both and following is not None and following.direction != this.direction
        cut = min(begin + transfer, finish) if both and not together else finish
        if this.gives is not None:
            rows.add(SENDS, this.gives, this.at, call, begin, cut)
            call += not together
        if takes is not None:
            rows.add(RECEIVES, takes, this.at, call, begin if together or not both else cut, finish)
            call += 1


def _overlapped(rows: _Rows, passes: list[_Pass], transfer: int) -> None:
    """Add the sends of one rank and step with interleaving, which are asynchronous; a receive needs no operation of its own."""
    ops = rows.operations
    for call, this in enumerate(passes):
        rows.call.append(call)
        if this.gives is not None:
            rows.add(SENDS, this.gives, this.at, call, int(ops.end[this.at]), int(ops.end[this.at]) + transfer, asynchronous=True)
