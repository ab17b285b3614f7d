"""A job drawn by hand, so that every expected time can be checked on paper."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lumos.graph.table import Dependency, Graph, Kind, Processor, Step

US = 1000


def draw(processors, tasks, edges=(), steps=(), lag=None, release=(), kept=()):
    """A measured graph. tasks: (processor, kind, name, start µs, end µs); edges: (before, after, Dependency)."""
    ranks = tuple(dict.fromkeys(p.rank for p in processors))
    names = list(dict.fromkeys(name for _, _, name, _, _ in tasks))
    edges = sorted(edges, key=lambda e: e[1])
    start = np.array([t[3] for t in tasks], np.int64) * US
    end = np.array([t[4] for t in tasks], np.int64) * US
    lags = np.zeros((len(ranks), len(Dependency)), np.int64)
    for kind, value in (lag or {}).items():
        lags[:, kind] = value * US
    return Graph(
        ranks=ranks,
        processors=tuple(processors),
        names=names,
        duration=end - start,
        processor=np.array([t[0] for t in tasks], np.int32),
        kind=np.array([t[1] for t in tasks], np.uint8),
        name=np.array([names.index(t[2]) for t in tasks], np.int32),
        event=np.arange(len(tasks), dtype=np.int32),
        pred_offset=np.searchsorted([e[1] for e in edges], np.arange(len(tasks) + 1)).astype(np.int64),
        pred=np.array([e[0] for e in edges], np.int32),
        pred_kind=np.array([e[2] for e in edges], np.uint8),
        lag=lags,
        release_task=np.array([r[0] for r in release], np.int32),
        release_time=np.array([r[1] for r in release], np.int64) * US,
        measured_start=start,
        measured_end=end,
        kept_task=np.array([k[0] for k in kept], np.int32),
        kept_time=np.array([k[1] for k in kept], np.int64) * US,
        steps=tuple(steps),
    )


@pytest.fixture(scope="session")
def draw_graph():
    return draw


@pytest.fixture
def two_steps():
    """One rank, a thread and two streams, two steps (µs):

    thread   A 0–10, launch 10–12 and 12–14, host 14–70, B 70–80, host 80–105 | C 105–115, launch 115–117
    stream 7 k1 14–40                                                          | k2 119–150
    stream 8             nccl 30–60 (waits for nothing but its launch, 16 µs late)
    """
    thread, seven, eight = Processor(0, False, "thread 1"), Processor(0, True, "stream 7", 0, 7), Processor(0, True, "stream 8", 0, 8)
    tasks = [
        (0, Kind.OPERATOR, "A", 0, 10),
        (0, Kind.LAUNCH, "launch", 10, 12),
        (0, Kind.LAUNCH, "launch", 12, 14),
        (0, Kind.HOST, "between", 14, 70),
        (0, Kind.OPERATOR, "B", 70, 80),
        (0, Kind.HOST, "between", 80, 105),
        (0, Kind.OPERATOR, "C", 105, 115),
        (0, Kind.LAUNCH, "launch", 115, 117),
        (1, Kind.KERNEL, "k1", 14, 40),
        (1, Kind.KERNEL, "k2", 119, 150),
        (2, Kind.COLLECTIVE, "nccl", 30, 60),
    ]
    edges = [(1, 8, Dependency.LAUNCH), (7, 9, Dependency.LAUNCH), (2, 10, Dependency.LAUNCH)]
    steps = (Step(0, "ProfilerStep#0", 0, 100 * US), Step(0, "ProfilerStep#1", 100 * US, 200 * US))
    return draw([thread, seven, eight], tasks, edges, steps, lag={Dependency.LAUNCH: 2}, release=[(0, 0)])


@pytest.fixture
def shifted():
    """A graph's measured timeline with some tasks moved by µs: {task: (start, end)} shifts."""
    from lumos.simulate.timeline import measured

    def shift(graph, moves):
        truth = measured(graph)
        start, end = truth.start.copy(), truth.end.copy()
        for task, (first, last) in moves.items():
            start[task] += first * US
            end[task] += last * US
        return replace(truth, start=start, end=end, source="replayed")

    return shift
