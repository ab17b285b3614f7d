"""What a simulator makes of a set is said at export: its order, its prices, and roofline times of compute."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.chakra.test_lower import one_collective

import lumos
from lumos.chakra.exporting import as_simulated, export_graph, network_for, under_roof
from lumos.chakra.lower import lower
from lumos.chakra.network import Dimension, Network
from lumos.chakra.workload import Amounts
from lumos.cost.cluster import load_cluster
from lumos.simulation import simulate
from lumos.vocabulary import DType


def amounts(operations: list[int], moved: list[int]) -> Amounts:
    return Amounts(np.array(operations, np.int64), np.array(moved, np.int64), np.full(len(moved), -1, np.int32), dtype=DType.BF16)


def test_prices_of_the_network_and_of_the_roof() -> None:
    """On a ring of two ranks an all-reduce takes what the network model says; 10 us of compute take 1e9 operations / 1000 TFLOP/s."""
    known = amounts([10**9, -1, -1, -1], [1, -1, 4_000_000, -1])
    workload = lower(one_collective(), known)
    network = Network((Dimension(2, 50.0, 500.0),), local=1000.0, peak=1000.0)
    transfer = network.collective(0, 1000, (0, 1))
    assert as_simulated(workload, network) == 20_000 + transfer
    # rank 1 moves 4 MB at 1,000 GB/s: 4 us
    assert as_simulated(workload, replace(network, roofline=True)) == 4_000 + transfer


def test_unknown_work_takes_its_time_on_the_cluster() -> None:
    workload, (finding,) = under_roof(lower(one_collective(), amounts([10**9, -1, -1, -1], [1, -1, -1, -1])), 2000)
    assert workload.bytes.tolist() == [1, -1, 40_000_000, -1]
    assert "1 of 2 compute nodes (66.7% of their time)" in finding.message


def test_the_roof_is_that_of_the_type_that_computes_most() -> None:
    h100 = load_cluster("h100")
    peaks = {dtype: network_for(8, h100, dtype)[0].peak for dtype in (DType.FP8, DType.FP32, None)}
    assert peaks == pytest.approx({DType.FP8: 1978.9, DType.FP32: 494.7, None: 989.4})  # of fp32 that of tf32
    assert network_for(8, h100, None)[0].local == 3350.0
    bare = msgspec.structs.replace(h100, accelerator=msgspec.structs.replace(h100.accelerator, peak_flops={}))
    assert [d.code for d in network_for(8, bare, None)[1]] == ["roof-assumed"]


def test_export_says_it_and_a_set_is_priced_by_its_roof(tmp_path: Path) -> None:
    known = amounts([10**9, -1, -1, -1], [1, -1, 4_000_000, -1])
    folder = tmp_path / "set"
    cluster = load_cluster("h100")
    found = export_graph(one_collective(), folder, amounts=known, astra_sim=True, roofline=True, cluster=cluster)
    system = json.loads((folder / "sys.json").read_text())
    assert (system["roofline-enabled"], system["peak-perf"], system["local-mem-bw"]) == (1, 989, 3350)
    assert lumos.chakra.check(folder).ok
    assert found.simulated_ns is not None and found.replayed_ns == 27_000
    priced = simulate(lumos.chakra.priced(folder, folder / "net.yml"))
    assert priced.end.max() == found.simulated_ns < 27_000
    assert simulate(lumos.build(lumos.read(folder))).end.max() == 27_000  # without a price list the recorded times stand, and that is said
    assert "roofline-not-taken" in [d.code for d in lumos.build(lumos.read(folder)).diagnostics]


@pytest.mark.parametrize("options", [{"astra_sim": True}, {"cluster": "h100"}])
def test_a_roofline_needs_a_cluster(tmp_path: Path, stages: Path, options: dict[str, object]) -> None:
    with pytest.raises(lumos.UsageError, match="--roofline"):
        lumos.chakra.export(stages, tmp_path / "other", roofline=True, **options)
