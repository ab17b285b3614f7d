from __future__ import annotations

from dataclasses import replace

import pytest

from lumos.analyze.steps import members
from lumos.analyze.tables import ModuleRow, OperatorRow, tabulate
from lumos.errors import TraceError
from lumos.simulate.timeline import measured
from lumos.trace.table import Job

US = 1000


def rows(graph, by, job=None):
    return tabulate(measured(graph), members(graph), by, job or Job(()))


def test_by_kernel(two_steps):
    found = rows(two_steps, "kernel")
    assert [(r.name, r.tasks, r.total_ns) for r in found] == [("k2", 1, 31 * US), ("nccl", 1, 30 * US), ("k1", 1, 26 * US)]
    assert sum(r.share for r in found) == pytest.approx(1)


def test_by_kernel_adds_up_one_name(launched):
    (row,) = rows(launched[1], "kernel")
    assert row == ("gemm", 2, 160 * US, 1.0, 80 * US, 60 * US, 100 * US)


def test_by_operator(launched):
    job, graph = launched
    assert rows(graph, "operator", job) == (OperatorRow("aten::mm", 2, 160 * US, 1.0, 1, 10 * US, 1.0),)


def test_by_module(launched):
    job, graph = launched
    assert rows(graph, "module", job) == (ModuleRow("Linear_0", 2, 160 * US, 1.0),)


def test_by_module_says_what_to_record(launched, record):
    with pytest.raises(TraceError, match=r"hand\.json.*with_modules"):
        rows(launched[1], "module", Job((record((1, "op", 0, 0, 1)),)))


def test_by_stream(two_steps):
    seven, eight = rows(two_steps, "stream")
    assert (seven.name, seven.tasks, seven.busy_ns) == ("stream 7", 2, 57 * US)
    assert (eight.name, eight.tasks, eight.busy_ns) == ("stream 8", 1, 30 * US)
    assert seven.share == pytest.approx(57 / 125)
    assert sum(seven.idle) == 125 * US - 57 * US


def test_by_rank(two_steps):
    (rank,) = rows(two_steps, "rank")
    assert (rank.steps, rank.duration_ns) == (2, 125 * US)
    assert rank.breakdown == (47 * US, 10 * US, 20 * US, 48 * US)
    assert sum(rank.idle) == rank.breakdown.other_ns


def test_a_rank_without_a_step_shows_zeros(two_steps):
    graph = replace(two_steps, ranks=(0, 1), lag=two_steps.lag.repeat(2, 0))
    zero, one = rows(graph, "rank")
    assert (zero.steps, one.steps, one.duration_ns, one.idle) == (2, 0, 0, None)
