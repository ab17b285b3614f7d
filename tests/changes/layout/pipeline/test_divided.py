"""A pipeline's schedule divides the gradients behind its passes, which is no part of the update.

The pipeline is that of `test_recut`, two stages of two layers. Behind the passes of a step each stage divides the gradients of its layers,
in 2 ms each, and updates all weights together in 40 ms.
"""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from tests.changes.layout.pipeline.test_recut import ONE_F_ONE_B, kernel, stage, step
from validation.machine import run
from validation.machine_trace import write_trace
from validation.program import Operator, Program

from lumos.changes.layout.change import whole_updates
from lumos.changes.layout.measured_layout import measured_layout
from lumos.graph.build import build
from lumos.graph.table import Kind
from lumos.segment.segment import segment
from lumos.trace import read

WEIGHT = [512, 512]
GATHERS, DIVIDES, UPDATES = "torch::autograd::AccumulateGrad", "aten::div_", "aten::_fused_adam_"
DIMENSIONS = {"aten::linear": [[64, 512], WEIGHT], GATHERS: [WEIGHT], DIVIDES: [WEIGHT, []], UPDATES: [[WEIGHT]]}


def dividing(number):
    """A stage that gathers a gradient in every layer's backward pass, and divides it at the end."""
    rank = stage(number, 2, ONE_F_ONE_B[number], 2)
    (actions,) = rank.threads
    out = []
    for action, following in pairwise((*actions, None)):
        name = getattr(action, "name", "")
        if name == "sgd_update":
            out += [kernel(DIVIDES, 2000), kernel(DIVIDES, 2000), Operator("Optimizer.step#Adam.step", 1), kernel(UPDATES, 40_000)]
        else:
            out.append(action)
        if name == "linear_backward" and following is not None:
            out.append(Operator(GATHERS, 1))
    return replace(rank, threads=(tuple(out),))


def recorded(tmp_path):
    """The recording, with the shapes of what it works on."""
    paths = write_trace(run(Program(tuple(dividing(number) for number in range(2))), 6), tmp_path, 3)
    for path in map(Path, paths):
        text = json.loads(path.read_text())
        for row in text["traceEvents"]:
            if row.get("cat") == "cpu_op" and row["name"] in DIMENSIONS:
                known = {"Input Dims": DIMENSIONS[row["name"]], "Input type": ["float"] * len(DIMENSIONS[row["name"]])}
                row["args"] = {**row.get("args", {}), **known}
        path.write_text(json.dumps(text))
    job = read(*paths)
    return job, build(job)


def test_an_update_of_lists_is_of_all_layers_though_their_gradients_are_divided_one_by_one(tmp_path):
    job, graph = recorded(tmp_path)
    layout = measured_layout(segment(graph, job))
    tasks = whole_updates(layout, 0)
    names = [graph.names[graph.name[task]] for task in tasks.tolist() if graph.kind[task] == Kind.KERNEL]
    assert set(names) == {f"{UPDATES} kernel"}


def test_twice_the_layers_take_twice_the_update(tmp_path):
    """Layers of 30 ms, whose gradients are divided in 2 ms each, and updates of 40 ms for every two of them."""
    found = recorded(tmp_path)
    assert 1e3 * step(found, "pp=1", "layers=8", force=True).outcome.step_time_s == pytest.approx(4 * 8 * 30 + 160 + 16, rel=0.005)
