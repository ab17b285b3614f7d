"""A job drawn by hand, so that every expected time can be checked on paper."""

from dataclasses import replace

import numpy as np
import pytest
from tests.drawn_graph import drawn_graph

from lumos.analyze.loop.steps import assigned
from lumos.graph.table import Dependency, Kind, Occupancy, Processor, Step, Waits

US = 1000


def draw(processors, tasks, edges=(), steps=(), lag=None, release=(), kept=()):
    """A measured graph. tasks: (processor, kind, name, start µs, end µs); edges: (before, after, Dependency)."""
    ranks = tuple(dict.fromkeys(p.rank for p in processors))
    start, end = (np.array([t[at] for t in tasks], np.int64) * US for at in (3, 4))
    lags = np.zeros((len(ranks), len(Dependency)), np.int64)
    for kind, value in (lag or {}).items():
        lags[:, kind] = value * US
    return drawn_graph(
        processors,
        [(*task[:3], (task[4] - task[3]) * US) for task in tasks],
        edges,
        ranks=ranks,
        event=np.arange(len(tasks), dtype=np.int32),
        lag=lags,
        release_task=np.array([r[0] for r in release], np.int32),
        release_time=np.array([r[1] for r in release], np.int64) * US,
        measured_start=start,
        measured_end=end,
        unclaimed_wait_task=np.array([k[0] for k in kept], np.int32),
        unclaimed_wait_time=np.array([k[1] for k in kept], np.int64) * US,
        steps=tuple(steps),
    )


@pytest.fixture(scope="session")
def draw_graph():
    return draw


@pytest.fixture
def two_kernels():
    """big (stream 7) fills the device for 30 of its 40 µs; small (stream 8) shares it, and is launched at 4 µs."""
    processors = [Processor(0, False, "thread 1"), Processor(0, True, "stream 7", 0, 7), Processor(0, True, "stream 8", 0, 8)]
    tasks = [
        (0, Kind.LAUNCH, "launch", 0, 2),
        (0, Kind.LAUNCH, "launch", 2, 4),
        (1, Kind.KERNEL, "big", 4, 44),
        (2, Kind.KERNEL, "small", 34, 84),
    ]
    edges = [(0, 2, Dependency.LAUNCH), (1, 3, Dependency.LAUNCH)]
    graph = draw(processors, tasks, edges, (Step(0, "s", 0, 100 * US),), {Dependency.LAUNCH: 2}, release=[(0, 0)])
    shares = Occupancy(np.array([2, 3], np.int32), np.array([1, 0.25], np.float32), np.array([30, 10], np.int64) * US)
    return replace(graph, occupancy=shares)


@pytest.fixture
def cpu_ahead():
    """A job whose CPU runs ahead, drawn by its kernels' µs, by rank and step.

    The thread of every rank only launches: step i is marked, and launches its one kernel, from 10 i to 10 i + 10 µs. The kernels of a rank
    follow one another on its stream from 10 µs on, so that the step of kernel i is complete when that ends.
    """

    def job(*ranks, first=0):
        processors, tasks, edges, steps = [], [], [], []
        for rank, kernels in enumerate(ranks):
            thread = len(processors)
            processors += [Processor(rank, False, "thread 1", lane=1), Processor(rank, True, "stream 7", rank, 7)]
            ends = np.cumsum((10, *kernels)).tolist()
            for i, _ in enumerate(kernels):
                edges.append((len(tasks), len(tasks) + 1, Dependency.LAUNCH))
                tasks += [(thread, Kind.LAUNCH, "launch", 10 * i, 10 * i + 10), (thread + 1, Kind.KERNEL, "k", ends[i], ends[i + 1])]
                steps.append(Step(rank, f"ProfilerStep#{first + i}", 10 * i * US, (10 * i + 10) * US, lane=1))
        return draw(processors, tasks, edges, steps)

    return job


@pytest.fixture(scope="session")
def draw_loop():
    """The members of a job that does the same in every step.

    tasks: those of a step, (processor, kind, name, duration µs). edges: within a step, (before, after, Dependency), by position in `tasks`.
    across: (before, after, Dependency, how many steps earlier `before` is). meets: sets of positions that meet, waits: (task, processor
    that it waits for), shared: (kernel, share of the SMs), all in every step. depth: of the queue of launches.
    """

    def loop(processors, tasks, edges=(), *, across=(), meets=(), waits=(), shared=(), depth=0, steps=3, lag=None):
        m, each = len(tasks), range(steps)
        drawn = [(p, kind, name, 1000 * s + i, 1000 * s + i + time) for s in each for i, (p, kind, name, time) in enumerate(tasks)]
        links = [(m * s + before, m * s + after, kind) for s in each for before, after, kind in edges]
        links += [(m * (s - back) + before, m * s + after, kind) for s in each for before, after, kind, back in across if s >= back]
        ranks = tuple(dict.fromkeys(p.rank for p in processors))
        marks = tuple(Step(r, f"ProfilerStep#{s}", 1000 * s * US, 1000 * (s + 1) * US) for r in ranks for s in each)
        sets = [[m * s + task for task in one] for s in each for one in meets]
        graph = replace(
            draw(processors, drawn, links, marks, lag),
            rendezvous_offset=np.cumsum([0, *map(len, sets)]).astype(np.int64),
            rendezvous_task=np.array([task for one in sets for task in one], np.int32),
            queue_depth=np.full(len(ranks), depth, np.int32) if depth else None,
            waits=Waits(
                np.array([m * s + task for s in each for task, _ in waits], np.int32),
                np.array([target for _ in each for _, target in waits], np.int32),
            ),
            occupancy=Occupancy(
                np.array([m * s + task for s in each for task, _ in shared], np.int32),
                np.array([share for _ in each for _, share in shared], np.float32),
                np.array([tasks[task][3] * US for _ in each for task, _ in shared], np.int64),
            ),
        )
        of = [ranks.index(processors[p].rank) * steps + s for s in each for p, *_ in tasks]
        return assigned(graph, marks, np.array(of, np.int32))

    return loop


@pytest.fixture
def two_steps():
    """One rank, a thread and two streams, two steps (µs):

    thread   A 0–10, launch 10–12 and 12–14, host 14–70, B 70–80 | host 80–105, C 105–115, launch 115–117
    stream 7 k1 14–40                                            | k2 119–150
    stream 8             nccl 30–60 (waits for nothing but its launch, 16 µs late)

    Step 0 is complete at 80, with B; step 1 at 150, with k2. Step 0 is known by its latency, 80 µs; the period of step 1 is 70 µs and its
    latency 45, as its first work is C.
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
def two_ranks():
    """Two ranks, each A, a launch (2 µs), an all-reduce of 20 µs on its stream, then a launch and a kernel after it (µs):

    rank 0: A 0–10, launch 10–12, all-reduce from 14 | launch 12–14, kernel 5 µs
    rank 1: A 0–40, launch 40–42, all-reduce from 44 | launch 42–44, kernel 8 µs
    The launch latency is 2. So both transfer 44–64; the kernels run 64–69 and 64–72.
    """
    processors = [p for r in (0, 1) for p in (Processor(r, False, "thread 1"), Processor(r, True, "stream 7", 0, 7))]
    tasks = [
        (0, Kind.OPERATOR, "A", 0, 10),
        (0, Kind.LAUNCH, "launch", 10, 12),
        (0, Kind.LAUNCH, "launch", 12, 14),
        (1, Kind.COLLECTIVE, "nccl", 14, 64),
        (1, Kind.KERNEL, "gemm", 64, 69),
        (2, Kind.OPERATOR, "A", 0, 40),
        (2, Kind.LAUNCH, "launch", 40, 42),
        (2, Kind.LAUNCH, "launch", 42, 44),
        (3, Kind.COLLECTIVE, "nccl", 44, 64),
        (3, Kind.KERNEL, "gemm", 64, 72),
    ]
    launched = [(1, 3), (2, 4), (6, 8), (7, 9)]
    steps = (Step(0, "s", 0, 100 * US), Step(1, "s", 0, 100 * US))
    graph = draw(
        processors, tasks, [(a, b, Dependency.LAUNCH) for a, b in launched], steps, {Dependency.LAUNCH: 2}, release=[(0, 0), (5, 0)]
    )
    duration = graph.duration.copy()
    duration[[3, 8]] = 20 * US
    return replace(graph, duration=duration, rendezvous_offset=np.array([0, 2]), rendezvous_task=np.array([3, 8], np.int32))


@pytest.fixture
def shifted():
    """A graph's measured timeline with some tasks moved by µs: {task: (start, end)} shifts."""
    from lumos.simulation.timeline import measured

    def shift(graph, moves):
        truth = measured(graph)
        start, end = truth.start.copy(), truth.end.copy()
        for task, (first, last) in moves.items():
            start[task] += first * US
            end[task] += last * US
        return replace(truth, start=start, end=end, source="replayed")

    return shift


@pytest.fixture(scope="session")
def record():
    """A Trace of rows (category, name, lane, start, duration, {argument: value}); times in ns."""
    from lumos.trace.table import ABSENT, Column, Lane, Trace

    def trace(*rows, rank=0, metadata=None):
        strings: dict[str, int] = {}

        def intern(text):
            return strings.setdefault(text, len(strings))

        found: dict[str, tuple[list, list, str]] = {}
        for i, row in enumerate(rows):
            for key, value in (row[5] if len(row) > 5 else {}).items():
                if key in ("correlation", "external_id"):
                    continue
                at, values, _ = found.setdefault(key, ([], [], "string" if isinstance(value, str) else "int"))
                at.append(i)
                values.append(intern(value) if isinstance(value, str) else value)
        args = {key: Column(np.array(at, np.int32), np.array(values, np.int64), kind) for key, (at, values, kind) in found.items()}

        def ids(key):
            return np.array([row[5].get(key, ABSENT) if len(row) > 5 else ABSENT for row in rows], np.int64)

        name = np.array([intern(row[1]) for row in rows], np.int32)
        return Trace(
            path="hand.json",
            rank=rank,
            rank_source="assumed",
            world_size=None,
            strings=list(strings),
            start=np.array([row[3] for row in rows], np.int64),
            duration=np.array([row[4] for row in rows], np.int64),
            name=name,
            category=np.array([row[0] for row in rows], np.uint8),
            lane=np.array([row[2] for row in rows], np.int32),
            correlation=ids("correlation"),
            external_id=ids("external_id"),
            args=args,
            lanes=[Lane("1", str(i)) for i in range(1 + max((row[2] for row in rows), default=0))],
            metadata=metadata or {},
        )

    return trace


@pytest.fixture
def launched(record):
    """A job of one rank whose two kernels are launched from an operator inside an operator, and from its backward:

    linear 0–100 (sequence 7) inside module Linear_0, in it mm 10–60, in it the launch 20–30 → kernel 30–90
    MmBackward 200–300 (sequence 7) on another thread, in it mm 210–260, in it the launch 220–230 → kernel 230–330
    """
    from lumos.trace.table import Category, Job

    shapes = {"Input Dims": "[[8,4],[4,2]]"}
    trace = record(
        (Category.PYTHON, "nn.Module: Linear_0", 0, 0, 110),
        (Category.OPERATOR, "aten::linear", 0, 0, 100, {"Sequence number": 7}),
        (Category.OPERATOR, "aten::mm", 0, 10, 50, shapes),
        (Category.RUNTIME, "cudaLaunchKernel", 0, 20, 10, {"correlation": 1}),
        (Category.KERNEL, "gemm", 2, 30, 60, {"correlation": 1}),
        (Category.OPERATOR, "MmBackward0", 1, 200, 100, {"Sequence number": 7}),
        (Category.OPERATOR, "aten::mm", 1, 210, 50, shapes),
        (Category.RUNTIME, "cudaLaunchKernel", 1, 220, 10, {"correlation": 2}),
        (Category.KERNEL, "gemm", 2, 230, 100, {"correlation": 2}),
    )
    processors = [Processor(0, False, "thread 1"), Processor(0, False, "thread 2"), Processor(0, True, "stream 7", 0, 7)]
    tasks = [
        (0, Kind.OPERATOR, "aten::mm", 10, 20),
        (0, Kind.LAUNCH, "cudaLaunchKernel", 20, 30),
        (1, Kind.LAUNCH, "cudaLaunchKernel", 220, 230),
        (2, Kind.KERNEL, "gemm", 30, 90),
        (2, Kind.KERNEL, "gemm", 230, 330),
    ]
    graph = draw(processors, tasks, [(1, 3, Dependency.LAUNCH), (2, 4, Dependency.LAUNCH)], (Step(0, "s", 0, 400 * US),))
    return Job((trace,)), replace(graph, event=np.array([2, 3, 7, 4, 8], np.int32))
