"""The operators around tasks, on the thread of the fixture `nested`."""

import json

import numpy as np
import pytest
from tests.reports.page.test_timeline_levels import values

import lumos
from lumos.analyze.loop.steps import members
from lumos.cost.operators import launched_by
from lumos.graph.build import build
from lumos.reports.page.timeline_levels import drawing
from lumos.simulation import measured, simulate

#: What is around a task of that name, the outermost first. An operator's own time is part of the operator itself.
AROUND = {
    "aten::linear": ["ProfilerStep#0", "aten::linear"],
    "aten::mm": ["ProfilerStep#0", "aten::linear", "aten::mm"],
    "cudaLaunchKernel": ["ProfilerStep#0", "aten::linear", "aten::mm"],
    "gemm": ["ProfilerStep#0", "aten::linear", "aten::mm"],
    "aten::add": ["ProfilerStep#0", "aten::add"],
}


@pytest.fixture
def recorded(nested):
    job = lumos.read(nested)
    return job, build(job)


def chains(tasks, around, names):
    """The names around each piece, by the piece's name."""
    parent, name = values(around["parent"]), values(around["name"])
    found = {}
    for own, at in zip(values(tasks["name"]), values(tasks["around"]), strict=True):
        chain = []
        while at:
            chain, at = [names[name[at]], *chain], parent[at]
        found.setdefault(names[own], []).append(chain)
    return found


@pytest.mark.parametrize("run", [measured, simulate])
def test_every_task_knows_the_operators_around_it_in_every_run(recorded, run):
    job, graph = recorded
    found = drawing({"run": run(graph)}, members(graph), "ProfilerStep#0", {}, job)
    known = chains(found["runs"][0]["tasks"], found["around"], found["names"])
    for name, expected in AROUND.items():
        assert known[name] == [expected] * len(known[name])


def test_without_the_number_of_the_operator_the_call_that_launched_leads_to_it(nested):
    """Old recordings have no External id at kernels: the call of the same correlation is inside aten::mm."""
    content = json.loads(nested.read_text())
    for row in content["traceEvents"]:
        row["args"] = {key: value for key, value in row.get("args", {}).items() if key != "External id"}
    nested.write_text(json.dumps(content))
    job = lumos.read(nested)
    graph = build(job)
    found = drawing({"run": measured(graph)}, members(graph), "ProfilerStep#0", {}, job)
    assert chains(found["runs"][0]["tasks"], found["around"], found["names"])["gemm"] == [AROUND["gemm"]]


def test_only_device_work_was_launched_by_an_operator(recorded):
    trace = recorded[0].traces[0]
    names = [trace.strings[i] for i in trace.name]
    rows = np.array([names.index("gemm"), names.index("cudaLaunchKernel")])
    assert launched_by(trace, rows, np.flatnonzero(trace.named(lambda n: "aten::" in n))).tolist() == [names.index("aten::mm"), -1]
