"""The operations of all ranks and steps of an operation-level job, as columns in program order.

Program order is the order in which each rank called its operations. A blocking call ends before the next one begins. A
send and a receive that a rank started together (Megatron's fused `send_forward_recv_backward` and similar calls) are one
call of two operations; they are recognised by their equal times. Gradient and parameter collectives that the job overlaps
with compute are `asynchronous`: only the calls named in `operations.order` wait for them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.trace.operations import PLACE, STEP_MARK, RecordedPlan, recorded_plan
from lumos.trace.table import ABSENT, Category, Int64, Job

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Point-to-point operations. The name gives the direction of the passes and the side.
SENDS = ("forward-send", "backward-send")
RECEIVES = ("forward-recv", "backward-recv")

#: Collectives of the data-parallel group, which a job may overlap with its passes.
OVERLAPPED = ("params-all-gather", "grads-reduce-scatter")

#: Only jobs that overlap their gradient collectives have this operation.
OVERLAP_SIGN = "separate-grads-all-reduce"


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """n operations by rank, step and call.

    rank: position in `ranks`. step: index into `steps` (their numbers, ascending). call: number of the call within rank
    and step. name: index into `names`. lane: index into `trace.operations.LANES`. start, end: ns from the step's origin. row:
    row of the rank's trace, -1 where the operation was not recorded. stage, dp, microbatch, chunk, sequence: the place in the
    plan, ABSENT where it has none. asynchronous: not in the chain of blocking calls. recorded_transfers: whether sends and
    receives were recorded.
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
        wanted = np.array([name in names for name in self.names], bool)
        mask: NDArray[np.bool_] = wanted[self.name]
        return mask


#: The columns of `Operations`, which reordering and appending must treat alike.
OPERATION_COLUMNS = tuple(each.name for each in fields(Operations) if "Int64" in each.type or "NDArray" in each.type)


def recorded(job: Job) -> Operations:
    """The operations of a job, as recorded."""
    names: dict[str, int] = {}
    columns: dict[str, list[NDArray[Any]]] = {key: [] for key in ("rank", "step", "name", "lane", "start", "end", "row", *PLACE)}
    for position, trace in enumerate(job.traces):
        rows = np.flatnonzero(trace.category == Category.OPERATOR)
        marks = np.flatnonzero(trace.category == Category.ANNOTATION)
        number = np.array([int(trace.strings[i].removeprefix(STEP_MARK)) for i in trace.name[marks]], np.int64)
        mark = np.searchsorted(trace.start[marks], trace.start[rows], side="right") - 1
        start = trace.start[rows] - trace.start[marks[mark]]
        renumbered = np.full(len(trace.strings), ABSENT, np.int64)
        for i in np.unique(trace.name[rows]).tolist():
            renumbered[i] = names.setdefault(trace.strings[i], len(names))
        columns["rank"].append(np.full(len(rows), position))
        columns["step"].append(number[mark])
        columns["name"].append(renumbered[trace.name[rows]])
        columns["lane"].append(trace.lane[rows])
        columns["start"].append(start)
        columns["end"].append(start + trace.duration[rows])
        columns["row"].append(rows)
        for key in PLACE:
            columns[key].append(trace.dense(key)[rows])
    table: dict[str, Int64] = {key: np.concatenate(parts).astype(np.int64) for key, parts in columns.items()}
    steps, table["step"] = np.unique(table["step"], return_inverse=True)
    order = np.lexsort((table["end"], table["start"], table["step"], table["rank"]))
    table = {key: values[order] for key, values in table.items()}
    table["dp"] = table.pop("dp rank")
    order_names = tuple(names)
    overlaps = OVERLAP_SIGN in order_names and bool((table["name"] == names[OVERLAP_SIGN]).any())
    asynchronous = np.array([overlaps and name in OVERLAPPED for name in order_names], bool)[table["name"]]
    transfers = [names[name] for name in (*SENDS, *RECEIVES) if name in names]
    return Operations(
        ranks=job.ranks,
        steps=tuple(steps.tolist()),
        names=order_names,
        plan=recorded_plan(job.traces[0]),
        recorded_transfers=bool(np.isin(table["name"], transfers).any()),
        call=_calls(table, np.isin(table["name"], transfers)),
        asynchronous=asynchronous,
        **table,
    )


def _calls(table: dict[str, Int64], transfer: NDArray[np.bool_]) -> Int64:
    """The number of each operation's call: a new one, unless it is a transfer with the same times as the transfer before it."""
    alike = np.ones(len(transfer), bool)
    for key in ("rank", "step", "start", "end"):
        alike[1:] &= table[key][1:] == table[key][:-1]
    alike[1:] &= transfer[1:] & transfer[:-1]
    alike[:1] = False
    number = np.cumsum(~alike)
    first = np.ones(len(transfer), bool)
    first[1:] = (table["rank"][1:] != table["rank"][:-1]) | (table["step"][1:] != table["step"][:-1])
    origin = np.maximum.accumulate(np.where(first, number, 0))
    out: Int64 = (number - origin).astype(np.int64)
    return out
