"""Slack and the critical path of random jobs of several ranks, compared with the simulation of each change."""

from random import Random

import numpy as np
from hypothesis import given
from tests.drawn_graph import drawn_graph
from tests.property.randomness import randoms

from lumos.analyze.critical_path import critical_paths
from lumos.analyze.waiting.slack import UNBOUNDED, slack
from lumos.graph.table import Dependency, Graph, Kind, Processor
from lumos.simulation import simulate


def job(random: Random) -> Graph:
    """1 to 3 ranks, each with a thread and two streams, with launches, synchronisations, and collectives of all ranks in one order."""
    ranks = random.randint(1, 3)
    processors = [p for r in range(ranks) for p in (Processor(r, False, "t"), Processor(r, True, "a", 0, 7), Processor(r, True, "b", 0, 8))]
    tasks: list[tuple[int, Kind, int]] = []
    edges: list[tuple[int, int, Dependency]] = []
    waits: list[tuple[int, int]] = []
    sets: list[list[int]] = []

    def add(processor: int, kind: Kind, longest: int = 20) -> int:
        tasks.append((processor, kind, random.randint(0, longest)))
        return len(tasks) - 1

    def launched(r: int, stream: int, kind: Kind) -> int:
        call = add(3 * r, Kind.LAUNCH, 3)
        task = add(3 * r + stream, kind)
        edges.append((call, task, Dependency.LAUNCH))
        return task

    for _ in range(random.randint(1, 16)):
        r, stream = random.randint(0, ranks - 1), random.randint(1, 2)
        what = random.choice(["host", "kernel", "kernel", "stream wait", "return", "collective"])
        if what == "host":
            add(3 * r, Kind.OPERATOR)
        elif what in ("kernel", "stream wait"):
            others = [t for t, task in enumerate(tasks) if task[0] == 3 * r + 3 - stream]
            task = launched(r, stream, Kind.KERNEL)
            if what == "stream wait" and others:
                edges.append((random.choice(others), task, Dependency.STREAM_WAIT))
        elif what == "return":
            add(3 * r, Kind.SYNC, 2)
            tasks.append((3 * r, Kind.RETURN, 0))
            waits.append((len(tasks) - 1, random.choice([3 * r + 1, 3 * r + 2, -1])))
        else:
            sets.append([launched(each, stream, Kind.COLLECTIVE) for each in range(ranks)])
    lag = np.array([[random.randint(0, 3) for _ in Dependency] for _ in range(ranks)], np.int64)
    return drawn_graph(processors, [(p, kind, "task", ns) for p, kind, ns in tasks], edges, sets, waits, lag=lag)


@given(randoms().map(job))
def test_a_task_may_take_its_slack_more_and_not_one_ns_beyond(graph):
    timeline = simulate(graph)
    found, last = slack(timeline).slack, timeline.end.max()
    assert found.min() == 0
    for task, spare in enumerate(found.tolist()):
        assert spare < UNBOUNDED  # one step: every task ends by its end
        for more in (spare, spare + 1):
            duration = graph.duration.copy()
            duration[task] += more
            assert (simulate(graph, duration).end.max() > last) == (more > spare)


@given(randoms().map(job))
def test_the_path_covers_the_step_and_has_no_slack(graph):
    timeline = simulate(graph)
    (path,) = critical_paths(timeline)
    assert path.duration_ns == timeline.end.max() - timeline.start.min()
    assert sum(path.by_class.values()) == sum(path.by_group.values()) == sum(share.path_ns for share in path.by_rank) == path.duration_ns
    assert path.by_class.get("idle", 0) == 0  # a simulated task without shared SMs starts as soon as its causes let it
    assert (slack(timeline).slack[[link.task for link in path.links]] == 0).all()
    if path.links:
        assert path.links[0].start_ns - path.links[0].idle_ns - path.links[0].delay_ns == path.start_ns
        for before, after in zip(path.links[:-1], path.links[1:], strict=True):
            assert after.start_ns - after.delay_ns - after.idle_ns == before.end_ns


@given(randoms().map(job), randoms())
def test_shortening_what_is_not_on_the_path_does_not_shorten_the_step(graph, random):
    timeline = simulate(graph)
    (path,) = critical_paths(timeline)
    on_path = {task for link in path.links for task in (link.task, link.arrival)}
    duration = graph.duration.copy()
    for task in range(len(graph)):
        if task not in on_path:
            duration[task] = random.randint(0, int(duration[task]))
    assert simulate(graph, duration).end.max() == timeline.end.max()
