"""Lowering a graph keeps its times, writes kinds of collectives that simulators know, and leaves nothing that waits for ever."""

from dataclasses import replace

import numpy as np
import pytest
from tests.drawn_graph import drawn_collectives, drawn_graph

from lumos.chakra.lower import lower
from lumos.errors import GraphError
from lumos.graph.table import Dependency, Graph, Kind, Processor
from lumos.trace.chakra.schema import CollectiveType, NodeType


def one_collective(kind: str = "all-reduce", nbytes: int = 1000, ranks: int = 2, *, joined: bool = True) -> Graph:
    """Every rank r computes for 10 (r + 1) us on stream 7, then takes part in a collective of 5 us on stream 9, after a lag of
    2 us."""
    lag = np.zeros((ranks, len(Dependency)), np.int64)
    lag[:, Dependency.STREAM_WAIT] = 2000
    tasks = range(1, 2 * ranks, 2)
    work = [((2 * r, Kind.KERNEL, "gemm", 10_000 * (r + 1)), (2 * r + 1, Kind.COLLECTIVE, "nccl", 5_000)) for r in range(ranks)]
    return drawn_graph(
        [Processor(r, True, f"stream {s}", 0, s) for r in range(ranks) for s in (7, 9)],
        [task for of_rank in work for task in of_rank],
        [(task - 1, task, Dependency.STREAM_WAIT) for task in tasks],
        sets=[tasks] if joined else [],
        lag=lag,
        collectives=drawn_collectives([(task, kind, nbytes, -1, -1, -1) for task in tasks]),
    )


@pytest.mark.parametrize(
    ("kind", "type_", "size"),
    [
        ("all-gather", CollectiveType.ALL_GATHER, 1000),
        ("reduce-scatter", CollectiveType.REDUCE_SCATTER, 1000),
        ("all-to-all", CollectiveType.ALL_TO_ALL, 1000),
        ("send-receive", CollectiveType.ALL_TO_ALL, 1000),
        ("broadcast", CollectiveType.ALL_GATHER, 500),  # shards of n / ranks put n on the busiest link
        ("reduce", CollectiveType.REDUCE_SCATTER, 1000),
        ("gather", CollectiveType.ALL_GATHER, 1000),
        ("scatter", CollectiveType.ALL_TO_ALL, 1000),
        ("barrier", CollectiveType.ALL_REDUCE, 1000),
    ],
)
def test_kinds_are_lowered_to_what_is_simulated(kind: str, type_: int, size: int) -> None:
    facts = lower(one_collective(kind)).communication
    assert facts.type.tolist() == [type_, type_]
    assert facts.size.tolist() == [size, size]
    assert [facts.kinds[k] for k in facts.kind] == [kind] * 2  # the original kind is kept as a label


def test_a_collective_without_its_peers_is_compute_of_its_time() -> None:
    workload = lower(one_collective(joined=False))
    assert workload.type.tolist() == [NodeType.COMP] * 4
    assert [d.code for d in workload.diagnostics] == ["collective-as-compute"]


def test_a_rank_that_starts_later_is_delayed_by_a_node() -> None:
    graph = one_collective()
    late = replace(graph, release_task=np.array([0, 2], np.int32), release_time=np.array([1_000_000, 1_003_000], np.int64))
    workload = lower(late)
    offset = [i for i in range(len(workload)) if workload.names[workload.name[i]] == "start_offset"]
    assert [(int(workload.rank_of()[i]), int(workload.duration[i])) for i in offset] == [(1, 3_000)]
    assert workload.start.max() == 23_000


def test_an_edge_between_ranks_becomes_a_message() -> None:
    graph = one_collective(joined=False)
    crossed = replace(graph, pred=np.array([0, 0], np.int32))  # rank 1's collective waits for rank 0's kernel
    workload = lower(crossed)
    facts = workload.communication
    assert workload.type[facts.node].tolist() == [NodeType.SEND, NodeType.RECV]
    assert (facts.peer.tolist(), facts.tag.tolist()) == ([1, 0], [1, 1])
    assert "edges-between-ranks" in [d.code for d in workload.diagnostics]


def test_a_graph_without_tasks_is_refused() -> None:
    columns = {"duration": np.int64, "processor": np.int32, "kind": np.uint8, "name": np.int32, "event": np.int32}
    none = {name: np.empty(0, dtype) for name, dtype in columns.items()}
    empty = replace(one_collective(), **none, pred_offset=np.zeros(1, np.int64), pred=np.empty(0, np.int32), collectives=None)
    with pytest.raises(GraphError, match="nothing to export"):
        lower(empty)
