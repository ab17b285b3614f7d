"""The operations of all ranks and steps of an operation-level job, as columns in program order.

Program order is the order in which each rank called its operations. A blocking call ends before the next one begins. A
send and a receive that a rank started together (Megatron's fused `send_forward_recv_backward` and similar calls) are one
call of two operations; they are recognised by their equal times. Gradient and parameter collectives that the job overlaps
with compute are `asynchronous`: only the calls named in `operations.links` wait for them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.trace.operations import KNOWN, PLACE, STEP_MARK, RecordedPlan, recorded_plan
from lumos.trace.table import ABSENT, Category, Int64, Job, unique
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORWARD, BACKWARD = "forward-compute", "backward-compute"

#: Collectives of the data-parallel group, which a job may overlap with its passes.
OVERLAPPED = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)

#: Only jobs that overlap their gradient collectives have this operation.
OVERLAP_SIGN = "separate-grads-all-reduce"


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """n operations by rank, step and call.

    rank: position in `ranks`. step: index into `steps` (their numbers, ascending). call: number of the call, over all ranks and steps.
    name: index into `names`. lane: index into `trace.operations.LANES`. start, end: ns from the step's origin. row: row of the
    rank's trace, ABSENT where the operation was not recorded. stage, dp, microbatch, chunk, sequence: the place in the plan, ABSENT
    where it has none. asynchronous: not in the chain of blocking calls. recorded_transfers: whether sends and receives were recorded.
    """

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    names: tuple[str, ...]
    plan: RecordedPlan
    recorded_transfers: bool
    rank: Int64
    step: Int64
    call: Int64
    name: Int64
    lane: Int64
    start: Int64
    end: Int64
    row: Int64
    stage: Int64
    dp: Int64
    microbatch: Int64
    chunk: Int64
    sequence: Int64
    asynchronous: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.start)

    def is_named(self, *names: str) -> NDArray[np.bool_]:
        """Operations of any of the names, as a mask."""
        return np.array([name in names for name in self.names], bool)[self.name]

    def position(self) -> Int64:
        """The place of each operation's chunk among all chunks of the model, in forward order."""
        return self.chunk * self.plan.stages + self.stage

    def each_step(self) -> list[tuple[int, int]]:
        """The first operation of each step of each rank, and that behind its last."""
        bounds = np.flatnonzero(np.diff(self.rank) | np.diff(self.step)) + 1
        return list(pairwise([0, *bounds.tolist(), len(self)]))

    def picked(self, at: Int64, **changed: Int64) -> Operations:
        """Some of the operations, int64[k] indices that may repeat, with some columns changed."""
        columns: dict[str, Any] = {key: changed[key] if key in changed else getattr(self, key)[at] for key in _COLUMNS}
        return replace(self, **columns)

    def with_rows(self, *others: Operations) -> Operations:
        """These operations, then others of the same job."""
        tables = (self, *others)
        columns: dict[str, Any] = {key: np.concatenate([getattr(table, key) for table in tables]) for key in _COLUMNS}
        return replace(self, **columns)


_COLUMNS = tuple(column.name for column in fields(Operations) if "Int64" in column.type or "NDArray" in column.type)


def recorded(job: Job) -> Operations:
    """The operations of a job, as recorded."""
    names: dict[str, int] = {}
    parts: list[Int64] = []
    for position, trace in enumerate(job.traces):
        rows, marks = (np.flatnonzero(trace.category == category) for category in (Category.OPERATOR, Category.ANNOTATION))
        number = np.array([int(trace.strings[i].removeprefix(STEP_MARK)) for i in trace.name[marks]], np.int64)
        mark = np.searchsorted(trace.start[marks], trace.start[rows], side="right") - 1
        start = trace.start[rows] - trace.start[marks[mark]]
        renumbered = np.full(len(trace.strings), ABSENT, np.int64)
        for i in unique(trace.name[rows]).tolist():
            renumbered[i] = names.setdefault(trace.strings[i], len(names))
        own = [rows * 0 + position, number[mark], renumbered[trace.name[rows]], trace.lane[rows], start, start + trace.duration[rows], rows]
        parts.append(np.array([*own, *(trace.dense(key)[rows] for key in PLACE)], np.int64))
    keys = ("rank", "step", "name", "lane", "start", "end", "row", "microbatch", "chunk", "sequence", "stage", "dp")
    table: dict[str, Int64] = dict(zip(keys, np.concatenate(parts, axis=1), strict=True))
    steps, table["step"] = np.unique(table["step"], return_inverse=True)
    order = np.lexsort((table["end"], table["start"], table["step"], table["rank"]))
    table = {key: values[order] for key, values in table.items()}
    kinds = [KNOWN[name].kind for name in names]
    transfer = np.array([kind is not None and kind.is_transfer for kind in kinds], bool)[table["name"]]
    overlapped = np.array([OVERLAP_SIGN in names and kind in OVERLAPPED for kind in kinds], bool)[table["name"]]
    together = np.all([np.diff(table[key]) == 0 for key in ("rank", "step", "start", "end")], axis=0) & transfer[1:] & transfer[:-1]
    return Operations(
        ranks=job.ranks,
        steps=tuple(steps.tolist()),
        names=tuple(names),
        plan=recorded_plan(job.traces[0]),
        recorded_transfers=bool(transfer.any()),
        call=np.append(0, np.cumsum(~together)),
        asynchronous=overlapped,
        **table,
    )
