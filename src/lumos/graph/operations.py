"""The graph of an operation-level job: passes, transfers and collectives of every rank, step by step.

Every rank runs its calls in program order; what ranks do together (`graph.meetings`) starts when the last has arrived,
so waiting emerges. Taken from the recording: the durations of compute, the transfer part of communication, the order of
calls, where each rank entered each step (steps are recordings of their own, laid end to end), and one constant for each
operation kind: the launch delay behind it, the median gap between the end of such a call and the start of the next.
Where a recording has no transfers, one constant for all of them: the median over the meetings of two ranks in one call.

Limits: a rank makes blocking calls one after another, but for gradient and parameter collectives that the job overlaps;
a step does not wait for the step before it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lumos.diagnostics import Diagnostic
from lumos.errors import GraphError
from lumos.graph.edges import Edges
from lumos.graph.meetings import KIND_OF, Meetings, meetings
from lumos.graph.operation_table import Operations, recorded
from lumos.graph.pipeline_transfers import with_transfers
from lumos.graph.table import Collectives, Dependency, Graph, Kind, Processor, Step
from lumos.trace.operations import LANES, STEP_MARK
from lumos.trace.table import ABSENT, Int64, Job

#: Name of the tasks that stand for the launch delay behind a call.
DELAY = "(launch delay)"

#: A shorter delay is below what the recording's timers resolve, ns.
LEAST_DELAY_NS = 1_000


@dataclass(frozen=True, slots=True)
class Constants:
    """What a replay takes from an operation-level job besides durations and order; ns.

    delay: the launch delay behind each operation kind that has one. transfer: the time of every transfer, where the
    recording has none.
    """

    delay: dict[str, int]
    transfer: int | None


def operations_graph(job: Job, fitted_on: Collection[int] | None = None) -> Graph:
    """The graph of all ranks. `fitted_on`: numbers of the steps from which the constants are estimated; all where None.

    Raises GraphError where `fitted_on` names no step of the job.
    """
    ops = recorded(job)
    fitted = np.isin(np.array(ops.steps), list(ops.steps if fitted_on is None else fitted_on))
    if not fitted.any():
        raise GraphError(f"none of the steps to fit on is in the recording; it has steps {ops.steps[0]} to {ops.steps[-1]}")
    in_fit = fitted[ops.step]
    transfer = None
    if not ops.recorded_transfers and ops.plan.stages > 1:
        transfer = _transfer(with_transfers(ops), fitted)
        ops = with_transfers(ops, transfer)
        in_fit = fitted[ops.step]
    joined = meetings(ops)
    before, after = _program_order(ops)
    delay = _delays(ops, before, after, in_fit)
    constants = Constants(delay, transfer)
    return _graph(job, ops, joined, before, after, constants)


def _transfer(ops: Operations, fitted: np.ndarray) -> int:
    """The usual transfer: over receives that share their call with a send, so that both arrivals are known."""
    joined = meetings(ops)
    key = (ops.rank * len(ops.steps) + ops.step) * (int(ops.call.max()) + 1) + ops.call
    _, at, count = np.unique(key, return_inverse=True, return_counts=True)
    usable = (joined.meeting >= 0) & (count[at] > 1) & ops.is_named("forward-recv", "backward-recv") & fitted[ops.step]
    if not usable.any():
        usable = (joined.meeting >= 0) & fitted[ops.step]
    if usable.any():
        return int(np.median(joined.transfer[usable]))
    return _hop(ops, fitted)


def _hop(ops: Operations, fitted: np.ndarray) -> int:
    """Without meetings (interleaved): the shortest tenth of the gaps from a pass to the pass that takes its output."""
    source, target = _fed(ops)
    gap = ops.start[target] - ops.end[source]
    gap = gap[(gap >= 0) & fitted[ops.step[target]]]
    return int(np.quantile(gap, 0.1)) if len(gap) else 0


def _program_order(ops: Operations) -> tuple[Int64, Int64]:
    """Edges before[i] -> after[i] between operations: the calls of each rank, what stands aside, and overlapped passes."""
    before: list[int] = []
    after: list[int] = []
    bounds = np.flatnonzero(np.diff(ops.rank * len(ops.steps) + ops.step)) + 1
    call, aside = ops.call.tolist(), ops.aside.tolist()
    for low, high in pairwise([0, *bounds.tolist(), len(ops)]):
        previous: list[int] = []
        current: list[int] = []
        for i in (i for i in range(low, high) if not aside[i]):
            if current and call[i] != call[current[0]]:
                previous, current = current, []
            current.append(i)
            before += previous
            after += [i] * len(previous)
        _attach(ops, low, high, before, after)
    source, target = _fed(ops)
    return np.array([*before, *source], np.int64), np.array([*after, *target], np.int64)


def _attach(ops: Operations, low: int, high: int, before: list[int], after: list[int]) -> None:
    """Hang what stands aside in one rank's step between the calls that it needs and those that need it."""
    named = [ops.names[n] for n in ops.name[low:high]]
    for i in range(low, high):
        if not ops.aside[i]:
            continue
        name, chunk = named[i - low], ops.chunk[i]
        of_chunk = [j for j in range(low, high) if ops.chunk[j] == chunk]
        if name == "params-all-gather":
            needs = [j for j in of_chunk if named[j - low] == "forward-compute"][:1]
            before += [i] * len(needs)
            after += needs
        elif name == "grads-reduce-scatter":
            last = [j for j in of_chunk if named[j - low] == "backward-compute"][-1:]
            tail = [j for j in range(low, high) if KIND_OF.get(named[j - low]) == "all-reduce"][:1]
            before += [*last, *([i] * len(tail))]
            after += [*([i] * len(last)), *tail]
        else:  # a send that overlaps with compute leaves its pass
            passed = [j for j in of_chunk if not ops.aside[j] and ops.call[j] == ops.call[i]]
            before += passed
            after += [i] * len(passed)


def _fed(ops: Operations) -> tuple[Int64, Int64]:
    """(send, pass that takes its output) where sends stand aside; edges between ranks without a meeting."""
    stages, sends = ops.plan.stages, np.flatnonzero(ops.aside & ops.is_named("forward-send", "backward-send"))
    passes: dict[tuple[object, ...], int] = {}
    for i in np.flatnonzero(ops.is_named("forward-compute", "backward-compute")) if len(sends) else ():
        place = int(ops.chunk[i]) * stages + int(ops.stage[i])
        passes[ops.names[ops.name[i]].partition("-")[0], int(ops.step[i]), int(ops.dp[i]), int(ops.microbatch[i]), place] = int(i)
    source, target = [], []
    for i in sends:
        direction = ops.names[ops.name[i]].partition("-")[0]
        place = int(ops.chunk[i]) * stages + int(ops.stage[i]) + (1 if direction == "forward" else -1)
        to = passes.get((direction, int(ops.step[i]), int(ops.dp[i]), int(ops.microbatch[i]), place))
        if to is not None:
            source.append(int(i))
            target.append(to)
    return np.array(source, np.int64), np.array(target, np.int64)


def _delays(ops: Operations, before: Int64, after: Int64, in_fit: np.ndarray) -> dict[str, int]:
    """The launch delay behind each operation kind: the median gap to the next call of the rank, where the timers see one."""
    chain = (ops.rank[before] == ops.rank[after]) & ~ops.aside[before] & ~ops.aside[after]
    ended = np.full(len(ops), -1, np.int64)
    np.maximum.at(ended, after[chain], ops.end[before[chain]])
    behind = np.full(len(ops), -1, np.int64)
    behind[after[chain]] = ops.name[before[chain]]
    out: dict[str, int] = {}
    for number, name in enumerate(ops.names):
        gaps = (ops.start - ended)[(behind == number) & in_fit]
        usual = int(np.median(gaps)) if len(gaps) else 0
        if usual >= LEAST_DELAY_NS:
            out[name] = usual
    return out


def _graph(job: Job, ops: Operations, joined: Meetings, before: Int64, after: Int64, constants: Constants) -> Graph:
    """Tasks (operations, and a delay before each call that has one) and edges as columns."""
    chain = (ops.rank[before] == ops.rank[after]) & ~ops.aside[before] & ~ops.aside[after]
    delay_of_name = np.array([constants.delay.get(name, 0) for name in ops.names], np.int64)
    delay = np.zeros(len(ops), np.int64)
    np.maximum.at(delay, after[chain], delay_of_name[ops.name[before[chain]]])
    ended = ops.start.copy()
    ended[after[chain]] = 0
    np.maximum.at(ended, after[chain], ops.end[before[chain]])
    delayed = np.flatnonzero(delay > 0)

    # A delay stands before its operation, so that the tasks of a rank ascend with the time at which they began.
    position = np.arange(len(ops)) + np.searchsorted(delayed, np.arange(len(ops)), side="right")
    host = position[delayed] - 1
    n = len(ops) + len(delayed)
    length = np.array([int(ops.end[ops.step == s].max()) for s in range(len(ops.steps))], np.int64)
    origin = np.concatenate(([0], np.cumsum(length)))
    lanes = np.array([LANES.index(name) for name in LANES])
    processors = tuple(
        Processor(rank, False, name, lane=lane if name in LANES else -1)
        for rank in job.ranks
        for lane, name in enumerate((*LANES, "host"))
    )
    per_rank = len(lanes) + 1

    def spread(of_operation: Int64, of_delay: Int64) -> Int64:
        out = np.empty(n, np.int64)
        out[position], out[host] = of_operation, of_delay
        return out

    base = origin[ops.step]
    measured = ops.end - ops.start
    known = joined.meeting >= 0
    duration = np.where(known, joined.transfer, measured)
    if constants.transfer is not None:
        duration = np.where(ops.row < 0, constants.transfer, duration)
    edges = Edges()
    edges.add(position[before], position[after], Dependency.DATA)
    order = np.flatnonzero(delay[after] * chain > 0)
    edges.add(position[before[order]], position[after[order]] - 1, Dependency.DATA)
    edges.add(host, position[delayed], Dependency.LAUNCH)
    offset, pred, pred_kind = edges.predecessors(n)
    is_transfer = np.array([name in KIND_OF for name in ops.names], bool)[ops.name]
    kind = np.where(is_transfer, int(Kind.COLLECTIVE), int(Kind.OPERATOR))
    free = np.setdiff1d(np.flatnonzero(~ops.aside | ops.is_named("params-all-gather")), after)
    return Graph(
        ranks=job.ranks,
        processors=processors,
        names=(*ops.names, DELAY),
        duration=spread(duration, delay[delayed]),
        processor=spread(ops.rank * per_rank + ops.lane, ops.rank[delayed] * per_rank + len(lanes)).astype(np.int32),
        kind=spread(kind, np.full(len(delayed), int(Kind.HOST))).astype(np.uint8),
        name=spread(ops.name, np.full(len(delayed), len(ops.names))).astype(np.int32),
        event=spread(ops.row, np.full(len(delayed), -1)).astype(np.int32),
        pred_offset=offset,
        pred=pred,
        pred_kind=pred_kind,
        lag=np.zeros((len(job.ranks), len(Dependency)), np.int64),
        release_task=position[free].astype(np.int32),
        release_time=(base + ops.start)[free],
        rendezvous_offset=joined.offset,
        rendezvous_task=position[joined.members].astype(np.int32),
        collectives=_collectives(ops, joined, position),
        measured_start=spread(base + ops.start, (base + np.minimum(ended, ops.start))[delayed]),
        measured_end=spread(base + ops.end, (base + ops.start)[delayed]),
        steps=tuple(
            Step(rank, f"{STEP_MARK}{number}", int(origin[i]), int(origin[i + 1])) for rank in job.ranks for i, number in enumerate(ops.steps)
        ),
        diagnostics=(*job.diagnostics, *(d for t in job.traces for d in t.diagnostics), *_findings(ops, joined, constants)),
    )


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


def _findings(ops: Operations, joined: Meetings, constants: Constants) -> list[Diagnostic]:
    found = []
    if constants.delay:
        shown = ", ".join(f"{name} {ns / 1e6:.3f} ms" for name, ns in constants.delay.items())
        found.append(Diagnostic("launch-delay", f"one constant an operation kind, estimated from gaps: the delay behind {shown}"))
    if constants.transfer is not None:
        found.append(
            Diagnostic(
                "transfers-implied",
                "the recording has passes but no transfers: those that their order implies were added, "
                f"each of {constants.transfer / 1e6:.3f} ms (the median over all, estimated from gaps)",
            )
        )
    if joined.incomplete.any():
        total = int((ops.end - ops.start)[joined.incomplete].sum())
        share = total / max(int((ops.end - ops.start).sum()), 1)
        found.append(
            Diagnostic(
                "waiting-unknown",
                f"{int(joined.incomplete.sum())} transfers ({share:.1%} of all recorded time) lack a rank: they keep their measured "
                "duration, so a change elsewhere does not reach them",
            )
        )
    if joined.cleaned:
        found.append(
            Diagnostic("transfer-negative", f"{joined.cleaned} transfers end before their last rank arrives (clocks); each took its kind's median")
        )
    return found
