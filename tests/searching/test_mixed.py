"""Nodes of several kinds: every rate is the lowest, and the memory the smallest, whichever kind is named first."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from lumos.cost.cluster import Operation, load_cluster
from lumos.errors import LumosError, UsageError
from lumos.searching.mixed import mixed_problem, slowest_of

H100, A100_40, H200 = (load_cluster(name) for name in ("h100", "a100-40gb", "h200"))


@pytest.mark.parametrize("kinds", [(H100, A100_40), (A100_40, H100)])
def test_the_slowest_of_two_kinds(kinds):
    found = slowest_of(kinds, "bf16")
    assert found.accelerator.name == A100_40.accelerator.name  # kernels are priced as on the accelerator with the lower peak
    assert found.accelerator.peak("bf16") == A100_40.accelerator.peak("bf16")
    assert found.accelerator.memory_bytes == 4e10
    assert found.accelerator.memory_bytes_per_s == min(k.accelerator.memory_bytes_per_s for k in kinds)
    assert found.node.link_bytes_per_s == A100_40.node.link_bytes_per_s
    assert found.node.nic_total() == min(k.node.nic_total() for k in kinds)
    assert found.name == "+".join(k.name for k in kinds)


def test_the_slower_memory_counts_even_if_the_other_kind_computes_slower():
    slow_memory = slowest_of((H200, H100), "bf16")
    assert slow_memory.accelerator.memory_bytes_per_s == H100.accelerator.memory_bytes_per_s
    assert slow_memory.accelerator.memory_bytes == H100.accelerator.memory_bytes


def test_a_precision_that_one_kind_lacks_is_refused():
    with pytest.raises(UsageError, match="has no fp8 rate"):
        slowest_of((H100, A100_40), "fp8")


def test_nodes_of_different_sizes_are_refused():
    with pytest.raises(LumosError, match="nodes of different sizes"):
        slowest_of((H100, load_cluster("gb200")), "bf16")


def test_money_and_failures_count_at_their_worst_where_all_kinds_state_them():
    cheap = msgspec.structs.replace(H100, operation=Operation(2.0, 1300.0, 50000.0, 30.0, 600.0))
    dear = msgspec.structs.replace(H200, operation=Operation(3.0, None, 40000.0, 20.0, 900.0))
    assert slowest_of((cheap, dear), "bf16").operation == Operation(3.0, None, 40000.0, 30.0, 900.0)
    assert slowest_of((cheap, A100_40), "bf16").operation == Operation()


def test_a_search_says_what_it_assumed(small):
    mixed = mixed_problem(small, (A100_40,))
    assert [note.code for note in mixed.assumed] == ["mixed-nodes"]
    assert mixed.capacity == A100_40.accelerator.usable_bytes
    assert mixed_problem(small, ()) is small


def test_reserved_memory_is_left_free(small):
    assert replace(small, reserved_bytes=6e9).capacity == small.capacity - 6e9
    for wrong in (-1.0, 8.5e10, float("nan")):
        with pytest.raises(UsageError, match="reserved memory"):
            replace(small, reserved_bytes=wrong)
