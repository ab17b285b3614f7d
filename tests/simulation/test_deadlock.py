"""The error for a job whose ranks wait for each other for ever says which tasks wait, where, in which collective, and for what."""

from dataclasses import replace

import pytest
from tests.drawn_graph import drawn_collectives, drawn_graph

from lumos.errors import GraphError
from lumos.graph.table import Dependency, Graph, Kind, Processor
from lumos.simulation import simulate

#: kind, kernel, bytes
KINDS = {
    "R": ("all-reduce", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(args)", 4096),
    "G": ("all-gather", "ncclDevKernel_AllGather_RING_LL(args)", 512),
}


def job(*orders: str) -> Graph:
    """Ranks that each launch the collectives of their `order` on one stream, each behind an operator of its kind."""
    processors = [p for r in range(len(orders)) for p in (Processor(r, False, "thread 1"), Processor(r, True, "stream 20", 0, 20))]
    tasks: list[tuple[int, Kind, str]] = []
    launches: dict[int, int] = {}
    where: dict[tuple[int, str], int] = {}
    for rank, order in enumerate(orders):
        for what in order:
            tasks += [(2 * rank, Kind.OPERATOR, f"c10d::{KINDS[what][0]}"), (2 * rank, Kind.LAUNCH, "cudaLaunchKernel")]
            where[rank, what] = len(tasks)
            launches[len(tasks)] = len(tasks) - 1
            tasks.append((2 * rank + 1, Kind.COLLECTIVE, KINDS[what][1]))
    labels = list(KINDS)
    rows = sorted((task, what) for (_, what), task in where.items())
    sets = [[where[r, what] for r in range(len(orders)) if (r, what) in where] for what in labels]
    calls = [(task, KINDS[what][0], KINDS[what][2], 0, 7 + labels.index(what), -1) for task, what in rows]
    edges = [(launch, task, Dependency.LAUNCH) for task, launch in launches.items()]
    return drawn_graph(processors, [(*task, 1) for task in tasks], edges, sets, collectives=drawn_collectives(calls, ["tp [0, 1, 2]"]))


def test_the_event_loop_names_everything_once():
    with pytest.raises(GraphError) as error:
        simulate(job("RG", "RG", "GR"))
    group = "group tp [0, 1, 2]"
    reduce = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL, all-reduce of 4,096 bytes, {}, sequence 7, launched behind 'c10d::all-reduce'"
    gather = "ncclDevKernel_AllGather_RING_LL, all-gather of 512 bytes, {}, sequence 8, launched behind 'c10d::all-gather'"
    reduce, gather = reduce.format(group), gather.format(group)
    assert str(error.value).splitlines() == [
        "the graph has no schedule: 4 tasks wait for each other",
        f"  rank 0 stream 20 task 2 {reduce}",
        f"  waits (rendezvous) for rank 2 stream 20 task 17 {reduce}",
        f"  waits (stream-order) for rank 2 stream 20 task 14 {gather}",
        f"  waits (rendezvous) for rank 0 stream 20 task 5 {gather}",
        "  waits (stream-order) for task 2, the first",
        "  the rendezvous of task 2 lacks rank 2",
        "  ranks 0, 2 reach the same collectives in different orders",
        "  drop a dependency kind of the cycle (--ignore) to see which rule is wrong",
    ]


def test_what_was_ignored_is_named_as_the_likely_cause():
    graph = replace(job("RG", "GR"), ignored=frozenset({Dependency.THREAD_ORDER, Dependency.HAND_OFF}))
    with pytest.raises(GraphError, match=r"--ignore left out hand-off and thread-order.*replay without --ignore") as refused:
        simulate(graph)
    assert "drop a dependency kind" not in str(refused.value)
