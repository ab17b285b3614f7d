"""Which operations of an operation-level job transfer together (a meeting), and how long the transfer takes.

A send meets its receive. A collective meets the same collective of the other ranks of its group, the k-th of its kind in the
step: parameters and gradients over the data-parallel ranks of a stage, embedding gradients over the first and the last
stage, the gradient norm over all ranks. The transfer lasts from the latest arrival to the operation's own end; the rest of
its measured duration is waiting. Where a rank is absent from the recording its arrival is unknown. A collective then meets those that are
there, and its transfer is a bound, because the absent rank may have arrived later; a send or receive keeps its measured duration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.lists import offsets
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.graph.operations.table import Operations
    from lumos.trace.table import Int64

#: The kind of collective, or side of a transfer, of each operation that transfers data.
KIND_OF = {
    "forward-send": CollectiveKind.SEND,
    "backward-send": CollectiveKind.SEND,
    "forward-recv": CollectiveKind.RECEIVE,
    "backward-recv": CollectiveKind.RECEIVE,
    "params-all-gather": CollectiveKind.ALL_GATHER,
    "grads-reduce-scatter": CollectiveKind.REDUCE_SCATTER,
    "separate-grads-all-reduce": CollectiveKind.ALL_REDUCE,
    "layernorm-grads-all-reduce": CollectiveKind.ALL_REDUCE,
    "embedding-grads-all-reduce": CollectiveKind.ALL_REDUCE,
    "optimizer-clip-main-grad": CollectiveKind.ALL_REDUCE,
}

#: The place of a rank in the plan: its stage and its data-parallel rank.
_Place = tuple[int, int]

#: From the sender's stage to the receiver's, by direction of the pass.
_MOVE = {"forward": 1, "backward": -1}


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
    found: dict[tuple[object, ...], list[int]] = {}
    size: dict[tuple[object, ...], _Expected] = {}
    groups: dict[str, int] = {}
    group = np.full(len(ops), -1, np.int64)
    absent = _absent(ops)
    columns = [getattr(ops, key).tolist() for key in ("name", "step", "stage", "dp", "sequence")]
    for i, (name, step, stage, dp, sequence) in enumerate(zip(*columns, strict=True)):
        known = _group(ops, ops.names[name], stage, dp)
        if known is None:
            continue
        label, members = known
        group[i] = groups.setdefault(label, len(groups))
        if len(members) > 1:
            key: tuple[object, ...] = (step, label, _shared_name(ops.names[name]), sequence)
            found.setdefault(key, []).append(i)
            size[key] = _Expected(len(members), len(members - absent))
    # A lost row shifts the sequence numbers after it, so where one is missing nothing of that kind, group and step is matched.
    broken = {key[:3] for key, rows in found.items() if len(rows) != size[key].given}
    met = [key for key in found if key[:3] not in broken and size[key].given > 1]
    meeting = np.full(len(ops), -1, np.int64)
    for number, key in enumerate(met):
        meeting[found[key]] = number
    incomplete = np.zeros(len(ops), bool)
    for key, here in found.items():
        incomplete[here] = key[:3] in broken or size[key].given < size[key].all
    met_rows: Int64 = np.concatenate([np.array(found[key], np.int64) for key in met]) if met else np.empty(0, np.int64)
    offset = offsets([size[key].given for key in met])
    transfer, cleaned = _transfers(ops, meeting, offset, met_rows)
    return Meetings(meeting, group, tuple(groups), offset, met_rows, incomplete, transfer, cleaned)


class _Expected(NamedTuple):
    """How many ranks a meeting has, and how many of them were recorded."""

    all: int
    given: int


def _absent(ops: Operations) -> set[_Place]:
    """The places of the plan of which no rank was recorded."""
    return {(s, d) for s in range(ops.plan.stages) for d in range(ops.plan.dp)} - set(zip(ops.stage.tolist(), ops.dp.tolist(), strict=True))


def _shared_name(name: str) -> str:
    """A name that is the same for all operations of a meeting: a receive has that of its send."""
    return name.replace("-recv", "-send")


def _group(ops: Operations, name: str, stage: int, dp: int) -> tuple[str, set[_Place]] | None:
    """The name of an operation's group and the places of the ranks that meet in it; None where the operation is no transfer."""
    plan, own = ops.plan, {(stage, dp)}
    direction, _, end = name.partition("-")
    if end in ("send", "recv"):
        sender = stage if end == "send" else stage - _MOVE[direction]
        if plan.chunks == 1 and not 0 <= min(sender, sender + _MOVE[direction]) <= max(sender, sender + _MOVE[direction]) < plan.stages:
            return f"{direction} dp {dp} beyond the pipeline", own  # recorded, but nothing was sent
        sender %= plan.stages
        receiver = (sender + _MOVE[direction]) % plan.stages
        meets = own if plan.chunks > 1 and not ops.recorded_transfers else {(sender, dp), (receiver, dp)}
        return f"{direction} dp {dp} stage {sender} to {receiver}", meets
    if name in ("params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"):
        return f"data parallel, stage {stage}", {(stage, d) for d in range(plan.dp)}
    if name == "embedding-grads-all-reduce":
        return f"embeddings, dp {dp}", {(0, dp), (plan.stages - 1, dp)}
    if name == "optimizer-clip-main-grad":
        return "all ranks", {(s, d) for s in range(plan.stages) for d in range(plan.dp)}
    return ("within the rank", own) if name in KIND_OF else None


def _transfers(ops: Operations, meeting: Int64, offset: Int64, members: Int64) -> tuple[Int64, int]:
    """The transfer of every operation, and how many negative ones were replaced by the median of their kind."""
    transfer = np.zeros(len(ops), np.int64)
    if not len(members):
        return transfer, 0
    arrival = np.maximum.reduceat(ops.start[members], offset[:-1])
    transfer[members] = ops.end[members] - arrival[meeting[members]]
    wrong = (meeting >= 0) & (transfer < 0)
    for name in np.unique(ops.name[wrong]):
        alike = (meeting >= 0) & (ops.name == name) & ~wrong
        usual = int(np.median(transfer[alike])) if alike.any() else 0
        transfer[wrong & (ops.name == name)] = usual
    return transfer, int(wrong.sum())
