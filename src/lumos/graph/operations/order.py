"""The order of the operations of an operation-level job, apart from what their meetings impose.

A rank makes its blocking calls one after another. An asynchronous operation comes after the calls that it needs and before
those that need it: the gather of parameters before the first forward pass of their chunk, the reduction of gradients between
the last backward pass of their chunk and the first all-reduce of the step, and the send of an interleaved pipeline between
two passes of different ranks.

The sends and receives that a pipeline's passes imply, where a recording has only the passes.

Each pass needs the output of the previous stage (forward) or of the next stage (backward) for its microbatch and chunk.
Without interleaving, transfers block, as in Megatron-LM's 1F1B: between two passes of one direction a rank sends, then
receives; where the direction changes, both are one call with one peer. With interleaving they overlap with compute: there
is no call to receive, and the pass waits for the send.

A call lasts from the end of the pass before it to the start of the pass after it. Where that time is shared by a send and
then a receive, the send gets its first `transfer` ns.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, groupby, pairwise, product
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.operations.table import BACKWARD, FORWARD, Operations
from lumos.trace.operations import KNOWN, LANES
from lumos.trace.table import ABSENT, Int64
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


_SENDS, _RECEIVES = ("forward-send", "backward-send"), ("forward-recv", "backward-recv")


def with_transfers(ops: Operations, transfer: int = 0) -> Operations:
    """The passes with their sends and receives. Both sides of a transfer have the same sequence number."""
    ops = replace(ops, names=tuple(dict.fromkeys((*ops.names, *_SENDS, *_RECEIVES))))
    passes, begins = np.arange(len(ops)), np.array([low for low, _ in ops.each_step()])
    first, last = np.isin(passes, begins), np.isin(passes + 1, [*begins, len(ops)])
    backward, place, chunks = ops.is_named(BACKWARD), ops.position(), ops.plan.chunks
    after, before = place + np.where(backward, -1, 1), place - np.where(backward, -1, 1)
    gives, takes = ((to >= 0) & (to < ops.plan.stages * chunks) for to in (after, before))
    # Each pass has three numbers of calls: for the send of the pass before it, for its receive, and for itself.
    ops = replace(ops, call=3 * passes + 2)
    if chunks > 1:
        sends = _added(ops, passes[gives], _SENDS, ops.chunk, ops.call, ops.end, ops.end + transfer)
        return _in_order(ops.with_rows(replace(sends, asynchronous=np.ones(len(sends), bool))))
    finish = np.where(last, ops.end + transfer, np.roll(ops.start, -1))
    both = gives & np.roll(takes, -1) & ~last
    one_call = both & (backward != np.roll(backward, -1))
    shared = both & ~one_call
    cut = np.where(shared, np.minimum(ops.end + transfer, finish), finish)
    begin = np.where(first, 0, np.roll(np.where(shared, cut, ops.end), 1))
    sends = _added(ops, passes[gives], _SENDS, ops.chunk, 3 * passes + 3, ops.end, cut)
    receives = _added(ops, passes[takes], _RECEIVES, before // ops.plan.stages, 3 * passes + 1 - np.roll(one_call, 1), begin, ops.start)
    return _in_order(ops.with_rows(sends, receives))


def _in_order(ops: Operations) -> Operations:
    """The operations by rank, step and call; those of a call by lane."""
    return ops.picked(np.lexsort((ops.lane, ops.call, ops.step, ops.rank)))


def _added(ops: Operations, passes: Int64, names: tuple[str, str], chunk: Int64, call: Int64, start: Int64, end: Int64) -> Operations:
    """One transfer for each of `passes`, by what every pass would have: the chunk of the sender, the call and its times (ns)."""
    name = np.where(ops.is_named(BACKWARD)[passes], *(ops.names.index(name) for name in reversed(names)))
    return ops.picked(
        passes,
        name=name,
        lane=np.full(len(passes), LANES.index(KNOWN[names[0]].lane)),
        row=np.full(len(passes), ABSENT),
        call=call[passes],
        start=start[passes],
        end=np.maximum(start, end)[passes],
        chunk=chunk[passes],
        sequence=(ops.microbatch * ops.plan.chunks + chunk)[passes],
    )
