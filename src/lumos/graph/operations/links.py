"""What the operations of an operation-level job wait for: the calls before them, the passes that feed them, and the ranks that they meet.

A rank makes its blocking calls one after another. An asynchronous operation comes after the calls that it needs and before
those that need it: the gather of parameters before the first forward pass of their chunk, the reduction of gradients between
the last backward pass of their chunk and the first all-reduce of the step, and the send of an interleaved pipeline between
two passes of different ranks.

*Meetings*: a send meets its receive. A collective meets the same collective of the other ranks of its group, the k-th of its kind in the
step. The transfer lasts from the latest arrival to the operation's own end; the rest of its measured duration is waiting. Where a rank is
absent from the recording its arrival is unknown. A collective then meets those that are there, and its transfer is a bound, because the
absent rank may have arrived later; a send or receive keeps its measured duration.

*Transfers*: where a recording has only the passes of a pipeline, these imply its sends and receives. Each pass needs the output of the
previous stage (forward) or of the next stage (backward) for its microbatch and chunk. Without interleaving, transfers block, as in
Megatron-LM's 1F1B: between two passes of one direction a rank sends, then receives; where the direction changes, both are one call with one
peer. With interleaving they overlap with compute: there is no call to receive, and the pass waits for the send. A call lasts from the end
of the pass before it to the start of the pass after it. Where that time is shared by a send and then a receive, the send gets its first
`transfer` ns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, groupby, pairwise, product
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.lists import end_to_end
from lumos.graph.operations.table import BACKWARD, FORWARD, Operations
from lumos.trace.operations import KNOWN, LANES, Meets
from lumos.trace.table import ABSENT, Int64, unique
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

#: The place of a rank in the plan: its stage and its data-parallel rank.
_Place = tuple[int, int]


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
    backward, position, chunks = ops.is_named(BACKWARD), ops.position(), ops.plan.chunks
    after, before = position + np.where(backward, -1, 1), position - np.where(backward, -1, 1)
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


@dataclass(frozen=True, slots=True, eq=False)
class Meetings:
    """The meeting of each operation.

    meeting: int64[n], -1 for operations that meet no other. group: int64[n], index into `groups`, -1 without one. offset,
    members: the operations of each meeting, in CSR form. incomplete: bool[n], operations whose meeting lacks a rank or a row.
    transfer: int64[n] ns, 0 outside meetings. cleaned: how many transfers were negative, because clocks differ, and were replaced
    by the median of their kind.
    """

    meeting: Int64
    group: Int64
    groups: tuple[str, ...]
    offset: Int64
    members: Int64
    incomplete: NDArray[np.bool_]
    transfer: Int64
    cleaned: int


def meetings(ops: Operations) -> Meetings:
    """Find the meetings of the operations of all ranks."""
    rows_by_key: dict[tuple[int, str, str, int], list[int]] = {}
    whole: dict[tuple[int, str, str, int], set[_Place]] = {}
    groups: dict[str, int] = {}
    group, meeting = np.full((2, len(ops)), -1, np.int64)
    given = set(zip(ops.stage.tolist(), ops.dp.tolist(), strict=True))
    columns = [getattr(ops, key).tolist() for key in ("name", "step", "stage", "dp", "sequence")]
    for i, (number, step, stage, dp, sequence) in enumerate(zip(*columns, strict=True)):
        name = ops.names[number]
        if KNOWN[name].kind is None:
            continue
        label, places = _group(ops, name, stage, dp)
        group[i] = groups.setdefault(label, len(groups))
        if len(places) > 1:
            key = (step, label, name.replace("-recv", "-send"), sequence)
            rows_by_key.setdefault(key, []).append(i)
            whole[key] = places
    # A lost row shifts the sequence numbers after it, so where one is missing nothing of that kind, group and step is matched.
    broken = {key[:3] for key, rows in rows_by_key.items() if len(rows) != len(whole[key] & given)}
    offset, members = end_to_end([rows for key, rows in rows_by_key.items() if key[:3] not in broken and len(rows) > 1])
    meeting[members] = np.repeat(np.arange(len(offset) - 1), np.diff(offset))
    incomplete = np.zeros(len(ops), bool)
    for key, rows in rows_by_key.items():
        incomplete[rows] = key[:3] in broken or not whole[key] <= given
    transfer, cleaned = _transfers(ops, meeting, offset, members)
    return Meetings(meeting, group, tuple(groups), offset, members, incomplete, transfer, cleaned)


def _group(ops: Operations, name: str, stage: int, dp: int) -> tuple[str, set[_Place]]:
    """The name of a transfer's group and the places of the ranks that meet in it."""
    plan, own, meets = ops.plan, {(stage, dp)}, KNOWN[name].meets
    if meets in (Meets.NEXT, Meets.PREVIOUS):
        direction, _, side = name.partition("-")
        peer = stage + (1 if meets is Meets.NEXT else -1)
        if plan.chunks == 1 and not 0 <= peer < plan.stages:
            return f"{direction} dp {dp} beyond the pipeline", own  # recorded, but nothing was sent
        peer %= plan.stages
        sender, receiver = (stage, peer) if side == "send" else (peer, stage)
        overlapped = plan.chunks > 1 and not ops.recorded_transfers
        return f"{direction} dp {dp} stage {sender} to {receiver}", own if overlapped else own | {(peer, dp)}
    if meets is Meets.REPLICAS:
        return f"data parallel, stage {stage}", {(stage, d) for d in range(plan.dp)}
    if meets is Meets.ENDS:
        return f"embeddings, dp {dp}", {(0, dp), (plan.stages - 1, dp)}
    return ("all ranks", set(product(range(plan.stages), range(plan.dp)))) if meets is Meets.ALL else ("within the rank", own)


def _transfers(ops: Operations, meeting: Int64, offset: Int64, members: Int64) -> tuple[Int64, int]:
    """The transfer of every operation, and how many negative ones were replaced by the median of their kind."""
    transfer = np.zeros(len(ops), np.int64)
    if not len(members):
        return transfer, 0
    arrival = np.maximum.reduceat(ops.start[members], offset[:-1])
    transfer[members] = ops.end[members] - arrival[meeting[members]]
    wrong = (meeting >= 0) & (transfer < 0)
    for name in unique(ops.name[wrong]):
        alike = (meeting >= 0) & (ops.name == name) & ~wrong
        transfer[wrong & (ops.name == name)] = int(np.median(transfer[alike])) if alike.any() else 0
    return transfer, int(wrong.sum())
