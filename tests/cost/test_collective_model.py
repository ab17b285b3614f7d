"""Collectives: closed forms in the limit, and the properties of networks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lumos.cost.cluster import load_cluster
from lumos.cost.collective_model import MODELLED_KINDS, collective
from lumos.errors import LumosError

KIND = st.sampled_from(sorted(MODELLED_KINDS))
BYTES = st.integers(1, 2**34)


@given(KIND, BYTES, BYTES, st.sampled_from([2, 4, 8, 16, 64, 512]))
def test_more_bytes_never_take_less(kind: str, a: int, b: int, ranks: int) -> None:
    small, large = collective(kind, ranks, [min(a, b), max(a, b)], load_cluster("h100")).time
    assert small <= large


@given(KIND, BYTES, st.sampled_from([2, 5, 8, 16, 24, 1024]), st.integers(1, 8))
def test_never_faster_than_the_links(kind: str, size: int, ranks: int, concurrent: int) -> None:
    cluster = load_cluster("h100")
    e = collective(kind, ranks, size, cluster, concurrent=concurrent)
    assert e.roofline <= e.low <= e.time <= e.high
    sent = {"all-reduce": 1.0 if ranks <= 8 else 2 * (ranks - 1) / ranks, "broadcast": 1, "reduce": 1, "send-receive": 1}.get(
        kind, (ranks - 1) / ranks
    )
    rate = (cluster.node.link_bytes_per_s or 0) if ranks <= 8 else 8 * (cluster.node.nic_bytes_per_s or 0) / concurrent
    if kind != "all-to-all" or ranks <= 8:
        assert e.time >= sent * size / rate * 1e9 * (1 - 1e-9)


def test_a_large_all_reduce_over_nodes_approaches_the_nics() -> None:
    """16 H100 in two nodes: 2 · 15/16 · 16 GiB through 8 NICs of 50 GB/s takes 80.5 ms at full rate."""
    e = collective("all_reduce", 16, 2**34, load_cluster("h100"))
    ideal = 2 * 15 / 16 * 2**34 / 400e9
    assert ideal < e.time / 1e9 < 1.15 * ideal
    assert e.bounds() == "fabric"


def test_a_group_over_an_oversubscribed_tier_is_slower() -> None:
    cluster = load_cluster("llama3-h100")
    near, far = (collective("all_to_all", 64, 2**32, cluster, span=s).time for s in (64, 8192))
    assert far > 5 * near
    near, beyond, far = (collective("all_gather", 8, 2**32, cluster, per_node=1, span=s).time for s in (3072, 24576, 8192))
    assert beyond > 5 * near > 2 * far > 4 * near  # a ring of one rank a pod, and one of which three ranks share a pod's links


@given(KIND, st.lists(st.tuples(st.sampled_from([1, 2, 4, 8, 16, 64, 2048]), BYTES), min_size=1, max_size=6))
def test_a_batch_answers_as_its_rows_one_by_one(kind: str, rows: list[tuple[int, int]]) -> None:
    cluster = load_cluster("h100")
    ranks, sizes = zip(*rows, strict=True)
    batch = collective(kind, ranks, sizes, cluster)
    alone = [collective(kind, *row, cluster) for row in rows]
    for key in ("time", "low", "high", "bound_by", "roofline", "extrapolated"):
        assert getattr(batch, key).tolist() == [getattr(one, key).item() for one in alone], key
    assert set(batch.diagnostics) == {note for one in alone for note in one.diagnostics}


@pytest.mark.parametrize(
    ("kind", "ranks", "size", "options", "complaint"),
    [
        ("all_shuffle", 8, 1, {}, "collective 'all_shuffle' is not known; valid: all-reduce"),
        ("all_reduce", 0, 1, {}, "must be 1 or more"),
        ("all_reduce", 8, -1, {}, "bytes 0 or more"),
        ("all_reduce", 200_000, 1, {}, "200000 devices asked for, but cluster 'h100' has 131072"),
        ("all_reduce", 16, 1, {"per_node": 9}, "per_node must lie between 1 and the node's 8"),
    ],
)
def test_bad_input_is_refused(kind: str, ranks: int, size: int, options: dict[str, int], complaint: str) -> None:
    with pytest.raises(LumosError, match=complaint):
        collective(kind, ranks, size, load_cluster("h100"), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_chains_pass_through_every_node(kind: str) -> None:
    """Ten times as many nodes: the latency of a broadcast grows as much, that of a small all-reduce (a tree) far less."""
    cluster = load_cluster("h100")
    few, many = collective(kind, [64, 640], 8, cluster).time
    tree_few, tree_many = collective("all_reduce", [64, 640], 8, cluster).time
    assert 9 < many / few < 11
    assert tree_many / tree_few < 3
