"""The graph of an operation-level job: passes, transfers and collectives of every rank, step by step.

Every rank runs its calls in program order. A transfer or collective starts when its last rank has arrived (`operations.links`), so
waiting is simulated. Taken from the recording are: the durations of compute, the transfer part of communication, the order
of calls, when each rank entered each step, and one constant for each kind of operation: the launch delay after it, which is the
gap between the end of such a call and the start of the next, on the rank where that is smallest, as the median over the steps.
Where a recording has no transfers, one constant serves for all of them: the median over the meetings of two ranks in one call.

The host's time is recorded by no operation; it becomes a task before the operation that it delays.

Limits: a rank makes blocking calls one after another, except for gradient and parameter collectives that the job overlaps.
A step begins when the step before it has ended on all ranks, because recordings do not say how steps overlap.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lumos.diagnostics import Diagnostic
from lumos.errors import GraphError
from lumos.graph.lists import Edges, Predecessors
from lumos.graph.operations.links import Meetings, meetings, passes_fed, program_order, with_transfers
from lumos.graph.operations.table import Operations, recorded
from lumos.graph.table import Collectives, Dependency, Graph, Kind, Processor, Step
from lumos.trace.operations import KNOWN, LANES, STEP_GAP_NS, STEP_MARK
from lumos.trace.table import ABSENT, Int64, Job, excluding, unique

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_Mask = NDArray[np.bool_]

#: A shorter delay is below what the recording's timers resolve, ns.
LEAST_DELAY_NS = 1_000

#: Names of the host's tasks: the start of a step, the time until a rank comes to its first operation, and the launch delay
#: after a call (followed by the kind of the call).
BEGIN, ENTRY, DELAY = "(next step)", "(step entry)", "(launch delay) behind "


def operations_graph(job: Job, fitted_on: Collection[int] | None = None) -> Graph:
    """The graph of all ranks. `fitted_on`: numbers of the steps from which the constants are estimated; all steps where None.

    Raises GraphError where `fitted_on` names no step of the job.
    """
    ops = recorded(job)
    fitted = np.isin(ops.steps, list(ops.steps if fitted_on is None else fitted_on))
    if not fitted.any():
        raise GraphError(f"none of the steps to fit on is in the recording; it has steps {ops.steps[0]} to {ops.steps[-1]}")
    ops, delay, transfer = _fitted(ops, fitted)
    return _graph(job, ops, delay, transfer)


def rearranged_graph(job: Job, arrange: Callable[[Operations], Operations]) -> Graph:
    """The graph of a recorded job whose passes run in another arrangement.

    arrange: gets the recorded passes and returns those to run, without transfers, which are added here. The constants are those
    of the recording. The measured times of the graph are the times that `arrange` gives the passes.
    """
    ops = recorded(job)
    _, delay, transfer = _fitted(ops, np.ones(len(ops.steps), bool))
    return _graph(job, with_transfers(arrange(ops), transfer or 0), delay, transfer)


def operation_constants(graph: Graph) -> dict[str, tuple[int, ...]]:
    """The constants in an operation-level graph by name, one value per rank in the order of `Graph.ranks`; ns, 0 where unused."""
    of_name = [
        f"launch_delay_behind_{name.removeprefix(DELAY).replace('-', '_')}_ns" if name.startswith(DELAY) else "" for name in graph.names
    ]
    label = np.array(of_name, object)[graph.name]
    label[(graph.kind == Kind.COLLECTIVE) & (graph.event < 0)] = "transfer_ns"
    out = {}
    for name in sorted(set(label) - {""}):
        tasks = np.flatnonzero(label == name)
        values = np.zeros(len(graph.ranks), np.int64)
        values[graph.position_of_task[tasks]] = graph.duration[tasks]
        out[str(name)] = tuple(values.tolist())
    return out


class _Fitted(NamedTuple):
    """The operations, with transfers added where the recording has none, and what a replay takes from them besides durations and order:
    the launch delay after each operation kind that has one, and the time of every transfer that was added, None where none was; ns."""

    ops: Operations
    delay: dict[str, int]
    transfer: int | None


def _fitted(ops: Operations, fitted: _Mask) -> _Fitted:
    """The constants, estimated on the steps `fitted`."""
    transfer = None
    if not ops.recorded_transfers and ops.plan.stages > 1:
        transfer = _transfer(with_transfers(ops), fitted)
        ops = with_transfers(ops, transfer)
    return _Fitted(ops, _delays(ops, *program_order(ops), fitted[ops.step]), transfer)


def _transfer(ops: Operations, fitted: _Mask) -> int:
    """The median transfer of the receives that share their call with a send, because both arrivals are known for those (ns). Where there
    are no meetings (interleaved pipelines), the 10th percentile of the gaps between the end of a pass and the start of the pass that takes
    its output."""
    joined = meetings(ops)
    usable = (joined.meeting >= 0) & fitted[ops.step]
    in_one_call = usable & (np.bincount(ops.call)[ops.call] > 1) & ops.is_named("forward-recv", "backward-recv")
    if usable.any():
        return int(np.median(joined.transfer[in_one_call if in_one_call.any() else usable]))
    source, target = passes_fed(ops)
    gap = ops.start[target] - ops.end[source]
    gap = gap[(gap >= 0) & fitted[ops.step[target]]]
    return int(np.quantile(gap, 0.1)) if len(gap) else 0


def _delays(ops: Operations, before: Int64, after: Int64, in_fit: _Mask) -> dict[str, int]:
    """The launch delay after each operation kind, from the time between when a rank's next call could have started (all its
    predecessors, on any rank, had ended) and when it did.

    A delay is a cost that every rank pays, while a longer time may be a wait for something that was not recorded. So it is the smallest
    over the ranks, of each the median in a step, and then the median over the steps. Kinds whose delay the timers cannot resolve have none.
    """
    ended = np.full(len(ops), -1, np.int64)
    np.maximum.at(ended, after, ops.end[before])
    behind = _called_before(ops, before, after)
    out: dict[str, int] = {}
    for number, name in enumerate(ops.names):
        calls = np.flatnonzero((behind == number) & in_fit)
        smallest = [
            min(float(np.median((ops.start[own] - ended[own])[ops.rank[own] == rank])) for rank in unique(ops.rank[own]))
            for own in (calls[ops.step[calls] == s] for s in unique(ops.step[calls]))
        ]
        usual = int(np.median(smallest)) if smallest else 0
        if usual >= LEAST_DELAY_NS:
            out[name] = usual
    return out


def _between_recorded(ops: Operations, before: Int64, after: Int64) -> _Mask:
    """Edges from one recorded call of a rank to the next. The time of a transfer that was not recorded includes any delay."""
    one_rank = (ops.rank[before] == ops.rank[after]) & ~ops.asynchronous[before] & ~ops.asynchronous[after]
    out: _Mask = one_rank & (ops.row[before] >= 0) & (ops.row[after] >= 0)
    return out


def _called_before(ops: Operations, before: Int64, after: Int64) -> Int64:
    """The kind of the recorded call that each operation's rank made before it, -1 without one."""
    chain = _between_recorded(ops, before, after)
    out = np.full(len(ops), -1, np.int64)
    out[after[chain]] = ops.name[before[chain]]
    return out


def _first_of_call(ops: Operations) -> Int64:
    """The first operation of the blocking call that each operation belongs to."""
    joins = np.append(False, np.diff(ops.call) == 0) & ~ops.asynchronous & ~np.append(False, ops.asynchronous[:-1])
    return np.maximum.accumulate(np.where(joins, 0, np.arange(len(ops))))


class _Tasks(NamedTuple):
    """The tasks of a graph. table: the operations with the host's time before some of them, in the order of the tasks. duration: ns.
    operation: the task of each operation. waited: the predecessors of every task."""

    table: Operations
    duration: Int64
    operation: Int64
    waited: Predecessors


def _with_host(ops: Operations, duration: Int64, before: Int64, after: Int64, delay: dict[str, int]) -> _Tasks:
    """The operations, of these durations (ns) and in this order, and the host's tasks: one for the start of each step but the first; one
    for each operation that nothing in its step precedes, which lasts from the step's origin to that operation; and one for the launch delay
    before each call that has one."""
    every, call = np.arange(len(ops)), _first_of_call(ops)
    chain, behind = _between_recorded(ops, before, after), _called_before(ops, before, after)
    ended = np.zeros(len(ops), np.int64)
    np.maximum.at(ended, after[chain], ops.end[before[chain]])
    delay_behind = np.array([*(delay.get(name, 0) for name in ops.names), 0], np.int64)[behind]
    first = np.unique(ops.step, return_index=True)[1][1:]
    free, last = excluding(every, after), excluding(every, before)
    delayed = every[(delay_behind > 0) & (call == every)]

    def host(at: Int64, name: Int64, lane: Int64, start: Int64, end: Int64) -> Operations:
        return ops.picked(at, name=len(ops.names) + name, lane=lane, start=start, end=end, row=np.full(len(at), ABSENT))

    own = np.full(len(ops), len(LANES))
    table = ops.with_rows(
        host(first, first * 0, own[first], first * 0, first * 0),
        host(free, free * 0 + 1, ops.lane[free], free * 0, ops.start[free]),
        host(delayed, behind[delayed] + 2, own[delayed], np.minimum(ended, ops.start)[delayed], ops.start[delayed]),
    )
    # A task of the host comes before its operation, so that the tasks of a rank ascend with the time at which they began.
    order = np.lexsort((table.name, np.arange(len(table)) < len(ops), np.concatenate((every, first, free, delayed))))
    operation, begin, entry, wait = np.split(np.argsort(order), np.cumsum((len(ops), len(first), len(free))))
    begin_of, wait_of = np.full(len(ops.steps) + 1, -1), np.full(len(ops), -1)
    begin_of[1:-1], wait_of[delayed] = begin, wait
    edges = Edges()
    edges.add(operation[before], operation[after], Dependency.DATA)
    edges.add(operation[before[chain]], wait_of[call[after[chain]]], Dependency.DATA)
    edges.add(wait_of[call], operation, Dependency.LAUNCH)
    edges.add(entry, operation[free], Dependency.DATA)
    edges.add(begin_of[ops.step[free]], entry, Dependency.DATA)
    edges.add(operation[last], begin_of[ops.step[last] + 1], Dependency.DATA)
    lasts = np.concatenate((duration, first * 0, ops.start[free], delay_behind[delayed]))
    return _Tasks(table.picked(order), lasts[order], operation, edges.predecessors(len(table)))


def _graph(job: Job, ops: Operations, delay: dict[str, int], transfer: int | None) -> Graph:
    """The graph whose tasks are the operations and the host's time before some of them."""
    joined, (before, after) = meetings(ops), program_order(ops)
    duration = np.where(joined.meeting >= 0, joined.transfer, ops.end - ops.start)
    if transfer is not None:
        duration = np.where((ops.row < 0) & ~joined.incomplete, transfer, duration)
    tasks, duration, operation, waited = _with_host(ops, duration, before, after, delay)
    length = np.zeros(len(ops.steps), np.int64)
    np.maximum.at(length, ops.step, ops.end)
    origin = np.append(0, np.cumsum(length + STEP_GAP_NS))
    names, lanes = (*ops.names, BEGIN, ENTRY, *(DELAY + name for name in ops.names)), (*LANES, "host")
    kind = [Kind.OPERATOR if KNOWN[name].kind is None else Kind.COLLECTIVE for name in ops.names]
    return Graph(
        ranks=ops.ranks,
        processors=tuple(Processor(rank, False, name, lane=lane) for rank in ops.ranks for lane, name in enumerate(lanes)),
        names=names,
        duration=duration,
        processor=(tasks.rank * len(lanes) + tasks.lane).astype(np.int32),
        kind=np.array(kind + [Kind.HOST] * (len(names) - len(kind)), np.uint8)[tasks.name],
        name=tasks.name.astype(np.int32),
        event=tasks.row.astype(np.int32),
        pred_offset=waited.offset,
        pred=waited.task,
        pred_kind=waited.kind,
        lag=np.zeros((len(ops.ranks), len(Dependency)), np.int64),
        rendezvous_offset=joined.offset,
        rendezvous_task=operation[joined.members].astype(np.int32),
        collectives=_collectives(ops, joined, operation),
        waiting_unknown=operation[joined.incomplete].astype(np.int32),
        measured_start=origin[tasks.step] + tasks.start,
        measured_end=origin[tasks.step] + tasks.end,
        steps=tuple(
            Step(rank, f"{STEP_MARK}{number}", int(low), int(high))
            for rank in ops.ranks
            for number, (low, high) in zip(ops.steps, pairwise(origin.tolist()), strict=True)
        ),
        steps_alone=True,
        diagnostics=(*job.diagnostics, *(d for t in job.traces for d in t.diagnostics), *_findings(ops, joined, delay, transfer)),
    )


def _collectives(ops: Operations, joined: Meetings, task_number: Int64) -> Collectives | None:
    rows = np.flatnonzero(joined.group >= 0)
    if not len(rows):
        return None
    of_name = [KNOWN[name].kind for name in ops.names]
    kinds = tuple(dict.fromkeys(known.kind for known in KNOWN.values() if known.kind is not None))
    peer = np.full(len(ops), ABSENT, np.int32)
    pairs = joined.offset[np.flatnonzero(np.diff(joined.offset) == 2)]
    one, other = joined.members[pairs], joined.members[pairs + 1]
    ranks = np.array(ops.ranks, np.int32)[ops.rank]
    peer[one], peer[other] = ranks[other], ranks[one]
    peer[~np.array([kind is not None and kind.is_transfer for kind in of_name])[ops.name]] = ABSENT
    return Collectives(
        task=task_number[rows].astype(np.int32),
        kind=np.array([ABSENT if kind is None else kinds.index(kind) for kind in of_name], np.int32)[ops.name[rows]],
        nbytes=np.full(len(rows), ABSENT, np.int64),
        group=joined.group[rows].astype(np.int32),
        sequence=ops.sequence[rows],
        peer=peer[rows],
        kinds=kinds,
        groups=joined.groups,
    )


def _findings(ops: Operations, joined: Meetings, delay: dict[str, int], transfer: int | None) -> list[Diagnostic]:
    notes = []
    if delay:
        shown = ", ".join(f"{name} {ns / 1e6:.3f} ms" for name, ns in delay.items())
        notes.append(Diagnostic("launch-delay", f"one constant for each operation kind, estimated from gaps: the delay after {shown}"))
    if transfer is not None:
        message = (
            "the recording has passes but no transfers: the transfers that the order of the passes implies were added, "
            f"each of {transfer / 1e6:.3f} ms (the median over all, estimated from gaps)"
        )
        notes.append(Diagnostic("transfers-implied", message))
    if joined.incomplete.any():
        took = ops.end - ops.start
        share = int(took[joined.incomplete].sum()) / max(int(took.sum()), 1)
        alone, bound = (int((joined.incomplete & (met == (joined.meeting >= 0))).sum()) for met in (False, True))
        parts = (
            (alone, "lack a rank or a row: they keep their measured duration, so a change elsewhere does not reach them"),
            (bound, "meet only those of their ranks that were given: what is left of their duration may be waiting for the others"),
        )
        shown = "; ".join(f"{transfers} transfers {what}" for transfers, what in parts if transfers)
        notes.append(Diagnostic("waiting-unknown", f"{shown} ({share:.1%} of all recorded time)"))
    if joined.cleaned and transfer is None:
        message = f"{joined.cleaned} transfers end before their last rank arrives; each took its kind's median"
        notes.append(Diagnostic("transfer-negative", message))
    return notes
