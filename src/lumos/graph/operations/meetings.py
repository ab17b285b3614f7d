"""Which operations of an operation-level job transfer together (a meeting), and how long the transfer takes.

A send meets its receive. A collective meets the same collective of the other ranks of its group, the k-th of its kind in the step. The
transfer lasts from the latest arrival to the operation's own end; the rest of its measured duration is waiting. Where a rank is absent from
the recording its arrival is unknown. A collective then meets those that are there, and its transfer is a bound, because the absent rank may
have arrived later; a send or receive keeps its measured duration.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.lists import end_to_end
from lumos.trace.operations import KNOWN, Meets
from lumos.trace.table import unique

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.graph.operations.table import Operations
    from lumos.trace.table import Int64

#: The place of a rank in the plan: its stage and its data-parallel rank.
_Place = tuple[int, int]


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
    found: dict[tuple[int, str, str, int], list[int]] = {}
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
            found.setdefault(key, []).append(i)
            whole[key] = places
    # A lost row shifts the sequence numbers after it, so where one is missing nothing of that kind, group and step is matched.
    broken = {key[:3] for key, rows in found.items() if len(rows) != len(whole[key] & given)}
    offset, members = end_to_end([rows for key, rows in found.items() if key[:3] not in broken and len(rows) > 1])
    meeting[members] = np.repeat(np.arange(len(offset) - 1), np.diff(offset))
    incomplete = np.zeros(len(ops), bool)
    for key, rows in found.items():
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
