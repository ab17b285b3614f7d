"""The example that was run on ASTRA-sim: a graph exports to the same nodes, and replays to the simulator's times."""

from pathlib import Path

import pytest
from tests.chakra import two_stages

import lumos
from lumos.chakra.exporting import export_graph
from lumos.simulation import simulate
from lumos.trace.chakra.et import stream

COMP, SEND, RECV, COLL = 4, 5, 6, 7


def expected(rank: int) -> list[tuple[int, str, int, int, tuple[int, ...], dict[str, tuple[str, object]]]]:
    """(id, name, type, microseconds, data_deps, attributes) of each node of the example."""

    def message(source: int, target: int, tag: int) -> dict[str, tuple[str, object]]:
        facts = {"comm_size": 4194304, "comm_src": source, "comm_dst": target, "comm_tag": tag}
        return {**{key: ("int64", value) for key, value in facts.items()}, "is_cpu_op": ("bool", False)}

    gpu = {"is_cpu_op": ("bool", False)}
    reduce_ = {**gpu, "comm_type": ("int64", 0), "comm_size": ("int64", 67108864), "pg_name": ("string", str(1 + rank // 2))}
    if rank < 2:
        return [
            (1, "COMP_NODE_fwd", COMP, 300, (), gpu),
            (2, "COMM_SEND_NODE_send2", SEND, 0, (1,), message(rank, rank + 2, 100 + rank)),
            (3, "COMM_RECV_NODE_recv3", RECV, 0, (2,), message(rank + 2, rank, 200 + rank)),
            (4, "COMP_NODE_bwd", COMP, 600, (1, 3), gpu),
            (5, "COMM_COLL_NODE_coll5", COLL, 0, (4,), reduce_),
            (6, "COMP_NODE_opt", COMP, 50, (4, 5), gpu),
        ]
    return [
        (1, "COMM_RECV_NODE_recv1", RECV, 0, (), message(rank - 2, rank, 100 + rank - 2)),
        (2, "COMP_NODE_fwd", COMP, 300, (1,), gpu),
        (3, "COMP_NODE_bwd", COMP, 600, (2,), gpu),
        (4, "COMM_SEND_NODE_send4", SEND, 0, (1, 3), message(rank, rank - 2, 200 + rank - 2)),
        (5, "COMM_COLL_NODE_coll5", COLL, 0, (3,), reduce_),
        (6, "COMP_NODE_opt", COMP, 50, (3, 5), gpu),
    ]


@pytest.mark.parametrize("rank", range(4))
def test_it_is_rebuilt_node_for_node(tmp_path: Path, rank: int) -> None:
    export_graph(two_stages.two_stages(), tmp_path)
    metadata, placed = stream(tmp_path / f"job.{rank}.et")
    assert metadata.version == "0.0.4"
    nodes = [p.node for p in placed]
    assert [(n.id, n.name, n.type, n.duration_micros, n.data_deps) for n in nodes] == [row[:5] for row in expected(rank)]
    for node, row in zip(nodes, expected(rank), strict=True):
        assert row[5].items() <= {a.name: (a.kind, a.value) for a in node.attrs}.items()
        assert node.ctrl_deps == ()


def test_our_replay_ends_where_the_simulator_did(stages: Path) -> None:
    example = two_stages
    job = lumos.build(lumos.read(stages))
    timeline = simulate(job)
    rank = [job.processors[p].rank for p in job.processor]
    finish = [int(timeline.end[[r == wanted for r in rank]].max()) for wanted in range(4)]
    assert finish == pytest.approx(example.FINISH, rel=1e-6)
    assert timeline.end[:6].tolist() == pytest.approx(example.RANK_0, rel=1e-5)
    assert [d.code for d in job.diagnostics] == ["costed", "never-measured"]
