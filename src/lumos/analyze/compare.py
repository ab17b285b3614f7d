"""Two jobs, or two steps of one job, compared: what changed, and how much time each change costs.

The step of each job is that of every other verb (`analyze.loop.steps`): the median of the steps that count, or the step that was named.
Jobs may differ in their number of ranks and steps, so the time of an operator, kernel or collective is a mean over the steps of all ranks
(one step of one rank counts once). Operators and kernels are matched by name, collectives by kind, input bytes and group size. Their
order does not matter, so that one that moved is not reported as two changes. The cost of a row is the difference of its times.

Whether one is slower than the other by more than a share is told as far as the steps of their recordings can. The time of a step is a mean
over the steps that count, and is known as well as these agree. The difference of two such means has the interval of Welch's t-test (B. L.
Welch, Biometrika 34, 1947), which assumes neither as many steps nor the same spread on both sides. It holds what differs between steps of a
recording; what differs between runs (another node, a hotter device) no single recording shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import ceil, inf, sqrt
from statistics import mean, variance
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from lumos.analyze.breakdown import FourWay, four_way
from lumos.analyze.collectives import waiting
from lumos.analyze.loop.steps import StepTimes, members, step_times
from lumos.analyze.tables import by_operator
from lumos.analyze.task_class import working
from lumos.analyze.trust import Trust, trust
from lumos.diagnostics import Diagnostic
from lumos.errors import GraphError
from lumos.graph.lists import numbered
from lumos.graph.table import Graph, Kind
from lumos.intervals import union, within
from lumos.result import Shown
from lumos.simulation.timeline import Timeline, measured
from lumos.trace.table import ABSENT, Int32, Int64, Job, unique

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lumos.vocabulary import Basis, CollectiveKind

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
    """One of the two jobs. step_time_ns, latency_ns, basis: of its step. steps: the steps over which operators, kernels and collectives
    are averaged. variation: the standard deviation of a rank's steps over their mean, averaged over the ranks; None where no rank has
    two steps. breakdown: the four parts of its step, the mean over the ranks; they sum to the step. other_steps_ns: time in a step in
    which devices ran only work of other steps; it is in the breakdown, but in no row of operators, kernels or collectives. trust: how far
    answers about this job can be trusted."""

    step_time_ns: int
    latency_ns: int
    basis: Basis
    ranks: int
    steps: tuple[str, ...]
    rank_steps: int
    variation: float | None
    breakdown: dict[str, float]
    other_steps_ns: float
    trust: Trust


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Shown):
    """What changed from a to b. change_ns: of the step. change: the same as a fraction of the step of a.
    operators, kernels, collectives: the most costly first. regression: whether b is slower than was allowed; None where nobody asked."""

    a: Side
    b: Side
    change_ns: int
    change: float | None
    operators: tuple[Change, ...]
    kernels: tuple[Change, ...]
    collectives: tuple[Change, ...]
    diagnostics: tuple[Diagnostic, ...]
    regression: Regression | None = None


class _Run(NamedTuple):
    """One of the two jobs as measured. times: of its steps, of which those that are compared count. said: what is said of its steps."""

    job: Job
    timeline: Timeline
    times: StepTimes
    said: tuple[Diagnostic, ...]

    @property
    def number(self) -> int:
        """How many steps of ranks are compared."""
        return int(self.times.rank_steps_counted().sum())

    @property
    def compared(self) -> NDArray[np.bool_]:
        """The tasks of these steps."""
        return self.times.tasks_counted()


def compare_timelines(
    before: tuple[Job, Graph],
    after: tuple[Job, Graph],
    before_step: str | None = None,
    after_step: str | None = None,
    *,
    fail_above: float | None = None,
) -> Comparison:
    """Compare two jobs (each with the graph built from it) as measured, over all of their steps or over the one named for each.

    fail_above: the share by which B may be slower. GraphError where a job has no such step or no step at all, and where a slowdown is asked
    for that cannot be told from noise.
    """
    first, second = _run(*before, before_step), _run(*after, after_step)
    sides = _side(first), _side(second)
    change, unlike = sides[1].step_time_ns - sides[0].step_time_ns, _unlike(*sides)
    if fail_above is not None and unlike:
        raise GraphError(unlike[0].message)
    before_ns, after_ns = ([step.length_ns for step in run.times.counted] for run in (first, second))
    return Comparison(
        a=sides[0],
        b=sides[1],
        change_ns=change,
        change=change / sides[0].step_time_ns if sides[0].step_time_ns else None,
        operators=_changes(_operators(first), _operators(second)),
        kernels=_changes(_kernels(first), _kernels(second)),
        collectives=_changes(_collectives(first), _collectives(second)),
        regression=None if fail_above is None else regression(before_ns, after_ns, fail_above),
        diagnostics=tuple(dict.fromkeys((*unlike, *before[1].diagnostics, *first.said, *after[1].diagnostics, *second.said))),
    )


def _unlike(a: Side, b: Side) -> tuple[Diagnostic, ...]:
    """The diagnostic that the time of one step is a period and that of the other a latency; () where they are alike."""
    if a.basis is b.basis:
        return ()
    message = f"the time of A's step is a {a.basis}, of B's a {b.basis}, which are not the same; record two steps or more of both"
    return (Diagnostic("basis-differs", message),)


def _run(job: Job, graph: Graph, step: str | None) -> _Run:
    owners, timeline = members(graph), measured(graph)
    if not owners.steps:
        raise GraphError(f"{job.traces[0].path}: no step contains any task; the profiler window may have cut every step")
    times = step_times(timeline, owners if step is None else owners.only(step))
    return _Run(job, timeline, times, step_times(timeline, owners).findings())


def _side(run: _Run) -> Side:
    owners, steps, chosen = run.times.owners, run.times.counted, run.times.rank_steps_counted()
    start, end = run.times.job_intervals()
    parts = np.array(four_way(run.timeline, owners, (start, end)), np.float64)
    breakdown = dict(zip(FourWay._fields, parts[chosen].mean(axis=0).tolist(), strict=True))
    length = end - start
    step_rank = np.where(chosen, owners.step_rank(), -1)
    by_rank = [length[step_rank == rank] for rank in unique(step_rank[chosen])]
    spread = [float(own.std() / own.mean()) for own in by_rank if len(own) > 1 and own.mean() > 0]
    variation = float(np.mean(spread)) if spread else None
    others = parts[:, :3].sum(axis=1) - _own_work(run, start, end)
    return Side(
        step_time_ns=round(mean(step.length_ns for step in steps)),
        latency_ns=round(mean(step.latency_ns for step in steps)),
        basis=steps[0].basis,
        ranks=len(run.timeline.graph.ranks),
        steps=tuple(dict.fromkeys(owners.steps[i].name for i in np.flatnonzero(chosen))),
        rank_steps=run.number,
        variation=variation,
        breakdown=breakdown,
        other_steps_ns=float(others[chosen].mean()),
        trust=trust(run.timeline.graph),
    )


def _own_work(run: _Run, start: Int64, end: Int64) -> Int64:
    """Time in each step in which any task that the step owns works, int64[steps] ns."""
    owners = run.times.owners
    computes, communicates = working(owners)
    works = computes | communicates
    out = np.empty(len(start), np.int64)
    for i in range(len(start)):
        tasks = owners.tasks(i)
        tasks = tasks[works[tasks]]
        out[i] = within(union(run.timeline.start[tasks], run.timeline.end[tasks]), start[i : i + 1], end[i : i + 1])[0]
    return out


def _operators(run: _Run) -> dict[str, Amount]:
    """Operators by name: how often they are called, the device work launched from them, and their own CPU time."""
    graph, owners, number = run.timeline.graph, run.times.owners, run.number
    called = (graph.kind == Kind.OPERATOR) | ((graph.kind == Kind.COLLECTIVE) & ~owners.on_device)
    pieces = np.flatnonzero(called & run.compared)
    _, first = np.unique(numbered(owners.rank[pieces], graph.event[pieces]), return_index=True)
    calls = _totals(graph.name[pieces[first]], graph.names)
    rows = by_operator(run.timeline, owners, run.job)
    return {r.name: Amount(calls.get(r.name, (0, 0))[0] / number, r.device_ns / number, cpu_ns=r.cpu_ns / number) for r in rows}


def _kernels(run: _Run) -> dict[str, Amount]:
    """Device work other than collectives, by name."""
    graph = run.timeline.graph
    chosen = np.flatnonzero(graph.on_device & run.compared & (graph.kind != Kind.COLLECTIVE))
    totals = _totals(graph.name[chosen], graph.names, (run.timeline.end - run.timeline.start)[chosen])
    return {name: Amount(count / run.number, time / run.number) for name, (count, time) in totals.items()}


def _collectives(run: _Run) -> dict[str, Amount]:
    """Collectives by kind, input bytes and group size; their time includes waiting, which is also given apart."""
    graph, number = run.timeline.graph, run.number
    chosen = np.flatnonzero((graph.kind == Kind.COLLECTIVE) & run.compared)
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
    keys = np.stack((facts.kind, facts.nbytes, size))
    label[facts.task] = numbered(*keys)
    distinct = keys[:, np.unique(label[facts.task], return_index=True)[1]]
    return label, [*(_collective_name(facts.kinds[kind], nbytes, ranks) for kind, nbytes, ranks in distinct.T.tolist()), "unknown"]


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


#: The 97.5th percentile of Student's t with 1, 2, … degrees of freedom (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2).
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
#: The same of a normal distribution, and how fast t comes down to it: t - Z95 is nearly this number divided by the degrees of freedom.
_Z95, _APPROACH = 1.95996, 2.5


class Verdict(StrEnum):
    """What the recordings show of a slowdown: that it is more than allowed, that it is not, or neither, because noise hides it."""

    SLOWER = "slower"
    WITHIN = "within"
    UNDECIDED = "undecided"


class Regression(NamedTuple):
    """How much longer the step takes after than before, against what is allowed; all are fractions of the step before.

    noise: half-width of the 95 % interval of `change`. steps_needed: about how many steps of each job would make the noise as small as
    what is allowed; None where it is, or where nothing is allowed.
    """

    allowed: float
    change: float
    noise: float
    verdict: Verdict
    steps_needed: int | None


def regression(before: Sequence[int], after: Sequence[int], allowed: float) -> Regression:
    """Whether steps of these lengths (ns) became longer by more than a fraction. GraphError with fewer than two steps of either."""
    for letter, lengths in (("A", before), ("B", after)):
        if len(lengths) < 2:
            raise GraphError(
                f"{letter} has {len(lengths)} step that counts, which does not show how much steps differ, so no slowdown can be told from"
                " noise; record three steps or more that follow one another"
            )
    base = mean(before)
    change, noise = mean(after) / base - 1, _half_width(before, after) / base
    verdict = Verdict.SLOWER if change - noise > allowed else Verdict.WITHIN if change + noise <= allowed else Verdict.UNDECIDED
    needed = ceil(max(len(before), len(after)) * (noise / allowed) ** 2) if 0 < allowed < noise else None
    return Regression(allowed, change, noise, verdict, needed)


def _half_width(before: Sequence[int], after: Sequence[int]) -> float:
    """Half-width of the 95 % interval of the difference of the means, ns."""
    errors = [(variance(map(float, lengths)) / len(lengths), len(lengths) - 1) for lengths in (before, after)]
    total = sum(error for error, _ in errors)
    freedom = total**2 / sum(error**2 / degrees for error, degrees in errors) if total else inf
    known = max(int(freedom), 1) if freedom < len(_T95) + 1 else None
    return sqrt(total) * (_Z95 + _APPROACH / freedom if known is None else _T95[known - 1])
