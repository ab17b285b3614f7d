"""Does a step's graph predict another step's period, given that step's durations?

A replay of a step with its own durations could be right because the graph fits that step alone. So the durations of step B are put into the
graph of step A, whose period must then become that of B. The figure is held against what needs no graph at all, which is to take the period
of A again. Only steps that differ by LEAST can tell the two apart.

A period is the difference of two completions, so it also depends on the step before: how far the CPU is ahead of the devices when the step
begins. Exchanging the durations of the steps before as well shows how much of the error is due to that.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from lumos.analyze.loop.steps import Members, StepTimes, members, step_times
from lumos.graph.table import DEVICE_KINDS, Graph, Kind
from lumos.simulation import simulate
from lumos.simulation.timeline import measured
from lumos.trace.table import Int64

#: Steps are compared whose periods differ by this share of the shorter one or more.
LEAST = 0.02
#: Kinds that two steps must share one by one before their durations can be exchanged.
ANCHORS = (Kind.LAUNCH, Kind.SYNC, *DEVICE_KINDS)


@dataclass(frozen=True)
class Exchange:
    """Mean |error| of the predicted periods over pairs of steps of a job, as fractions of the measured ones.

    again: taking the other step's period. alone: exchanging the durations of the two steps. before: with those of the steps before; None
    where these do not do the same things.
    """

    pairs: int
    again: float
    alone: float
    before: float | None


def exchange(graph: Graph) -> Exchange | None:
    """The errors over all pairs of steps that count, differ by LEAST and do the same things; None where there is no such pair."""
    times = step_times(measured(graph), members(graph))
    again, alone, before = [], [], []
    for a, b in permutations(times.counted, 2):
        given = _given(graph, times.owners, a.name, b.name)
        if given is None or min(a.length_ns, b.length_ns) * (1 + LEAST) > max(a.length_ns, b.length_ns):
            continue
        again.append(abs(a.length_ns / b.length_ns - 1))
        alone.append(abs(_period(graph, times.owners, given, a.name) / b.length_ns - 1))
        given = _given(graph, times.owners, _before(times, a.name), _before(times, b.name), a.name, b.name)
        if given is not None:
            before.append(abs(_period(graph, times.owners, given, a.name) / b.length_ns - 1))
    if not again:
        return None
    mean = statistics.fmean
    return Exchange(len(again), mean(again), mean(alone), mean(before) if len(before) == len(again) else None)


def _before(times: StepTimes, name: str) -> str:
    """The name of the step before; that of the step itself where the recording lacks it."""
    position = next(i for i, step in enumerate(times.owners.job) if step.name == name)
    previous = times.owners.job[position].previous
    return times.owners.job[previous if previous >= 0 else position].name


def _period(graph: Graph, owners: Members, durations: Int64, name: str) -> int:
    return step_times(simulate(graph, durations), owners).named(name).length_ns


def _given(graph: Graph, owners: Members, *names: str) -> Int64 | None:
    """All durations, with those of the first of each two steps replaced by those of the second; None where they do other things."""
    durations = graph.duration.copy()
    for target, source in zip(names[::2], names[1::2], strict=True):
        if not _transplant(graph, _tasks(owners, source), _tasks(owners, target), durations):
            return None
    return durations


def _tasks(owners: Members, name: str) -> Int64:
    """The tasks of a step of the job, on all ranks."""
    parts = next(step.parts for step in owners.job if step.name == name)
    return np.concatenate([owners.tasks(part) for part in parts])


def _transplant(graph: Graph, source: Int64, target: Int64, durations: Int64) -> bool:
    """Give the tasks of one step the durations of another's, in place; False where the steps do other things.

    Anchors (launches, synchronisations, returns, device work) must agree one by one, by thread or stream and order; CPU time between two
    anchors is given to the other step's slices in proportion, since whole-microsecond clocks drop a slice here and there.
    """
    for processor in np.union1d(graph.processor[source], graph.processor[target]):
        ours, theirs = source[graph.processor[source] == processor], target[graph.processor[target] == processor]
        anchored = [np.flatnonzero(np.isin(graph.kind[t], ANCHORS)) for t in (ours, theirs)]
        names = [graph.name[t[a]] for t, a in zip((ours, theirs), anchored, strict=True)]
        if len(names[0]) != len(names[1]) or (names[0] != names[1]).any():
            return False
        durations[theirs[anchored[1]]] = graph.duration[ours[anchored[0]]]
        edges = [np.concatenate(([-1], a, [len(t)])) for t, a in zip((ours, theirs), anchored, strict=True)]
        for k in range(len(edges[0]) - 1):
            mine = ours[edges[0][k] + 1 : edges[0][k + 1]]
            yours = theirs[edges[1][k] + 1 : edges[1][k + 1]]
            total, before = int(graph.duration[mine].sum()), int(graph.duration[yours].sum())
            if len(yours) and before:
                durations[yours] = np.rint(graph.duration[yours] * (total / before)).astype(np.int64)
            elif len(yours):
                durations[yours[0]] = total
    return True
