"""Why a job is slower than its ideal: one cause a finding, with where it is worst.

What takes longer than in the ideal job (`analyze.ranks.equal_work`) has one of four causes. *Extra work*: operators that most ranks lack. A
*stall*: a pause between operators that most ranks lack, or a single pause, operator or call on the CPU that is half or more of what the CPU
work of a step takes too long, such as a sleep, a loader that is late, or a compilation. *Slow work*: all other work of a rank, that of its
CPU and of its device apart. A *slow exchange*: collectives or transfers of a class, which belong to all ranks that meet in them.

Where ranks do unequal work, or are too few to tell which of them is off, a diagnostic says so.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.steps import is_operation_level
from lumos.diagnostics import Diagnostic
from lumos.graph.lists import equal_rows
from lumos.graph.table import Graph, Kind
from lumos.trace.table import unique
from lumos.units import count, duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from lumos.analyze.loop.steps import Members, StepTimes
    from lumos.analyze.ranks.equal_work import EqualWork, Ideal
    from lumos.analyze.ranks.peers import Peers
    from lumos.trace.table import Int32, Int64

#: Extra work and stalls below this time (ns) are none: profilers that count whole µs leave out the shortest pieces of an operator on
#: some ranks.
SHORTEST = 10_000

#: A pause takes at least this share of the excess of a step's CPU work to be its cause.
STALL = 0.5


class StragglerCause(StrEnum):
    """Why a rank takes longer than its peers. The value is the spelling in text and JSON."""

    EXTRA_WORK = "extra-work"
    STALL = "stall"
    SLOW_WORK = "slow-work"
    SLOW_EXCHANGE = "slow-exchange"


@dataclass(frozen=True, slots=True)
class Where:
    """Where a cause is worst. start_ns: the start of `task`, from the first start of the job's step. task: its name."""

    rank: int
    step: str
    start_ns: int
    task: str


@dataclass(frozen=True, slots=True)
class StragglerFinding:
    """One cause: on one rank, or of the exchanges of all.

    name: what is extra, where the stall is, or the class that is slow. excess_ns: how much longer than ideal it takes in a step, the mean
    over the steps that count. slowdown: of the ideal step, if this alone took its own time. worth_ns: how much shorter a step would be
    without the excess.
    """

    cause: StragglerCause
    name: str
    where: Where
    excess_ns: int
    slowdown: float
    worth_ns: int


class Candidate(NamedTuple):
    """The tasks that a cause makes slower than ideal, and how much longer they take over all steps, ns."""

    cause: StragglerCause
    name: str
    tasks: Int64
    excess_ns: int


def candidates(graph: Graph, owners: Members, classes: EqualWork, own: NDArray[np.bool_], aim: Ideal) -> list[Candidate]:
    """What makes ranks slower than ideal, the largest excess first. own: bool[n], tasks whose time counts."""
    excess = graph.duration - aim.duration
    out: list[Candidate] = []
    extra = _extra_work(graph, owners, own & aim.extra)
    for name, tasks in extra:
        pause = bool((graph.kind[tasks] == Kind.HOST).all())
        cause, what = (StragglerCause.STALL, described(graph, int(tasks[0]))) if pause else (StragglerCause.EXTRA_WORK, name)
        out.append(Candidate(cause, what, tasks, int(excess[tasks].sum())))
    rest = own.copy()
    for _, tasks in extra:
        rest[tasks] = False
    communicates = graph.kind == Kind.COLLECTIVE
    on_cpu = ~owners.on_device & ~communicates & (not is_operation_level(graph))
    for rank in range(len(graph.ranks)):
        of_rank = rest & (owners.rank == rank) & ~communicates
        for name, tasks in _stalls(graph, owners, np.flatnonzero(of_rank & on_cpu), excess).items():
            of_rank[tasks] = False
            out.append(Candidate(StragglerCause.STALL, name, tasks, int(excess[tasks].sum())))
        out += [_slow(StragglerCause.SLOW_WORK, classes, np.flatnonzero(of_rank & side), excess) for side in (on_cpu, ~on_cpu)]
    exchanges = np.flatnonzero(rest & communicates)
    out += [_slow(StragglerCause.SLOW_EXCHANGE, classes, tasks, excess) for tasks in _groups(exchanges, classes.label[exchanges])]
    out = [c for c in out if c.excess_ns > 0]
    return sorted(out, key=lambda c: -c.excess_ns)


def _slow(cause: StragglerCause, classes: EqualWork, tasks: Int64, excess: Int64) -> Candidate:
    """Tasks that together take longer than ideal, named by the class that most of it is in."""
    if not len(tasks):
        return Candidate(cause, "", tasks, 0)
    by_class = np.bincount(classes.label[tasks], np.maximum(excess[tasks], 0))
    return Candidate(cause, classes.labels[int(by_class.argmax())], tasks, int(excess[tasks].sum()))


def where(graph: Graph, times: StepTimes, aim: Ideal, tasks: Int64) -> Where:
    """The place where tasks of one rank exceed their ideal the most."""
    worst = int(tasks[np.argmax((graph.duration - aim.duration)[tasks])])
    step, _ = times.of_ranks()[int(times.owners.step[worst])]
    assert graph.measured_start is not None  # only measured jobs have stragglers
    start = int(graph.measured_start[worst]) - step.begin_ns
    return Where(graph.ranks[int(times.owners.rank[worst])], step.name, start, described(graph, worst))


def described(graph: Graph, task: int) -> str:
    """The name of a task; of time between operators, what it comes before."""
    own = str(graph.names[graph.name[task]])
    if graph.kind[task] != Kind.HOST:
        return own
    later = np.flatnonzero((graph.processor[task:] == graph.processor[task]) & (graph.kind[task:] == Kind.OPERATOR))
    return f"before {graph.names[graph.name[task + later[0]]]}" if len(later) else own


def _extra_work(graph: Graph, owners: Members, extra: NDArray[np.bool_]) -> list[tuple[str, Int64]]:
    """Extra work by rank and operator, each with its tasks on CPU and device.

    A run of extra work on a thread is named by the operator in it that takes most of the rank's extra time, so that it has one name in
    every step.
    """
    run = np.full(len(graph), -1, np.int64)
    order = np.argsort(graph.processor, kind="stable")
    begins = np.ones(len(order), bool)
    begins[1:] = ~extra[order[:-1]] | (np.diff(graph.processor[order]) != 0)
    run[order] = np.cumsum(begins)
    launched = np.flatnonzero(extra & (owners.launch >= 0))
    launched = launched[extra[owners.launch[launched]]]
    run[launched] = run[owners.launch[launched]]
    tasks = np.flatnonzero(extra)
    runs = [group for group in _groups(tasks, run[tasks]) if graph.duration[group].sum() >= SHORTEST]
    total: dict[tuple[int, int], int] = defaultdict(int)  # of each operator that a rank has in addition, over all its runs
    for task in np.concatenate(runs).tolist() if runs else ():
        total[int(owners.rank[task]), int(graph.name[task])] += int(graph.duration[task])
    by_name: dict[tuple[int, int], list[Int64]] = defaultdict(list)
    for group in runs:
        operators = group[graph.kind[group] == Kind.OPERATOR]
        rank = int(owners.rank[group[0]])
        _, name = max((total[rank, name], -name) for name in graph.name[operators if len(operators) else group].tolist())
        by_name[rank, -name].append(group)
    return [(graph.names[name], np.concatenate(groups)) for (_, name), groups in by_name.items()]


def _stalls(graph: Graph, owners: Members, tasks: Int64, excess: Int64) -> dict[str, Int64]:
    """The stalls of one rank's CPU work, by what they are: at most one a step."""
    calls: dict[str, list[int]] = defaultdict(list)
    for group in _groups(tasks, owners.step[tasks]):
        worst = int(group[np.argmax(excess[group])])
        too_long = int(excess[worst])
        unusual = too_long >= SHORTEST and 2 * too_long >= graph.duration[worst]  # it takes twice its time, or more
        if unusual and too_long >= STALL * np.maximum(excess[group], 0).sum():
            calls[described(graph, worst)].append(worst)
    return {name: np.array(tasks_of, np.int64) for name, tasks_of in calls.items()}


def _groups(tasks: Int64, key: Int64 | Int32) -> Iterator[Int64]:
    """The tasks of equal key, in ascending order."""
    return (tasks[alike] for alike in equal_rows(key))


def unequal_work(graph: Graph, owners: Members, classes: EqualWork, counted: NDArray[np.bool_], aim: Ideal) -> tuple[Diagnostic, ...]:
    """The diagnostics. counted: bool[n], tasks of the steps that count."""
    notes = (
        _unequal_places(graph, owners, counted, aim, aim.peers)
        if aim.peers is not None
        else _unequal_classes(graph, owners, classes, counted)
    )
    if len(graph.ranks) == 2:
        message = "two ranks have no majority: equal work takes the mean of their times, and which of the two is off cannot be told"
        notes.append(Diagnostic("no-majority", message))
    return tuple(notes)


def _unequal_places(graph: Graph, owners: Members, counted: NDArray[np.bool_], aim: Ideal, peers: Peers) -> list[Diagnostic]:
    """Of a job compared place by place: what ranks do more and less than most."""
    compared = counted & (peers.place >= 0) & (graph.kind != Kind.COLLECTIVE)
    long = compared & (graph.duration >= SHORTEST)
    lacking = _lacking(graph, owners, compared, peers)
    said = []
    for i, rank in enumerate(graph.ranks):
        own = owners.rank == i
        extra = long & own & aim.extra
        parts = []
        if extra.any():
            parts.append(f"does {count(int(extra.sum()), 'piece')} of work that most ranks lack ({duration(graph.duration[extra].sum())})")
        if lacking[i]:
            parts.append(f"lacks {count(lacking[i], 'piece')} that most have")
        if parts:
            said.append(f"rank {rank} {' and '.join(parts)}")
    out = []
    if said:
        message = "over the steps that count, " + _listed(said) + "; the ideal job leaves out what most ranks lack"
        out.append(Diagnostic("unequal-work", message))
    undecided = long & aim.undecided
    if undecided.any():
        why = "half of the ranks do it and half do not, or ranks that send to each other may be stages of a pipeline"
        number, time = count(int(undecided.sum()), "piece"), duration(graph.duration[undecided].sum())
        message = f"{number} of work ({time}) kept the time of their rank: {why}"
        out.append(Diagnostic("work-not-compared", message))
    return out


def _lacking(graph: Graph, owners: Members, compared: NDArray[np.bool_], peers: Peers) -> list[int]:
    """For each rank how many places it lacks at which most ranks work, and work long enough for the profiler to see."""
    places = len(peers.ranks)
    common = (2 * peers.ranks > peers.compared) & (peers.ranks < peers.compared)
    shortest = np.full(places, np.iinfo(np.int64).max)
    np.minimum.at(shortest, peers.place[compared], graph.duration[compared])
    common &= (shortest >= SHORTEST) & (shortest < np.iinfo(np.int64).max)
    wanted = int(common.sum())
    out = []
    for i, _ in enumerate(graph.ranks):
        own = peers.place[compared & (owners.rank == i)]
        out.append(wanted - int(common[unique(own)].sum()))
    return out


def _unequal_classes(graph: Graph, owners: Members, classes: EqualWork, counted: NDArray[np.bool_]) -> list[Diagnostic]:
    """Of an operation-level job: classes of which the ranks of a stage run unequally many operations."""
    own = counted & ~classes.delay
    shape = (len(graph.ranks), len(classes.labels))
    number: Int64 = np.bincount(owners.rank[own] * shape[1] + classes.label[own], minlength=shape[0] * shape[1]).reshape(shape)
    stage = np.zeros(len(graph.ranks), np.int64) if classes.stage is None else classes.stage
    said = []
    for one_stage in unique(stage):
        ranks = np.flatnonzero(stage == one_stage)
        for label in np.flatnonzero(np.ptp(number[ranks], axis=0)):
            counts = number[ranks, label]
            usual = int(np.sort(counts)[(len(counts) - 1) // 2])
            said += [
                f"rank {graph.ranks[rank]} runs {value} of {classes.labels[label]}, its peers {usual}"
                for rank, value in zip(ranks.tolist(), counts.tolist(), strict=True)
                if value != usual
            ]
    if not said:
        return []
    message = "over the steps that count, " + _listed(said) + "; only the time of one operation is compared, not their number"
    return [Diagnostic("unequal-work", message)]


def _listed(said: list[str]) -> str:
    return ", ".join(said[:4]) + (f" and {len(said) - 4} more" if len(said) > 4 else "")
