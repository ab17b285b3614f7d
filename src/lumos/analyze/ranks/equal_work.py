"""Which tasks of a job do equal work, and the durations of a job in which equal work takes equal time.

There are two rules. "peer-median": peers do equal work, and it takes the median of their times. In an operation-level job the
peers are the ranks of one pipeline stage, over all microbatches and steps, because a stage's share of the model is part
of the plan. In any other job all ranks are peers, and the work of a step is the same where their sequences of operators agree
(`analyze.ranks.peers`); work that most ranks lack takes no time. "pooled-mean" is the rule of ByteDance-Seed/StragglerAnalysis
("Understanding Stragglers in Large Model Training Using What-if Analysis", 2025): all workers and stages are pooled, compute takes
the mean and communication the median, and launches have no delay.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.loop.steps import Members, is_operation_level, members, step_times
from lumos.analyze.ranks.peers import Peers, peers
from lumos.analyze.task_class import kernel_classes
from lumos.errors import LumosError
from lumos.graph.lists import numbered, ordinals
from lumos.graph.table import Graph, Kind
from lumos.simulation import measured

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.trace.table import Int64, Job


IDEAL_RULES = ("peer-median", "pooled-mean")


class Like(StrEnum):
    """Whose time work takes that is to take the time of equal work: that of the other ranks, that of the same rank's other steps, or what
    the same operator usually takes anywhere, where it takes many times as long."""

    PEERS = "peers"
    STEPS = "steps"
    USUAL = "usual"

    @property
    def words(self) -> str:
        """The same in a sentence."""
        return {"peers": "equal work on other ranks", "steps": "equal work in other steps"}.get(self, "the same operator usually takes")


@lru_cache(maxsize=6)
def durations_like(graph: Graph, job: Job, like: Like) -> Int64:
    """What each task takes where equal work takes equal time, int64[n] ns: the median over the ranks of a step, or over a rank's steps.
    Work that most ranks, or most steps, lack takes no time. LumosError where there is nothing to compare with, or no measured time."""
    owners = members(graph)
    if like is Like.USUAL:
        return _usual(graph, job, owners.on_device)
    if graph.measured_start is None or (len(graph.ranks) < 2 if like is Like.PEERS else len(owners.counted) < 3):
        needed = "the measured times of two ranks" if like is Like.PEERS else "three measured steps"
        raise LumosError(f"--scale GLOB={like} compares equal work: this needs {needed}")
    counted = step_times(measured(graph), owners).tasks_counted()
    if like is Like.PEERS:
        return ideal_job(graph, owners, equal_work(graph, owners, job), counted, IDEAL_RULES[0]).duration
    alike = peers(owners, over_steps=True)
    return _by_place(graph, alike, counted & (alike.place >= 0), np.ones(len(graph), bool), leave_out=True).duration


#: An operator stalls where its own time is so many times what it usually is; its usual time is known from so many runs.
STALLED, FEWEST_RUNS = 10, 5


def _usual(graph: Graph, job: Job, on_device: NDArray[np.bool_]) -> Int64:
    """The durations without stalls: a piece of an operator's own time on the CPU takes the median over the job where it is STALLED times
    that. Compared are the first, second, … of as many pieces of runs with the same shapes; without any shapes of a rank none are."""
    own = (graph.kind == Kind.OPERATOR) & (graph.event >= 0) & ~on_device
    own[graph.unclaimed_wait_task] = False  # what looks like a wait for the device is no stall
    shape, texts = np.zeros(len(graph), np.int64), {"": 0}
    for position, trace in enumerate(job.traces):
        tasks = np.flatnonzero(own & (graph.position_of_task == position))
        used, of = np.unique(trace.dense("Input Dims")[graph.event[tasks]], return_inverse=True)
        shape[tasks] = np.array([texts.setdefault(trace.strings[i] if i >= 0 else "", len(texts)) for i in used.tolist()], np.int64)[of]
        own[tasks] &= bool(shape[tasks].any())
    run = numbered(graph.position_of_task, graph.event)
    key = numbered(graph.name, shape, ordinals(run), np.bincount(run)[run])
    own &= np.bincount(key[own], minlength=int(key.max(initial=0)) + 1)[key] >= FEWEST_RUNS
    usual = _equalised(graph, key, own, np.ones(len(graph), bool))
    return np.where(graph.duration > STALLED * usual, usual, graph.duration)


#: The class of launch delays in an operation-level job.
DELAY_CLASS = "launch delay"

#: Classes of CPU tasks.
_CPU_CLASSES = {
    Kind.OPERATOR: "cpu operators",
    Kind.HOST: "cpu between operators",
    Kind.LAUNCH: "cpu launches",
    Kind.RUNTIME: "cpu runtime calls",
    Kind.SYNC: "cpu synchronisation",
    Kind.RETURN: "cpu synchronisation",
    Kind.COLLECTIVE: "collective",
}


@dataclass(frozen=True, slots=True, eq=False)
class EqualWork:
    """The class of each of a graph's n tasks, and the pipeline stage of each rank.

    label: int64[n], index into `labels`, the classes. stage: int64[ranks], None where the job does not say.
    delay: bool[n], whether a task is a launch delay of an operation-level job.
    """

    labels: tuple[str, ...]
    label: Int64
    stage: Int64 | None
    delay: NDArray[np.bool_]


def equal_work(graph: Graph, owners: Members, job: Job | None) -> EqualWork:
    """The classes of a graph's tasks and the stages of its ranks. job: what the graph was built from, which gives the stages."""
    if is_operation_level(graph):
        delay = graph.kind == Kind.HOST
        used, label = np.unique(np.where(delay, len(graph.names), graph.name), return_inverse=True)
        labels = tuple(DELAY_CLASS if i == len(graph.names) else graph.names[i] for i in used.tolist())
        stage = None if job is None else np.array([int(t.dense("stage").max()) for t in job.traces], np.int64)
        return EqualWork(labels, label.astype(np.int64), stage, delay)
    kernel_labels, of_kernel = kernel_classes(graph)
    cpu_labels = list(dict.fromkeys(_CPU_CLASSES.values()))
    of_kind = np.zeros(len(Kind), np.int64)
    for kind, name in _CPU_CLASSES.items():
        of_kind[kind] = len(kernel_labels) + cpu_labels.index(name)
    label = np.where(owners.on_device, of_kernel, of_kind[graph.kind]).astype(np.int64)
    return EqualWork((*kernel_labels, *cpu_labels), label, None, np.zeros(len(graph), bool))


@dataclass(frozen=True, slots=True, eq=False)
class Ideal:
    """The job in which equal work takes equal time, and each of its n tasks that most ranks do not have.

    duration: int64[n] ns. extra: bool[n], work that most ranks lack: it takes no time. undecided: bool[n], work that half of the ranks
    lack, or that most lack in a job whose ranks may be stages of a pipeline: it keeps its time. peers: which tasks were compared; None
    for an operation-level job, where operations of one kind are compared with each other.
    """

    duration: Int64
    extra: NDArray[np.bool_]
    undecided: NDArray[np.bool_]
    peers: Peers | None


def ideal_job(graph: Graph, owners: Members, classes: EqualWork, counted: NDArray[np.bool_], rule: str) -> Ideal:
    """The ideal job.

    counted: bool[n], tasks of the steps that count. All other tasks keep their durations; so do collectives whose peers are
    unknown, because their durations include waiting. rule: one of IDEAL_RULES.
    """
    communicates = graph.kind == Kind.COLLECTIVE
    pooled = rule == "pooled-mean"
    alike = None if is_operation_level(graph) else peers(owners)
    if alike is None:
        stage = np.zeros(len(graph), np.int64) if pooled or classes.stage is None else classes.stage[owners.rank]
        key = numbered(classes.label, stage)
    else:
        joined = np.zeros(len(graph), bool)
        joined[graph.rendezvous_task] = True
        counted = counted & (joined | ~communicates) & (alike.place >= 0)
        return _by_place(graph, alike, counted, communicates | (not pooled), leave_out=not has_transfers(graph))
    out = _equalised(graph, key, counted & ~classes.delay, communicates | (not pooled))
    if pooled:
        out[classes.delay] = 0
    none = np.zeros(len(graph), bool)
    return Ideal(out, none, none, None)


def _by_place(graph: Graph, alike: Peers, counted: NDArray[np.bool_], by_median: NDArray[np.bool_], *, leave_out: bool) -> Ideal:
    """The ideal job by places. counted, by_median: bool[n], what is compared, and whether the median is taken, not the mean. leave_out:
    whether work that most lack takes no time."""
    key = alike.place
    rare = 2 * alike.ranks - alike.compared  # below zero: most lack it
    uneven = counted & (graph.kind != Kind.COLLECTIVE) & (rare[key] <= 0)
    extra = uneven & (rare[key] < 0) & leave_out
    out = _equalised(graph, key, counted & (extra | ~uneven), by_median)
    return Ideal(np.where(extra, 0, out), extra, uneven & ~extra, alike)


def has_transfers(graph: Graph) -> bool:
    """Whether ranks send to each other directly, as stages of a pipeline do."""
    facts = graph.collectives
    return facts is not None and any(kind.is_transfer for kind in facts.kinds)


def _equalised(graph: Graph, key: Int64, counted: NDArray[np.bool_], by_median: NDArray[np.bool_]) -> Int64:
    """The durations, where counted tasks of one key take the median of their times, or the mean."""
    out = graph.duration.copy()
    tasks = np.flatnonzero(counted)
    if not len(tasks):
        return out
    order = tasks[np.lexsort((graph.duration[tasks], key[tasks]))]
    bounds = np.concatenate(([0], np.flatnonzero(np.diff(key[order])) + 1, [len(order)]))
    low, size = bounds[:-1], np.diff(bounds)
    sorted_duration = graph.duration[order]
    median = (sorted_duration[low + (size - 1) // 2] + sorted_duration[low + size // 2]) // 2
    mean = np.add.reduceat(sorted_duration, low) // size
    out[order] = np.repeat(np.where(by_median[order[low]], median, mean), size)
    return out
