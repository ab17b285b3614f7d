"""The network model: times that follow by hand, and what the simulator itself answers."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from validation.chakra_simulator import WITHOUT, rows, whole_set, within

from lumos.chakra.algorithms import Algorithm, Implementation
from lumos.chakra.network import GIB, Dimension, Network, Topology
from lumos.chakra.system_files import read_network
from lumos.errors import LumosError
from lumos.trace.chakra.companions import Companion
from lumos.trace.chakra.schema import CollectiveType

ORACLE = Path(os.environ.get("LUMOS_CHAKRA") or "absent")
needs_oracle = pytest.mark.skipif(not ORACLE.is_dir(), reason="LUMOS_CHAKRA is not set: the simulator's answers are not here")

#: One byte a nanosecond, 100 ns a hop, no delay at endpoints, and memory that reads a byte in 1 ns.
SLOW = 1 / GIB


def network(*dimensions: Dimension, algorithm: Algorithm = Algorithm.RING, window: int | None = None, **changes: object) -> Network:
    plan = [Implementation(algorithm, window)] * len(dimensions)
    made = Network(dimensions, dict.fromkeys(CollectiveType, plan), endpoint=0, chunks=1, local=1.0)
    return replace(made, **changes)  # type: ignore[arg-type]


def line(npus: int, topology: Topology = Topology.FULLY_CONNECTED, latency: float = 100.0) -> Dimension:
    return Dimension(npus, SLOW, latency, topology)


def test_direct_sends_to_all_at_once_and_the_farthest_decides() -> None:
    """On a ring of four the farthest rank is two hops away: 100 + 2 x 100 ns.

    The second part of an all-reduce begins when all shares have arrived (300 ns) and one is added: two are added at 500 ns, so that the
    first two results leave then, the second of them to the farthest rank; the third leaves at 600 ns to a neighbour.
    """
    ring = network(line(4, Topology.RING), algorithm=Algorithm.DIRECT)
    assert ring.collective(CollectiveType.ALL_TO_ALL, 400, range(4)) == 300
    assert ring.collective(CollectiveType.REDUCE_SCATTER, 400, range(4)) == 600
    assert ring.collective(CollectiveType.ALL_REDUCE, 400, range(4)) == max(500 + 300, 600 + 200)
    windowed = network(line(4), algorithm=Algorithm.DIRECT, window=1)
    assert windowed.collective(CollectiveType.ALL_TO_ALL, 400, range(4)) == 3 * 200


def test_a_tree_goes_up_and_down() -> None:
    """Two ranks: a leaf and a root. 400 bytes up, added in 1,200 ns, and down again."""
    made = network(line(2), algorithm=Algorithm.DOUBLE_BINARY_TREE)
    assert made.collective(CollectiveType.ALL_REDUCE, 400, range(2)) == 500 + 1200 + 500


def test_dimensions_work_on_different_chunks_at_the_same_time() -> None:
    """2 x 2 ranks, 4 chunks of 80 bytes. A chunk scatters along the inner dimension (40 bytes: 140 + 120 ns), reduces along
    the outer one (20 bytes there and back: 240 + 60) and gathers along the inner one (40 bytes: 140 ns). The inner dimension, 260 + 140 ns
    for each chunk, is never idle: the chunk that gathers queues behind those that scatter."""
    made = network(line(2), line(2), chunks=4)
    assert made.collective(CollectiveType.ALL_REDUCE, 320, range(4)) == 4 * (260 + 140)
    alone = replace(made, chunks=1).collective(CollectiveType.ALL_REDUCE, 80, range(4))
    assert alone == 260 + 300 + 140
    baseline = replace(made, chunks=1, hierarchical=False)
    assert baseline.collective(CollectiveType.ALL_REDUCE, 80, range(4)) == 2 * (2 * 140 + 120)


@pytest.mark.parametrize("algorithm", [Algorithm.HALVING_DOUBLING, Algorithm.DOUBLE_BINARY_TREE])
def test_three_ranks_are_no_power_of_two(algorithm: Algorithm) -> None:
    with pytest.raises(LumosError, match="a power of two of ranks, not 3"):
        network(line(3), algorithm=algorithm).collective(CollectiveType.ALL_REDUCE, 300, range(3))


def test_files_of_several_dimensions_in_both_forms_of_yaml(tmp_path: Path) -> None:
    listed = "# two levels\ntopology: [ Ring, 'Switch' ]\nnpus_count: [ 2, 4 ]\nbandwidth: [ 200.0, 40 ] # GiB/s\nlatency: [ 300, 1500. ]\n"
    blocks = "topology:\n  - Ring\n  - Switch\nnpus_count:\n- 2\n- 4\nbandwidth:\n  - 200.0\n  - 40\nlatency:\n  - 300\n  - 1500.\n"
    wanted = (Dimension(2, 200.0, 300.0, Topology.RING), Dimension(4, 40.0, 1500.0))
    for text in (listed, blocks):
        (tmp_path / "n.yml").write_text(text)
        assert read_network(tmp_path / "n.yml").dimensions == wanted
    (tmp_path / "s.json").write_text('{"endpoint-delay": 3, "all-reduce-implementation": ["direct2", "ring"], "peak-perf": 1}')
    found = read_network(tmp_path / "n.yml", {Companion.SYSTEM: tmp_path / "s.json"})
    assert found.implementations == {CollectiveType.ALL_REDUCE: (Implementation(Algorithm.DIRECT, 2), Implementation())}
    assert (found.endpoint, found.peak) == (3, 1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("topology: [ Torus ]\nnpus_count: [ 2 ]\nbandwidth: [ 1 ]\nlatency: [ 1 ]\n", "topology 'Torus' is none of Ring"),
        ("topology: [ Ring ]\nnpus_count: [ 2 ]\nlatency: [ 1 ]\n", "it lacks 'bandwidth'"),
        ("topology: [ Ring ]\nnpus_count: [ 2 ]\nbandwidth: [ 0 ]\nlatency: [ 1 ]\n", "0 GiB/s"),
        ("topology: [ Ring, Ring ]\nnpus_count: [ 2 ]\nbandwidth: [ 1 ]\nlatency: [ 1 ]\n", "one entry a dimension"),
    ],
)
def test_a_network_file_that_cannot_be_understood(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "n.yml").write_text(text)
    with pytest.raises(LumosError, match=reason) as error:
        read_network(tmp_path / "n.yml")
    assert str(tmp_path / "n.yml") in str(error.value)


@needs_oracle
def test_the_model_answers_what_the_simulator_answers() -> None:
    """To the nanosecond, and no longer where a part of the model is taken out."""
    found = rows(ORACLE)
    assert len(found) >= 142
    assert [(row.kind, row.network) for row in found if row.error() != 0] == []
    fewer = {name: within(found, change) for name, change in WITHOUT.items() if name != "whole"}
    assert all(count < len(found) - 10 for count in fewer.values()), fewer


@needs_oracle
def test_a_set_of_another_producer_ends_when_the_simulator_says() -> None:
    assert whole_set(ORACLE) == 0
