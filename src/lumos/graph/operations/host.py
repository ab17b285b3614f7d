"""The host's time in an operation-level job. No operation records it; it becomes a task before the operation that it delays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.table import Graph, Kind
from lumos.trace.operations import LANES, STEP_GAP_NS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from lumos.graph.operations.table import Operations
    from lumos.trace.table import Int64

#: Names of the host's tasks: the start of a step, the time until a rank comes to its first operation, and the launch delay
#: after a call (followed by the kind of the call).
BEGIN, ENTRY, DELAY = "(next step)", "(step entry)", "(launch delay) behind "


@dataclass(frozen=True, slots=True, eq=False)
class Host:
    """The host's tasks: task i precedes operation before[i], which ascend.

    name: 0 for BEGIN, 1 for ENTRY, k + 2 for DELAY after the operation kind `Operations.names[k]`. lane: index into
    `trace.operations.LANES`, its length for the host's own lane. duration: ns. start, end: as measured, ns from the step's
    origin. origin: int64[steps + 1], where each step begins and where the last one ends, ns.
    """

    before: Int64
    name: Int64
    lane: Int64
    duration: Int64
    start: Int64
    end: Int64
    origin: Int64


def operation_host_tasks(ops: Operations, called: Int64, following: Int64, free: Int64, delay_of: Mapping[str, int]) -> Host:
    """The host's tasks of all ranks and steps.

    There is one for the start of each step but the first; one for each operation that nothing in its step precedes (`free`),
    which lasts from the step's origin to that operation; and one for the launch delay before each call that has one. The call
    following[i] comes after called[i]; delay_of: the delay after each kind of call, ns.
    """
    delay_of_name = np.array([delay_of.get(name, 0) for name in ops.names], np.int64)
    delay, ended, behind = np.zeros((3, len(ops)), np.int64)
    behind[following] = ops.name[called]
    delay[following] = delay_of_name[behind[following]]
    np.maximum.at(ended, following, ops.end[called])
    delayed = np.flatnonzero((delay > 0) & ~joins_call(ops))
    length = np.array([int(ops.end[ops.step == s].max()) for s in range(len(ops.steps))], np.int64)
    first = np.array([int(np.flatnonzero(ops.step == s)[0]) for s in range(1, len(ops.steps))], np.int64)
    before = np.concatenate((first, free, delayed))
    nothing, waited = np.zeros(len(first), np.int64), np.minimum(ended, ops.start)[delayed]
    name = np.concatenate((nothing, free * 0 + 1, behind[delayed] + 2))
    order = np.lexsort((name, before))
    return Host(
        before=before[order],
        name=name[order],
        lane=np.concatenate((nothing + len(LANES), ops.lane[free], delayed * 0 + len(LANES)))[order],
        duration=np.concatenate((nothing, ops.start[free], delay[delayed]))[order],
        start=np.concatenate((nothing, free * 0, waited))[order],
        end=np.concatenate((nothing, ops.start[free], ops.start[delayed]))[order],
        origin=np.concatenate(([0], np.cumsum(length + STEP_GAP_NS))),
    )


def joins_call(ops: Operations) -> NDArray[np.bool_]:
    """Operations that belong to the same call as the operation before them, as a mask."""
    out = np.zeros(len(ops), bool)
    same = (np.diff(ops.rank) == 0) & (np.diff(ops.step) == 0) & (np.diff(ops.call) == 0)
    out[1:] = same & ~ops.asynchronous[1:] & ~ops.asynchronous[:-1]
    return out


def operation_constants(graph: Graph) -> dict[str, tuple[int, ...]]:
    """The constants in an operation-level graph by name, one value per rank in the order of `graph.joined.ranks`; ns, 0 where unused."""
    place = {rank: i for i, rank in enumerate(graph.ranks)}
    rank = np.array([place[p.rank] for p in graph.processors], np.int64)[graph.processor]
    label = np.array([_constant_name(name) for name in graph.names], object)[graph.name]
    label[(graph.kind == Kind.COLLECTIVE) & (graph.event < 0)] = "transfer_ns"
    out = {}
    for name in sorted(set(label) - {""}):
        tasks = np.flatnonzero(label == name)
        values = np.zeros(len(graph.ranks), np.int64)
        values[rank[tasks]] = graph.duration[tasks]
        out[str(name)] = tuple(values.tolist())
    return out


def _constant_name(name: str) -> str:
    return f"launch_delay_behind_{name.removeprefix(DELAY).replace('-', '_')}_ns" if name.startswith(DELAY) else ""
