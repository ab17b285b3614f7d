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

import numpy as np

from lumos.graph.operations.table import BACKWARD, Operations
from lumos.trace.operations import KNOWN, LANES
from lumos.trace.table import ABSENT, Int64

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
