"""Two jobs, or two steps of one job, compared: what changed, and how much time each change costs.

Jobs may differ in their number of ranks and steps, so every figure is a mean over the steps of all ranks (one step of one rank
counts once). Operators and kernels are matched by name, collectives by kind, input bytes and group size. Their order does not
matter, so that one that moved is not reported as two changes. The cost of a row is the difference of its times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from lumos.analyze.breakdown import FourWay, four_way, working
from lumos.analyze.collectives import waiting
from lumos.analyze.steps import Members, members, only_steps, step_names, step_spans
from lumos.analyze.tables import by_operator
from lumos.errors import GraphError
from lumos.graph.table import Graph, Kind
from lumos.intervals import union, within
from lumos.result import Shown
from lumos.simulate.timeline import Timeline, measured
from lumos.trace.table import ABSENT, Int32, Int64, Job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.diagnostics import Diagnostic
    from lumos.vocabulary import CollectiveKind

Status = Literal["appeared", "vanished", "changed", "same"]


class Amount(NamedTuple):
    """How often an operator, kernel or collective runs in a step of a rank, and for how long (means). time_ns: on devices, or of
    a collective. cpu_ns: an operator's own CPU time. waiting_ns: the part of a collective's time in which it waited for its
    peers; None where that is not known."""

    runs: float
    time_ns: float
    cpu_ns: float | None = None
    waiting_ns: float | None = None


class Change(NamedTuple):
    """An operator, kernel or collective before and after; None where it does not run. cost_ns: how much longer it takes after, on
    the CPU and the devices together."""

    name: str
    status: Status
    before: Amount | None
    after: Amount | None
    cost_ns: float


class Side(NamedTuple):
    """One of the two jobs: its steps, and their means. variation: the standard deviation of a rank's steps over their mean,
    averaged over the ranks; None where no rank has two steps. other_steps_ns: time in a step in which devices ran only work of
    other steps; it is in the breakdown, but in no row of operators, kernels or collectives."""

    ranks: int
    steps: tuple[str, ...]
    rank_steps: int
    step_ns: float
    variation: float | None
    breakdown: dict[str, float]
    other_steps_ns: float


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Shown):
    """What changed from before to after. change_ns: of the mean step. change: the same as a fraction of the mean step before.
    operators, kernels, collectives: the most costly first."""

    before: Side
    after: Side
    change_ns: float
    change: float | None
    operators: tuple[Change, ...]
    kernels: tuple[Change, ...]
    collectives: tuple[Change, ...]
    diagnostics: tuple[Diagnostic, ...]


class _Run(NamedTuple):
    """One of the two jobs as measured. owners: its members, with the chosen steps only."""

    job: Job
    timeline: Timeline
    owners: Members


def compare_timelines(
    before: tuple[Job, Graph], after: tuple[Job, Graph], before_step: str | None = None, after_step: str | None = None
) -> Comparison:
    """Compare two jobs (each with the graph built from it) as measured, over all of their steps or over the one named for each.

    GraphError where a job has no such step, or no step at all.
    """
    first, second = _run(*before, before_step), _run(*after, after_step)
    sides = _side(first), _side(second)
    change = sides[1].step_ns - sides[0].step_ns
    return Comparison(
        before=sides[0],
        after=sides[1],
        change_ns=change,
        change=change / sides[0].step_ns if sides[0].step_ns else None,
        operators=_changes(_operators(first), _operators(second)),
        kernels=_changes(_kernels(first), _kernels(second)),
        collectives=_changes(_collectives(first), _collectives(second)),
        diagnostics=(*before[1].diagnostics, *(d for d in after[1].diagnostics if d not in before[1].diagnostics)),
    )


def _run(job: Job, graph: Graph, step: str | None) -> _Run:
    owners, where = members(graph), job.traces[0].path
    if not owners.steps:
        raise GraphError(f"{where}: no step contains any task; the profiler window may have cut every step")
    if step is not None:
        chosen = only_steps(owners, step)
        if not chosen.steps:
            raise GraphError(f"{where}: there is no step {step!r}; it has {', '.join(step_names(graph))}")
        owners = chosen
    return _Run(job, measured(graph), owners)


def _side(run: _Run) -> Side:
    owners = run.owners
    start, end = step_spans(run.timeline, owners)
    parts = np.array(four_way(run.timeline, owners), np.float64)
    names = tuple(dict.fromkeys(step.name for step in owners.steps))
    breakdown = dict(zip(FourWay._fields, parts.mean(axis=0).tolist(), strict=True))
    length = end - start
    step_rank = owners.step_rank()
    by_rank = [length[step_rank == rank] for rank in np.unique(step_rank)]
    spread = [float(steps.std() / steps.mean()) for steps in by_rank if len(steps) > 1 and steps.mean() > 0]
    variation = float(np.mean(spread)) if spread else None
    return Side(
        ranks=len(run.timeline.graph.ranks),
        steps=names,
        rank_steps=len(owners.steps),
        step_ns=float(length.mean()),
        variation=variation,
        breakdown=breakdown,
        other_steps_ns=float((parts[:, :3].sum(axis=1) - _own_work(run, start, end)).mean()),
    )


def _own_work(run: _Run, start: Int64, end: Int64) -> Int64:
    """Time in each step in which any task that the step owns works, int64[steps] ns."""
    computes, communicates = working(run.owners)
    works = computes | communicates
    out = np.empty(len(start), np.int64)
    for i in range(len(start)):
        tasks = run.owners.tasks(i)
        tasks = tasks[works[tasks]]
        out[i] = within(union(run.timeline.start[tasks], run.timeline.end[tasks]), start[i : i + 1], end[i : i + 1])[0]
    return out


def _operators(run: _Run) -> dict[str, Amount]:
    """Operators by name: how often they are called, the device work launched from them, and their own CPU time."""
    graph, number = run.timeline.graph, len(run.owners.steps)
    called = (graph.kind == Kind.OPERATOR) | ((graph.kind == Kind.COLLECTIVE) & ~run.owners.on_device)
    pieces = np.flatnonzero(called & (run.owners.step >= 0))
    _, first = np.unique(np.stack((run.owners.rank[pieces], graph.event[pieces])), axis=1, return_index=True)
    calls = _totals(graph.name[pieces[first]], graph.names)
    rows = by_operator(run.timeline, run.owners, run.job)
    return {r.name: Amount(calls.get(r.name, (0, 0))[0] / number, r.device_ns / number, cpu_ns=r.cpu_ns / number) for r in rows}


def _kernels(run: _Run) -> dict[str, Amount]:
    """Device work other than collectives, by name."""
    graph = run.timeline.graph
    chosen = np.flatnonzero(run.owners.on_device & (run.owners.step >= 0) & (graph.kind != Kind.COLLECTIVE))
    totals = _totals(graph.name[chosen], graph.names, (run.timeline.end - run.timeline.start)[chosen])
    return {name: Amount(count / len(run.owners.steps), time / len(run.owners.steps)) for name, (count, time) in totals.items()}


def _collectives(run: _Run) -> dict[str, Amount]:
    """Collectives by kind, input bytes and group size; their time includes waiting, which is also given apart."""
    graph, number = run.timeline.graph, len(run.owners.steps)
    chosen = np.flatnonzero((graph.kind == Kind.COLLECTIVE) & (run.owners.step >= 0))
    label, names = _collective_names(graph)
    totals = _totals(label[chosen], names, (run.timeline.end - run.timeline.start)[chosen])
    waited = _totals(label[chosen], names, (waiting(run.timeline).began - run.timeline.start)[chosen])
    met = _totals(label[graph.rendezvous_task], names)
    return {
        name: Amount(count / number, time / number, waiting_ns=waited[name][1] / number if name in met else None)
        for name, (count, time) in totals.items()
    }


def _collective_names(graph: Graph) -> tuple[Int64, list[str]]:
    """Names of collectives, and by task an index into them, int64[n]. The last name is for collectives that nothing is known of."""
    label, facts = np.full(len(graph), -1, np.int64), graph.collectives
    if facts is None:
        return label, ["unknown"]
    size = np.full(len(facts.task), ABSENT, np.int32) if facts.size is None else facts.size
    keys, inverse = np.unique(np.stack((facts.kind, facts.nbytes, size), axis=1), axis=0, return_inverse=True)
    label[facts.task] = inverse.reshape(-1)
    return label, [*(_collective_name(facts.kinds[kind], nbytes, ranks) for kind, nbytes, ranks in keys.tolist()), "unknown"]


def _collective_name(kind: CollectiveKind, nbytes: int, ranks: int) -> str:
    size = f" {nbytes:,} B" if nbytes >= 0 else ""
    return f"{kind}{size}" + (f", {ranks} ranks" if ranks > 0 else "")


def _totals(label: Int32 | Int64, names: Sequence[str], time: Int64 | None = None) -> dict[str, tuple[int, int]]:
    """By name, how many labels are indices of that name, and the sum of their times (0 without `time`)."""
    used, inverse = np.unique(label, return_inverse=True)
    count = np.bincount(inverse.reshape(-1), minlength=len(used))
    total = np.zeros(len(used), np.int64)
    if time is not None:
        np.add.at(total, inverse.reshape(-1), time)
    out: dict[str, tuple[int, int]] = {}
    for i, number, ns in zip(used.tolist(), count.tolist(), total.tolist(), strict=True):
        before = out.get(names[i], (0, 0))
        out[names[i]] = before[0] + number, before[1] + ns
    return out


def _changes(before: dict[str, Amount], after: dict[str, Amount]) -> tuple[Change, ...]:
    """One row for each name that is in either, the largest difference of time first."""
    rows = [_change(name, before.get(name), after.get(name)) for name in dict.fromkeys((*before, *after))]
    return tuple(sorted(rows, key=lambda row: (-abs(row.cost_ns), row.name)))


def _change(name: str, before: Amount | None, after: Amount | None) -> Change:
    status: Status = "appeared" if before is None else "vanished" if after is None else "same" if before == after else "changed"
    return Change(name, status, before, after, _time(after) - _time(before))


def _time(amount: Amount | None) -> float:
    return 0.0 if amount is None else amount.time_ns + (amount.cpu_ns or 0.0)
