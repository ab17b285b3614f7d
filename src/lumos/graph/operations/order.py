"""The order of the operations of an operation-level job, apart from what their meetings impose.

A rank makes its blocking calls one after another. An asynchronous operation comes after the calls that it needs and before
those that need it: the gather of parameters before the first forward pass of their chunk, the reduction of gradients between
the last backward pass of their chunk and the first all-reduce of the step, and the send of an interleaved pipeline between
two passes of different ranks.
"""

from __future__ import annotations

from itertools import chain, groupby, pairwise, product
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.operations.table import BACKWARD, FORWARD
from lumos.trace.operations import KNOWN
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.graph.operations.table import Operations
    from lumos.trace.table import Int64


def program_order(ops: Operations) -> tuple[Int64, Int64]:
    """Edges before[i] -> after[i] between operations: between the calls of each rank, into and out of asynchronous operations,
    and from sends of interleaved pipelines to the passes that take their output."""
    call, asynchronous = ops.call.tolist(), ops.asynchronous.tolist()
    blocking = [[i for i in range(*step) if not asynchronous[i]] for step in ops.each_step()]
    calls = [[list(of_call) for _, of_call in groupby(step, call.__getitem__)] for step in blocking]
    in_turn = (product(*pair) for of_step in calls for pair in pairwise(of_step))
    around = (_around(ops, i, *step) for step in ops.each_step() for i in range(*step) if asynchronous[i])
    fed = zip(*passes_fed(ops), strict=True)
    before, after = np.array([*chain(*in_turn), *chain(*around), *fed], np.int64).reshape(-1, 2).T
    return before, after


def _around(ops: Operations, at: int, low: int, high: int) -> Iterator[tuple[int, int]]:
    """The edges into and out of the asynchronous operation `at` within its rank's step, the operations low to high - 1."""
    of_chunk = low + np.flatnonzero(ops.chunk[low:high] == ops.chunk[at])
    kind = KNOWN[ops.names[ops.name[at]]].kind
    before = after = of_chunk[:0]
    if kind is CollectiveKind.ALL_GATHER:
        after = of_chunk[ops.is_named(FORWARD)[of_chunk]][:1]
    elif kind is CollectiveKind.REDUCE_SCATTER:
        before = of_chunk[ops.is_named(BACKWARD)[of_chunk]][-1:]
        reductions = [name for name in ops.names if KNOWN[name].kind is CollectiveKind.ALL_REDUCE]
        after = low + np.flatnonzero(ops.is_named(*reductions)[low:high])[:1]
    else:  # a send that overlaps with compute needs its own pass
        before = of_chunk[~ops.asynchronous[of_chunk] & (ops.call[of_chunk] == ops.call[at])]
    return chain(product(before.tolist(), [at]), product([at], after.tolist()))


def passes_fed(ops: Operations) -> tuple[Int64, Int64]:
    """Edges from asynchronous sends to the passes that take their output: (sends, passes). Such sends have no meeting."""
    backward, position = ops.is_named(BACKWARD, "backward-send"), ops.position()
    passes, sends = ops.is_named(FORWARD, BACKWARD), ops.asynchronous & ops.is_named("forward-send", "backward-send")
    fed = position + np.where(passes, 0, np.where(backward, -1, 1))
    key = list(zip(*(column.tolist() for column in (backward, ops.step, ops.dp, ops.microbatch, fed)), strict=True))
    of_key = {key[i]: i for i in np.flatnonzero(passes).tolist()}
    pairs = [(i, of_key[key[i]]) for i in np.flatnonzero(sends).tolist() if key[i] in of_key]
    source, target = np.array(pairs, np.int64).reshape(-1, 2).T
    return source, target
