"""Which tasks of a job do equal work, and the durations of a job in which equal work takes equal time.

There are two rules. "peer-median": peers do equal work, and it takes the median of their times. In an operation-level job the
peers are the ranks of one pipeline stage, over all microbatches and steps, because a stage's share of the model is part
of the plan. In any other job all ranks are peers, and the work of a step is matched by kind, name and order. "pooled-mean" is
the rule of ByteDance-Seed/StragglerAnalysis ("Understanding Stragglers in Large Model Training Using What-if Analysis", 2025):
all workers and stages are pooled, compute takes the mean and communication the median, and launches have no delay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.steps import Members, is_operation_level
from lumos.analyze.task_class import kernel_classes
from lumos.graph.table import Graph, Kind
from lumos.trace.table import ABSENT, Int64, Job

if TYPE_CHECKING:
    from numpy.typing import NDArray


IDEAL_RULES = ("peer-median", "pooled-mean")

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


def ideal_durations(graph: Graph, owners: Members, classes: EqualWork, counted: NDArray[np.bool_], rule: str) -> Int64:
    """The durations, int64[n] ns, of the job in which equal work takes equal time.

    counted: bool[n], tasks of the steps that count. All other tasks keep their durations; so do collectives whose peers are
    unknown, because their durations include waiting. rule: one of RULES.
    """
    communicates = graph.kind == Kind.COLLECTIVE
    pooled = rule == "pooled-mean"
    if is_operation_level(graph):
        stage = np.zeros(len(graph), np.int64) if pooled or classes.stage is None else classes.stage[owners.rank]
        key = _number(stage, classes.label)
    else:
        key = _number(*_matched(graph, owners))
        joined = np.zeros(len(graph), bool)
        joined[graph.rendezvous_task] = True
        counted = counted & (joined | ~communicates)
    out = graph.duration.copy()
    tasks = np.flatnonzero(counted & ~classes.delay)
    order = tasks[np.lexsort((graph.duration[tasks], key[tasks]))]
    bounds = np.concatenate(([0], np.flatnonzero(np.diff(key[order])) + 1, [len(order)])) if len(order) else np.zeros(1, np.int64)
    low, size = bounds[:-1], np.diff(bounds)
    sorted_duration = graph.duration[order]
    median = (sorted_duration[low + (size - 1) // 2] + sorted_duration[low + size // 2]) // 2
    mean = np.add.reduceat(sorted_duration, low) // size if len(low) else median
    value = np.where(communicates[order[low]] | (not pooled), median, mean)
    out[order] = np.repeat(value, size)
    if pooled:
        out[classes.delay] = 0
    return out


def _matched(graph: Graph, owners: Members) -> tuple[Int64, ...]:
    """Columns that are equal for tasks that do equal work on different ranks: step, kind, name, and the number of the task among
    those of its rank with the same three."""
    names = {name: i for i, name in enumerate(dict.fromkeys(s.name for s in owners.steps))}
    step = np.array([*(names[s.name] for s in owners.steps), ABSENT], np.int64)[owners.step]
    kind, name = graph.kind.astype(np.int64), graph.name.astype(np.int64)
    order = np.lexsort((np.arange(len(graph)), name, kind, step, owners.rank))
    rows = np.stack([owners.rank[order], step[order], kind[order], name[order]])
    new = np.ones(len(order), bool)
    new[1:] = (np.diff(rows) != 0).any(axis=0)
    place = np.arange(len(order))
    ordinal = np.empty(len(order), np.int64)
    ordinal[order] = place - np.maximum.accumulate(np.where(new, place, 0))
    return step, kind, name, ordinal


def _number(*columns: Int64) -> Int64:
    """For each row of the columns, a number that equal rows share and distinct rows do not."""
    order = np.lexsort(columns)
    rows = np.stack([c[order] for c in columns])
    new = np.zeros(len(order), np.int64)
    new[1:] = (np.diff(rows) != 0).any(axis=0)
    out = np.empty(len(order), np.int64)
    out[order] = np.cumsum(new)
    return out
