"""The order of the operations of an operation-level job, apart from what their meetings impose.

A rank makes its blocking calls one after another. An asynchronous operation comes after the calls that it needs and before
those that need it: the gather of parameters before the first forward pass of their chunk, the reduction of gradients between
the last backward pass of their chunk and the first all-reduce of the step, and the send of an interleaved pipeline between
two passes of different ranks.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.operations.meetings import KIND_OF
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from lumos.graph.operations.table import Operations
    from lumos.trace.table import Int64


def program_order(ops: Operations) -> tuple[Int64, Int64]:
    """Edges before[i] -> after[i] between operations: between the calls of each rank, into and out of asynchronous operations,
    and from sends of interleaved pipelines to the passes that take their output."""
    before: list[int] = []
    after: list[int] = []
    bounds = np.flatnonzero(np.diff(ops.rank * len(ops.steps) + ops.step)) + 1
    call, asynchronous = ops.call.tolist(), ops.asynchronous.tolist()
    for low, high in pairwise([0, *bounds.tolist(), len(ops)]):
        previous: list[int] = []
        current: list[int] = []
        for i in (i for i in range(low, high) if not asynchronous[i]):
            if current and call[i] != call[current[0]]:
                previous, current = current, []
            current.append(i)
            before += previous
            after += [i] * len(previous)
        _attach(ops, low, high, before, after)
    source, target = passes_fed(ops)
    return np.array([*before, *source], np.int64), np.array([*after, *target], np.int64)


def _attach(ops: Operations, low: int, high: int, before: list[int], after: list[int]) -> None:
    """Add the edges into and out of the asynchronous operations low to high - 1, which are one rank's step."""
    named = [ops.names[n] for n in ops.name[low:high]]
    for i in range(low, high):
        if not ops.asynchronous[i]:
            continue
        name, chunk = named[i - low], ops.chunk[i]
        of_chunk = [j for j in range(low, high) if ops.chunk[j] == chunk]
        if name == "params-all-gather":
            first = [j for j in of_chunk if named[j - low] == "forward-compute"][:1]
            before += [i] * len(first)
            after += first
        elif name == "grads-reduce-scatter":
            last = [j for j in of_chunk if named[j - low] == "backward-compute"][-1:]
            following = [j for j in range(low, high) if KIND_OF.get(named[j - low]) is CollectiveKind.ALL_REDUCE][:1]
            before += [*last, *([i] * len(following))]
            after += [*([i] * len(last)), *following]
        else:  # a send that overlaps with compute needs its own pass
            passed = [j for j in of_chunk if not ops.asynchronous[j] and ops.call[j] == ops.call[i]]
            before += passed
            after += [i] * len(passed)


def passes_fed(ops: Operations) -> tuple[Int64, Int64]:
    """Edges from asynchronous sends to the passes that take their output: (sends, passes). Such sends have no meeting."""
    stages, sends = ops.plan.stages, np.flatnonzero(ops.asynchronous & ops.is_named("forward-send", "backward-send"))
    passes: dict[tuple[object, ...], int] = {}
    for i in np.flatnonzero(ops.is_named("forward-compute", "backward-compute")) if len(sends) else ():
        place = int(ops.chunk[i]) * stages + int(ops.stage[i])
        passes[ops.names[ops.name[i]].partition("-")[0], int(ops.step[i]), int(ops.dp[i]), int(ops.microbatch[i]), place] = int(i)
    source, target = [], []
    for i in sends:
        direction = ops.names[ops.name[i]].partition("-")[0]
        place = int(ops.chunk[i]) * stages + int(ops.stage[i]) + (1 if direction == "forward" else -1)
        to = passes.get((direction, int(ops.step[i]), int(ops.dp[i]), int(ops.microbatch[i]), place))
        if to is not None:
            source.append(int(i))
            target.append(to)
    return np.array(source, np.int64), np.array(target, np.int64)
