"""The graph of an operation-level job: passes, transfers and collectives of every rank, step by step.

Every rank runs its calls in program order. A transfer or collective starts when its last rank has arrived (`meetings`), so
waiting is simulated. Taken from the recording are: the durations of compute, the transfer part of communication, the order
of calls, when each rank entered each step, and one constant for each kind of operation: the launch delay after it, which is the
gap between the end of such a call and the start of the next, on the rank where that is smallest, as the median over the steps.
Where a recording has no transfers, one constant serves for all of them: the median over the meetings of two ranks in one call.

Limits: a rank makes blocking calls one after another, except for gradient and parameter collectives that the job overlaps.
A step begins when the step before it has ended on all ranks, because recordings do not say how steps overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lumos.diagnostics import Diagnostic
from lumos.errors import GraphError
from lumos.graph.edges import Edges
from lumos.graph.operations.host import BEGIN, DELAY, ENTRY, Host, joins_call, operation_host_tasks
from lumos.graph.operations.meetings import KIND_OF, Meetings, meetings
from lumos.graph.operations.order import passes_fed, program_order
from lumos.graph.operations.table import Operations, recorded
from lumos.graph.operations.transfers import with_transfers
from lumos.graph.table import Collectives, Dependency, Graph, Kind, Processor, Step
from lumos.trace.operations import LANES, STEP_MARK
from lumos.trace.table import ABSENT, Int64, Job

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_Mask = NDArray[np.bool_]

#: A shorter delay is below what the recording's timers resolve, ns.
LEAST_DELAY_NS = 1_000


@dataclass(frozen=True, slots=True)
class OperationConstants:
    """What a replay takes from an operation-level job besides durations and order; ns.

    delay: the launch delay after each operation kind that has one. transfer: the time of every transfer, where the
    recording has no transfers; else None.
    """

    delay: dict[str, int]
    transfer: int | None


def operations_graph(job: Job, fitted_on: Collection[int] | None = None) -> Graph:
    """The graph of all ranks. `fitted_on`: numbers of the steps from which the constants are estimated; all steps where None.

    Raises GraphError where `fitted_on` names no step of the job.
    """
    ops = recorded(job)
    fitted = np.isin(np.array(ops.steps), list(ops.steps if fitted_on is None else fitted_on))
    if not fitted.any():
        raise GraphError(f"none of the steps to fit on is in the recording; it has steps {ops.steps[0]} to {ops.steps[-1]}")
    ops, constants = _fitted(ops, fitted)
    return _graph(job, ops, meetings(ops), *program_order(ops), constants)


def rearranged_graph(job: Job, arrange: Callable[[Operations], Operations]) -> Graph:
    """The graph of a recorded job whose passes run in another arrangement.

    arrange: gets the recorded passes and returns those to run, without transfers, which are added here. The constants are those
    of the recording. The measured times of the graph are the times that `arrange` gives the passes.
    """
    ops = recorded(job)
    _, constants = _fitted(ops, np.ones(len(ops.steps), bool))
    ops = with_transfers(arrange(ops), constants.transfer or 0)
    return _graph(job, ops, meetings(ops), *program_order(ops), constants)


def _fitted(ops: Operations, fitted: _Mask) -> tuple[Operations, OperationConstants]:
    """The operations, with transfers added where the recording has none, and the constants, estimated on the steps `fitted`."""
    transfer = None
    if not ops.recorded_transfers and ops.plan.stages > 1:
        transfer = _transfer(with_transfers(ops), fitted)
        ops = with_transfers(ops, transfer)
    return ops, OperationConstants(_delays(ops, *program_order(ops), fitted[ops.step]), transfer)


def _transfer(ops: Operations, fitted: _Mask) -> int:
    """The median transfer of the receives that share their call with a send, because both arrivals are known for those (ns)."""
    joined = meetings(ops)
    key = (ops.rank * len(ops.steps) + ops.step) * (int(ops.call.max()) + 1) + ops.call
    _, at, count = np.unique(key, return_inverse=True, return_counts=True)
    usable = (joined.meeting >= 0) & (count[at] > 1) & ops.is_named("forward-recv", "backward-recv") & fitted[ops.step]
    if not usable.any():
        usable = (joined.meeting >= 0) & fitted[ops.step]
    if usable.any():
        return int(np.median(joined.transfer[usable]))
    return _transfer_by_gaps(ops, fitted)


def _transfer_by_gaps(ops: Operations, fitted: _Mask) -> int:
    """The transfer where there are no meetings (interleaved pipelines): the 10th percentile of the gaps between the end of a
    pass and the start of the pass that takes its output (ns)."""
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
    chain = _between_recorded(ops, before, after)
    ended = np.full(len(ops), -1, np.int64)
    np.maximum.at(ended, after, ops.end[before])
    behind = np.full(len(ops), -1, np.int64)
    behind[after[chain]] = ops.name[before[chain]]
    out: dict[str, int] = {}
    for number, name in enumerate(ops.names):
        calls = np.flatnonzero((behind == number) & in_fit)
        smallest = [
            min(_medians(ops.start[own] - ended[own], ops.rank[own]))
            for own in (calls[ops.step[calls] == s] for s in np.unique(ops.step[calls]))
        ]
        usual = int(np.median(smallest)) if smallest else 0
        if usual >= LEAST_DELAY_NS:
            out[name] = usual
    return out


def _medians(values: Int64, group: Int64) -> list[float]:
    """The median of the values of each group."""
    return [float(np.median(values[group == g])) for g in np.unique(group)]


def _between_recorded(ops: Operations, before: Int64, after: Int64) -> _Mask:
    """Edges from one recorded call of a rank to the next. The time of a transfer that was not recorded includes any delay."""
    one_rank = (ops.rank[before] == ops.rank[after]) & ~ops.asynchronous[before] & ~ops.asynchronous[after]
    out: _Mask = one_rank & (ops.row[before] >= 0) & (ops.row[after] >= 0)
    return out


def _graph(job: Job, ops: Operations, joined: Meetings, before: Int64, after: Int64, constants: OperationConstants) -> Graph:
    """The graph whose tasks are the operations and the host's time before some of them."""
    chain = _between_recorded(ops, before, after)
    host = operation_host_tasks(ops, before[chain], after[chain], np.setdiff1d(np.arange(len(ops)), after), constants.delay)
    n = len(ops) + len(host.before)
    # A task of the host comes before its operation, so that the tasks of a rank ascend with the time at which they began.
    position = np.arange(len(ops)) + np.searchsorted(host.before, np.arange(len(ops)), side="right")
    at = host.before + np.arange(len(host.before))

    def spread(of_operation: Int64, of_host: Int64) -> Int64:
        out = np.empty(n, np.int64)
        out[position], out[at] = of_operation, of_host
        return out

    base, measured = host.origin[ops.step], ops.end - ops.start
    duration = np.where(joined.meeting >= 0, joined.transfer, measured)
    if constants.transfer is not None:
        duration = np.where((ops.row < 0) & ~joined.incomplete, constants.transfer, duration)
    waited = _edges(ops, host, position, at, before, after).predecessors(n)
    is_transfer = np.array([name in KIND_OF for name in ops.names], bool)[ops.name]
    lanes = (*LANES, "host")
    return Graph(
        ranks=ops.ranks,
        processors=tuple(Processor(rank, False, name, lane=lane) for rank in ops.ranks for lane, name in enumerate(lanes)),
        names=(*ops.names, BEGIN, ENTRY, *(DELAY + name for name in ops.names)),
        duration=spread(duration, host.duration),
        processor=spread(ops.rank * len(lanes) + ops.lane, ops.rank[host.before] * len(lanes) + host.lane).astype(np.int32),
        kind=spread(np.where(is_transfer, int(Kind.COLLECTIVE), int(Kind.OPERATOR)), np.full(len(at), int(Kind.HOST))).astype(np.uint8),
        name=spread(ops.name, len(ops.names) + host.name).astype(np.int32),
        event=spread(ops.row, np.full(len(at), -1)).astype(np.int32),
        pred_offset=waited.offset,
        pred=waited.task,
        pred_kind=waited.kind,
        lag=np.zeros((len(ops.ranks), len(Dependency)), np.int64),
        rendezvous_offset=joined.offset,
        rendezvous_task=position[joined.members].astype(np.int32),
        collectives=_collectives(ops, joined, position),
        waiting_unknown=position[joined.incomplete & (joined.group >= 0)].astype(np.int32),
        measured_start=spread(base + ops.start, base[host.before] + host.start),
        measured_end=spread(base + ops.end, base[host.before] + host.end),
        steps=tuple(
            Step(rank, f"{STEP_MARK}{number}", int(low), int(high))
            for rank in ops.ranks
            for number, (low, high) in zip(ops.steps, pairwise(host.origin.tolist()), strict=True)
        ),
        steps_alone=True,
        diagnostics=(*job.diagnostics, *(d for t in job.traces for d in t.diagnostics), *_findings(ops, joined, constants)),
    )


def _edges(ops: Operations, host: Host, position: Int64, at: Int64, before: Int64, after: Int64) -> Edges:
    """Edges between operations as given, into and out of the host's tasks, and from the end of a step to the start of the next."""
    edges = Edges()
    edges.add(position[before], position[after], Dependency.DATA)
    task = np.full(len(ops), -1, np.int64)
    delay = host.name >= 2
    task[host.before[delay]] = at[delay]
    within = np.flatnonzero(joins_call(ops))
    task[within] = task[within - 1]
    chain = _between_recorded(ops, before, after)
    edges.add(position[before[chain]], task[after[chain]], Dependency.DATA)
    delayed = np.flatnonzero(task >= 0)
    edges.add(task[delayed], position[delayed], Dependency.LAUNCH)
    entry = host.name == 1
    edges.add(at[entry], position[host.before[entry]], Dependency.DATA)
    start_of = np.full(len(ops.steps) + 1, -1, np.int64)
    begins = host.name == 0
    start_of[ops.step[host.before[begins]]] = at[begins]
    edges.add(start_of[ops.step[host.before[entry]]], at[entry], Dependency.DATA)
    last = np.setdiff1d(np.arange(len(ops)), before)
    edges.add(position[last], start_of[ops.step[last] + 1], Dependency.DATA)
    return edges


def _collectives(ops: Operations, joined: Meetings, position: Int64) -> Collectives | None:
    rows = np.flatnonzero(joined.group >= 0)
    if not len(rows):
        return None
    kinds = tuple(dict.fromkeys(KIND_OF.values()))
    kind_of_name = np.array([kinds.index(KIND_OF[name]) if name in KIND_OF else -1 for name in ops.names], np.int32)
    peer = np.full(len(ops), ABSENT, np.int32)
    pairs = np.flatnonzero(np.diff(joined.offset) == 2)
    one, other = joined.members[joined.offset[pairs]], joined.members[joined.offset[pairs] + 1]
    ranks = np.array(ops.ranks, np.int32)[ops.rank]
    peer[one], peer[other] = ranks[other], ranks[one]
    peer[~ops.is_named("forward-send", "forward-recv", "backward-send", "backward-recv")] = ABSENT
    return Collectives(
        task=position[rows].astype(np.int32),
        kind=kind_of_name[ops.name[rows]],
        nbytes=np.full(len(rows), ABSENT, np.int64),
        group=joined.group[rows].astype(np.int32),
        sequence=ops.sequence[rows],
        peer=peer[rows],
        kinds=kinds,
        groups=joined.groups,
    )


def _findings(ops: Operations, joined: Meetings, constants: OperationConstants) -> list[Diagnostic]:
    found = []
    if constants.delay:
        shown = ", ".join(f"{name} {ns / 1e6:.3f} ms" for name, ns in constants.delay.items())
        found.append(Diagnostic("launch-delay", f"one constant for each operation kind, estimated from gaps: the delay after {shown}"))
    if constants.transfer is not None:
        found.append(
            Diagnostic(
                "transfers-implied",
                "the recording has passes but no transfers: the transfers that the order of the passes implies were added, "
                f"each of {constants.transfer / 1e6:.3f} ms (the median over all, estimated from gaps)",
            )
        )
    if joined.incomplete.any():
        share = int((ops.end - ops.start)[joined.incomplete].sum()) / max(int((ops.end - ops.start).sum()), 1)
        alone, bound = joined.incomplete & (joined.meeting < 0), joined.incomplete & (joined.meeting >= 0)
        parts = [
            f"{int(chosen.sum())} transfers {what}"
            for chosen, what in (
                (alone, "lack a rank or a row: they keep their measured duration, so a change elsewhere does not reach them"),
                (bound, "meet only those of their ranks that were given: what is left of their duration may be waiting for the others"),
            )
            if chosen.any()
        ]
        found.append(Diagnostic("waiting-unknown", f"{'; '.join(parts)} ({share:.1%} of all recorded time)"))
    if joined.cleaned and constants.transfer is None:
        found.append(
            Diagnostic("transfer-negative", f"{joined.cleaned} transfers end before their last rank arrives; each took its kind's median")
        )
    return found
