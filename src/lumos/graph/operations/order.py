"""What follows what in an operation-level job, but for what ranks do together.

A rank makes its calls one after another. What stands aside hangs between the calls that it needs and those that need it:
gathered parameters before the first forward pass of their chunk, reduced gradients between its last backward pass and the
first collective of the step's tail, and the sends of an interleaved pipeline between two passes of different ranks.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from lumos.graph.operations.meetings import KIND_OF
from lumos.graph.operations.table import Operations
from lumos.trace.table import Int64
from lumos.vocabulary import CollectiveKind


def program_order(ops: Operations) -> tuple[Int64, Int64]:
    """Edges before[i] -> after[i] between operations: the calls of each rank, what stands aside, and overlapped passes."""
    before: list[int] = []
    after: list[int] = []
    bounds = np.flatnonzero(np.diff(ops.rank * len(ops.steps) + ops.step)) + 1
    call, aside = ops.call.tolist(), ops.aside.tolist()
    for low, high in pairwise([0, *bounds.tolist(), len(ops)]):
        previous: list[int] = []
        current: list[int] = []
        for i in (i for i in range(low, high) if not aside[i]):
            if current and call[i] != call[current[0]]:
                previous, current = current, []
            current.append(i)
            before += previous
            after += [i] * len(previous)
        _attach(ops, low, high, before, after)
    source, target = fed(ops)
    return np.array([*before, *source], np.int64), np.array([*after, *target], np.int64)


def _attach(ops: Operations, low: int, high: int, before: list[int], after: list[int]) -> None:
    """Hang what stands aside in one rank's step between the calls that it needs and those that need it."""
    named = [ops.names[n] for n in ops.name[low:high]]
    for i in range(low, high):
        if not ops.aside[i]:
            continue
        name, chunk = named[i - low], ops.chunk[i]
        of_chunk = [j for j in range(low, high) if ops.chunk[j] == chunk]
        if name == "params-all-gather":
            needs = [j for j in of_chunk if named[j - low] == "forward-compute"][:1]
            before += [i] * len(needs)
            after += needs
        elif name == "grads-reduce-scatter":
            last = [j for j in of_chunk if named[j - low] == "backward-compute"][-1:]
            tail = [j for j in range(low, high) if KIND_OF.get(named[j - low]) is CollectiveKind.ALL_REDUCE][:1]
            before += [*last, *([i] * len(tail))]
            after += [*([i] * len(last)), *tail]
        else:  # a send that overlaps with compute leaves its pass
            passed = [j for j in of_chunk if not ops.aside[j] and ops.call[j] == ops.call[i]]
            before += passed
            after += [i] * len(passed)


def fed(ops: Operations) -> tuple[Int64, Int64]:
    """(send, pass that takes its output) where sends stand aside; edges between ranks without a meeting."""
    stages, sends = ops.plan.stages, np.flatnonzero(ops.aside & ops.is_named("forward-send", "backward-send"))
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
