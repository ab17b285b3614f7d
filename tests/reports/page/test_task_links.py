import json

import numpy as np
import pytest
from tests.drawn_rank import DrawnRank

import lumos
from lumos.analyze.loop.steps import members
from lumos.graph.build import build
from lumos.graph.table import Dependency
from lumos.reports.page.task_columns import TaskFacts, task_links
from lumos.reports.page.timeline_lanes import lanes_of
from lumos.reports.page.timeline_levels import pieces, window_of
from lumos.simulation import freeze, measured


@pytest.fixture
def drawn(trace):
    """Two steps of three operators (`tests.steps_alike`): each launches a kernel, and the third step's kernels follow each other."""
    job = lumos.read(trace(per_step=3))
    graph = build(job)
    run = measured(graph)
    window = window_of(run, members(graph), "ProfilerStep#1")
    _, lane_of = lanes_of(graph)
    return job, graph, run, pieces(run, window, lane_of, np.zeros(len(graph), np.int64), 0)


def test_a_blocking_call_passes_its_wait_on(tmp_path):
    """A synchronisation from 20 to 100 µs waits for the kernel that ends at 98; the operator behind it runs from 101. The return of the
    call takes no time and is not drawn, so the operator waited for the kernel."""
    rank = DrawnRank()
    rank.step(0, 0, 200)
    rank.operator("aten::mm", 0, 10, **{"External id": 1})
    rank.call("cudaLaunchKernel", 2, 4, ("gemm", 8, 90), **{"External id": 1})
    rank.call("cudaDeviceSynchronize", 20, 80)
    rank.operator("aten::add", 101, 50, **{"External id": 3})
    graph = build(lumos.read(rank.write(tmp_path / "rank0.json")))
    run = measured(graph)
    shown = np.flatnonzero(run.end > run.start)
    found = task_links(run, freeze(graph), shown)
    names = [graph.names[i] for i in graph.name[shown]]
    waits = [names[a] for a, b, kind in zip(*found, strict=True) if kind == Dependency.SYNC and names[b] == "gemm"]
    assert len(waits) == 1
    assert waits != ["cudaDeviceSynchronize"]


def test_facts_are_those_of_the_row_and_of_the_operator_that_launched_it(tmp_path):
    own = {"ph": "X", "pid": 1, "tid": 1}
    shapes = {"Input Dims": [[8, 16], [16, 4]], "Input type": ["float", "float"], "External id": 5}
    rows = [
        {**own, "cat": "cpu_op", "name": "aten::linear", "ts": 0, "dur": 100, "args": {"External id": 4}},
        {**own, "cat": "cpu_op", "name": "aten::mm", "ts": 10, "dur": 50, "args": shapes},
        {**own, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 20, "dur": 5, "args": {"correlation": 1, "External id": 5}},
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 30, "dur": 9,
         "args": {"correlation": 1, "External id": 5, "stream": 7, "device": 0, "grid": [2, 1, 1], "block": [64, 1, 1]}},
    ]  # fmt: skip
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": rows}))
    job = lumos.read(tmp_path / "rank0.json")
    graph = build(job)
    facts = TaskFacts(graph, job)
    by_name = {graph.names[n]: facts.used[i] for n, i in zip(graph.name, facts.of(np.arange(len(graph))), strict=True)}
    assert by_name["cudaLaunchKernel"] == ()
    assert by_name["aten::mm"] == ("shapes: [[8,16],[16,4]]", 'types: ["float","float"]')
    assert by_name["gemm"] == (
        "grid: [2,1,1]",
        "block: [64,1,1]",
        "operator: aten::mm",
        "shapes of the operator: [[8,16],[16,4]]",
        'types of the operator: ["float","float"]',
    )
