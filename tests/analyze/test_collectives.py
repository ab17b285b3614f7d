from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from tests.drawn_graph import drawn_collectives, drawn_graph
from validation.exchange import exchange

from lumos.analyze.collectives import collective_times
from lumos.analyze.loop.steps import members
from lumos.analyze.tables import class_times
from lumos.graph.table import Kind, Processor
from lumos.simulation.timeline import Timeline, measured


@pytest.fixture
def job():
    """Two ranks; each a gemm of 0–100 ns, then an all-gather of 1000 bytes a rank: rank 0 arrives at 100, rank 1 at 160, both
    end at 180. Rank 1 has another all-gather of its own, of a group that was not recorded, 200–230."""

    def build(**facts):
        known = {"kind": "all-gather", "nbytes": [1000, 1000, 64], "group": [0, 0, -1], "size": [2, 2, 4], **facts}
        streams = [Processor(rank, True, "stream 7", 0, 7) for rank in (0, 1)]
        kinds = {Kind.KERNEL: "gemm", Kind.COLLECTIVE: "ncclDevKernel_AllGather"}
        tasks = [(0, Kind.KERNEL, 100), (0, Kind.COLLECTIVE, 20), (1, Kind.KERNEL, 100), (1, Kind.COLLECTIVE, 20), (1, Kind.COLLECTIVE, 30)]
        calls = [(task, known["kind"], known["nbytes"][i], known["group"][i], -1, -1) for i, task in enumerate((1, 3, 4))]
        graph = drawn_graph(
            streams,
            [(stream, kind, kinds[kind], ns) for stream, kind, ns in tasks],
            sets=[(1, 3)],
            collectives=drawn_collectives(calls, ["world"], known["size"]),
        )
        start, end = np.array([0, 100, 0, 160, 200], np.int64), np.array([100, 180, 100, 180, 230], np.int64)
        return SimpleNamespace(timeline=Timeline(graph, start, end, "replayed"), owners=members(graph))

    return build


def test_own_time_by_rank_and_class_leaves_waiting_apart(job):
    found = class_times(job().timeline, job().owners)
    assert found.labels == ("gemm", "collective")
    assert found.time_ns.tolist() == [[100, 20], [100, 50]]
    assert found.waiting_ns.tolist() == [60, 0]


def test_an_all_gather_moves_what_all_ranks_give(job):
    row = collective_times(job().timeline, job().owners)[0]
    assert row.size_bytes == 2000
    assert row.bus_bytes_per_s == pytest.approx(2000 / 20e-9 * 1 / 2)


def test_where_peers_are_absent_only_the_whole_is_known(job):
    row = collective_times(job().timeline, job().owners)[1]
    assert (row.time_ns, row.waiting_ns, row.transfer_ns, row.bus_bytes_per_s) == (30, None, None, None)


def test_only_steps_that_count_are_summed_up(cpu_ahead):
    """Three steps of one all-reduce each, of 30, 30 and 40 µs; the first step has no period."""
    graph = cpu_ahead((30, 30, 40))
    tasks = np.array([1, 3, 5], np.int32)
    kind = graph.kind.copy()
    kind[tasks] = Kind.COLLECTIVE
    facts = drawn_collectives([(task, "all-reduce", -1, 0, -1, -1) for task in tasks], ["world"])
    graph = replace(graph, kind=kind, collectives=facts)
    (row,) = collective_times(measured(graph), members(graph))
    assert (row.calls, row.time_ns) == (2, 35_000)


def test_the_durations_of_a_step_give_its_period_in_the_graph_of_another(cpu_ahead):
    """Steps 1 and 2 take 30 and 33, set by their kernels. Taking the other's period is wrong by 3 of 33 and by 3 of 30."""
    found = exchange(cpu_ahead((30, 30, 33)))
    assert (found.pairs, found.alone, found.before) == (2, 0, 0)
    assert found.again == pytest.approx((3 / 33 + 3 / 30) / 2)
