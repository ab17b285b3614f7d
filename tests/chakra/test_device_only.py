"""Device work and communication alone replay to the times of the whole job, with the CPU's time in front of what waited for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from tests.chakra.test_round_trip import jobs

from lumos.chakra.build import graph_of
from lumos.chakra.device_only import device_only
from lumos.chakra.lower import lower
from lumos.chakra.play import play
from lumos.errors import UsageError
from lumos.graph.table import Graph
from lumos.simulation import simulate


@given(jobs())
def test_it_takes_what_the_job_takes(job: Graph) -> None:
    workload = lower(job)
    alone = device_only(workload)
    assert simulate(graph_of(alone)).end.max() == simulate(job).end.max()
    kept = ~alone.on_cpu
    assert sorted(alone.duration[kept]) == sorted(workload.duration[~workload.on_cpu])


def test_launches_of_10_us_in_front_of_kernels_of_30(ahead: Graph) -> None:
    """The first kernel waits 10 us for its launch; the others were launched long before and wait for the kernel in front of them."""
    alone = device_only(lower(ahead))
    rows = zip(alone.on_cpu.tolist(), alone.start.tolist(), alone.duration.tolist(), strict=True)
    assert list(rows) == [(True, 0, 10_000), (False, 10_000, 30_000), (False, 40_000, 30_000), (False, 70_000, 30_000)]
    assert np.split(alone.dep, alone.dep_offset[1:-1])[1:][0].tolist() == [0]
    assert play(alone).end.max() == 100_000


def test_a_job_of_the_cpu_alone_has_none(ahead: Graph) -> None:
    workload = lower(ahead)
    with pytest.raises(UsageError, match="no device work"):
        device_only(replace(workload, on_cpu=np.ones(len(workload), bool)))
