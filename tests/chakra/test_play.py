"""The player: sets whose times follow by hand, a second player on random sets, and replays that end when it says."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.chakra.conftest import write_nodes
from validation.chakra_player import scores
from validation.chakra_uneven import drawn_in_dimensions, errors

import lumos
from lumos.chakra.algorithms import Algorithm, Implementation
from lumos.chakra.gather import gather
from lumos.chakra.network import GIB, Dimension, Network, Topology
from lumos.chakra.play import play
from lumos.chakra.system_files import network_of
from lumos.errors import LumosError
from lumos.simulation import simulate
from lumos.trace.chakra.schema import Attribute, ChakraNode, CollectiveType, NodeType


def line(npus: int, latency: float = 100.0) -> Dimension:
    """One byte a nanosecond, one hop between any two ranks."""
    return Dimension(npus, 1 / GIB, latency, Topology.FULLY_CONNECTED)


def on(*dimensions: Dimension, algorithm: Algorithm = Algorithm.RING, **changes: object) -> Network:
    plan = dict.fromkeys(CollectiveType, [Implementation(algorithm)] * len(dimensions))
    return Network(dimensions, **({"implementations": plan, "endpoint": 0, "chunks": 1, "local": 1.0} | changes))  # type: ignore[arg-type]


def test_a_group_takes_the_algorithm_and_the_chunks_of_the_system() -> None:
    """Two chunks of 50 bytes: a ring of three takes two steps of 150 ns, a direct one one; with two chunks at a time both run at once.
    A rank of a group takes 10 ns before it sends and 10 after each message."""
    members = (0, 1, 3)
    times = {
        (algorithm, active): on(line(4), algorithm=algorithm, chunks=2, active=active).collective(CollectiveType.ALL_GATHER, 100, members)
        for algorithm in (Algorithm.RING, Algorithm.DIRECT)
        for active in (1, 2)
    }
    assert times == {
        (Algorithm.RING, 1): 2 * (10 + 2 * 160),
        (Algorithm.RING, 2): 10 + 2 * 160,
        (Algorithm.DIRECT, 1): 2 * (10 + 160),
        (Algorithm.DIRECT, 2): 10 + 160,
    }
    with pytest.raises(LumosError, match="a group of 2 of 4 ranks has no tree"):
        on(line(4), algorithm=Algorithm.DOUBLE_BINARY_TREE).collective(CollectiveType.ALL_REDUCE, 100, (0, 1))


def test_what_the_chunks_leave_over_is_a_chunk() -> None:
    assert [*on(line(2), chunks=4).parts(CollectiveType.ALL_GATHER, 403)] == [100, 100, 100, 100, 3]
    assert [*on(line(2), chunks=4).parts(CollectiveType.ALL_REDUCE, 5)] == [2, 2, 2, 2]  # at least one byte for each rank


def test_roofline_in_the_simulators_own_arithmetic() -> None:
    network = on(line(2), local=50.0, peak=10.0)
    assert network.compute(10_000, 1) == 1
    assert network.compute(10_000, 1000) == 20
    assert [network.compute(*work) for work in ((10_000, -1), (-1, 1000), (-1, -1))] == [1, 20, 0]


def message(kind: NodeType, number: int, peer: int, tag: int, *after: int, size: int = 1000) -> ChakraNode:
    key = "comm_dst" if kind is NodeType.SEND else "comm_src"
    values = ((key, peer), ("comm_size", size), ("comm_tag", tag))
    return ChakraNode(number, kind.name, kind, data_deps=after, attrs=tuple(Attribute(name, "int64", value) for name, value in values))


def beside(folder: Path, ranks: int, **memory: object) -> None:
    (folder / "net.yml").write_text(f"topology: [ FullyConnected ]\nnpus_count: [ {ranks} ]\nbandwidth: [ {1 / GIB!r} ]\nlatency: [ 0 ]\n")
    if memory:
        (folder / "mem.json").write_text(json.dumps(memory))


def rank_ends(folder: Path) -> tuple[list[int], list[int]]:
    """When each rank ends, in the player and in the replay of the imported set."""
    workload = gather(lumos.read(folder))
    played = np.maximum.reduceat(play(workload, network_of(folder)).end, workload.rank_offset[:-1])
    job = lumos.build(lumos.read(folder))
    end = simulate(job).end
    rank = np.array([job.processors[p].rank for p in job.processor])
    return played.tolist(), [int(end[rank == r].max()) for r in job.ranks]


def test_receives_have_no_order_among_themselves(tmp_path: Path) -> None:
    """Rank 0 awaits two messages from the beginning. The second one comes first, and 20 us of compute need it alone."""
    receives = [message(NodeType.RECV, 1, 1, 1), message(NodeType.RECV, 2, 1, 2), ChakraNode(3, "x", data_deps=(2,), duration_micros=20)]
    sends = [message(NodeType.SEND, 1, 0, 2), ChakraNode(2, "y", data_deps=(1,), duration_micros=9), message(NodeType.SEND, 3, 0, 1, 2)]
    for rank, nodes in enumerate((receives, sends)):
        write_nodes(tmp_path / f"job.{rank}.et", nodes)
    beside(tmp_path, 2)
    assert rank_ends(tmp_path) == ([21_000, 11_000], [21_000, 11_000])


def test_requests_to_remote_memory_take_the_link_and_share_the_memory(tmp_path: Path) -> None:
    """500 bytes at 1 GB/s and 100 ns: 600 ns. A memory for all ranks serves one after the other; communication waits for the slot."""
    load = ChakraNode(1, "load", NodeType.MEM_LOAD, attrs=(Attribute("tensor_size", "uint64", 500),))
    write_nodes(tmp_path / "job.0.et", [load, message(NodeType.SEND, 2, 1, 1)])
    write_nodes(tmp_path / "job.1.et", [load, message(NodeType.RECV, 2, 0, 1)])
    expansion = {"remote-mem-latency": 100, "remote-mem-bw": 1}
    beside(tmp_path, 2, **{"memory-type": "PER_NPU_MEMORY_EXPANSION"}, **expansion)
    assert rank_ends(tmp_path) == ([1600, 1600],) * 2
    beside(tmp_path, 2, **{"memory-type": "MEMORY_POOL"}, **expansion)
    assert rank_ends(tmp_path) == ([1600, 1600],) * 2
    for rank in range(2):
        write_nodes(tmp_path / f"job.{rank}.et", [load])
    assert rank_ends(tmp_path) == ([600, 1200],) * 2
    (tmp_path / "mem.json").write_text('{"memory-type": "TAPE"}')
    with pytest.raises(LumosError, match=r"mem\.json.*'TAPE' is none of"):
        lumos.build(lumos.read(tmp_path))


def test_collectives_of_ranks_that_arrive_unevenly_end_when_a_second_implementation_says() -> None:
    """Rings, direct messages, halving and doubling, of groups and of all, in chunks, along several dimensions: to the nanosecond."""
    assert max(errors(7, 40)) == max(errors(7, 60, drawn_in_dimensions)) == 0


def test_ranks_that_begin_the_chunks_of_a_dimension_in_other_orders_hang(tmp_path: Path) -> None:
    case = drawn_in_dimensions(np.random.default_rng([7, 54]))  # of which all eight ranks wait for one another
    facts = Attribute("comm_type", "int64", int(case.kind)), Attribute("comm_size", "int64", case.nbytes)
    for rank, begin in enumerate(case.begin):
        before = ChakraNode(1, "k", attrs=(Attribute("duration_ns", "int64", begin),))
        write_nodes(tmp_path / f"job.{rank}.et", [before, ChakraNode(2, "c", NodeType.COLL, data_deps=(1,), attrs=facts)])
    assert len(play(gather(lumos.read(tmp_path)), case.network).hung) == 8


def test_random_sets_end_when_the_reference_says() -> None:
    """Compute, messages and remote memory: the player to the nanosecond, and the replay of the imported set too."""
    assert scores(7, 25) == [(0.0, 0.0)] * 25


@pytest.mark.parametrize("seed", range(6))
def test_replays_of_sets_with_collectives_end_when_the_player_says(tmp_path: Path, seed: int) -> None:
    """Four ranks that compute for different times between collectives of all ranks and of two groups."""
    rng = np.random.default_rng(seed)
    groups = {"1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]}
    (tmp_path / "groups.json").write_text(json.dumps(groups))
    beside(tmp_path, 4)
    algorithm = str(rng.choice(["ring", "direct", "halvingDoubling"]))
    system = {f"{kind}-implementation": [algorithm] for kind in ("all-reduce", "all-gather", "reduce-scatter")}
    (tmp_path / "sys.json").write_text(json.dumps({"active-chunks-per-dimension": int(rng.integers(1, 5)), **system}))
    nodes: list[list[ChakraNode]] = [[] for _ in range(4)]
    for _ in range(12):
        name = str(rng.integers(5))
        kind, size = int(rng.choice([0, 2, 7])), int(rng.integers(1, 50)) * 4096
        for rank in groups.get(name, range(4)):
            own = nodes[rank]
            after = (own[-1].id,) if own else ()
            own.append(ChakraNode(len(own) + 1, "k", data_deps=after, duration_micros=int(rng.integers(1, 200))))
            values = (("comm_type", "int64", kind), ("comm_size", "int64", size), ("pg_name", "string", name))
            own.append(
                ChakraNode(len(own) + 1, "c", NodeType.COLL, data_deps=(own[-1].id,), attrs=tuple(Attribute(*value) for value in values))
            )
    for rank, own in enumerate(nodes):
        write_nodes(tmp_path / f"job.{rank}.et", own)
    played, replayed = rank_ends(tmp_path)
    assert played == replayed and len(set(played)) > 1
