"""How much of a step each rank gives to each class of work, and how much it waits for others in collectives."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lumos.analyze.collectives import waiting
from lumos.analyze.equal_work import work
from lumos.analyze.steps import Members, job_steps
from lumos.graph.table import Kind
from lumos.simulate.timeline import Timeline
from lumos.trace.table import Int64, Job


class ClassTimes(NamedTuple):
    """Mean step. labels: the classes that take time. time_ns: int64[ranks, labels], own work, without waiting for peers.
    waiting_ns: int64[ranks], in collectives, for the last rank."""

    labels: tuple[str, ...]
    time_ns: Int64
    waiting_ns: Int64


def class_times(timeline: Timeline, owners: Members, job: Job | None = None) -> ClassTimes:
    """Time by rank and class over the steps of the job, the classes that take most first. `job`: as for `work`."""
    graph, of = timeline.graph, work(timeline.graph, owners, job)
    began = waiting(timeline).began
    tasks = np.flatnonzero((owners.step >= 0) & (graph.kind != Kind.RETURN))
    shape = len(graph.ranks), len(of.labels)
    time, waited = np.zeros(shape, np.int64), np.zeros(shape[0], np.int64)
    np.add.at(time, (owners.rank[tasks], of.label[tasks]), timeline.end[tasks] - began[tasks])
    np.add.at(waited, owners.rank[tasks], began[tasks] - timeline.start[tasks])
    steps = max(len(job_steps(owners)), 1)
    order = [i for i in np.argsort(-time.sum(axis=0), kind="stable").tolist() if time[:, i].any()]
    return ClassTimes(tuple(of.labels[i] for i in order), time[:, order] // steps, waited // steps)
