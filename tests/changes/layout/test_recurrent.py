"""Recurrent layers under other sizes: kernel by kernel in a drawn recording, and as a whole where one kernel runs all steps."""

from __future__ import annotations

import json
from math import sqrt

import numpy as np
import pytest

from lumos import load_cluster
from lumos.changes.layout.measured_layout import measured_layout
from lumos.changes.layout.recurrent import once_a_step, whole_factor
from lumos.changes.layout.resize import resize
from lumos.cost.gemm_model import gemm
from lumos.graph.build import build
from lumos.graph.table import Dependency, Kind
from lumos.operators.shaped import ShapedOperator
from lumos.segment.segment import segment
from lumos.trace import read

#: Tokens, states, and weights of two layers, as cuDNN's operators list them.
SHAPES = ((64, 35, 1024), (2, 64, 1024), (2, 64, 1024), (4096, 1024), (4096, 1024), (4096,), (4096,))

TABLE = ("aten::embedding", [[5000, 256], [32, 4]], [("lookup", 4)])
PRODUCT, AT_ONCE, GATES = "sgemm_of_a_step", "sgemm_at_once", "gates_elementwise"
#: Four steps of 32 sequences: the product of the inputs, then a product and the gates in every step. Kernels with their us.
LSTM = (
    "aten::_cudnn_rnn",
    [[32, 4, 256], [[1, 32, 256], [1, 32, 256]], [[1024, 256], [1024, 256], [1024], [1024]]],
    [(AT_ONCE, 50), *[(PRODUCT, 20), (GATES, 6)] * 4],
)


@pytest.fixture
def layout(tmp_path):
    """The recording of TABLE and LSTM: every launch takes 1 us and follows 1 us after the last, an operator ends 1 us after its last."""
    events, at, free, correlation = [], 1000, 1000, 0
    for number, (name, dims, kernels) in enumerate((TABLE, LSTM), 1):
        types = ["TensorList" if d and isinstance(d[0], list) else "float" for d in dims]
        begin = at
        for kernel, us in kernels:
            correlation += 1
            at += 2
            free = max(free, at + 3) + 1
            call = {"correlation": correlation, "External id": number}
            events.append({"cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1, "ts": at - 1, "dur": 1, "args": call})
            events.append({"cat": "kernel", "name": kernel, "tid": 7, "ts": free, "dur": us, "args": {**call, "device": 0, "stream": 7}})
            free += us
        at += 1
        args = {"External id": number, "Input Dims": dims, "Input type": types}
        events.append({"cat": "cpu_op", "name": name, "tid": 1, "ts": begin, "dur": at - begin, "args": args})
    path = tmp_path / "rank0.json"
    rows = [{"ph": "X", "pid": 0, **e} for e in events]
    path.write_text(json.dumps({"deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}], "traceEvents": rows}))
    job = read(str(path))
    return measured_layout(segment(build(job), job)), job


def grown(layout, **wanted):
    """The kernels and CPU tasks of the recurrent layers by name, and by what their time is multiplied."""
    changed = resize(*layout, load_cluster("a100-40gb").accelerator, **wanted)
    graph = changed.segmentation.graph
    return graph, {
        name: set(changed.prices.best[graph.name == i].round(6).tolist())
        for i, name in enumerate(graph.names)
        if name != "cudaLaunchKernel"
    }


def model(rows, columns, depth):
    return int(gemm(rows, columns, depth, load_cluster("a100-40gb").accelerator, "fp32", cast=False).time)


def test_twice_the_steps_repeat_the_kernels_of_a_step_with_their_gaps(layout):
    graph, factor = grown(layout, seq=8)
    gap_us = graph.lag[0, Dependency.STREAM_ORDER] / 1000
    assert gap_us == 1
    assert factor[PRODUCT] == {(2 * 20 + gap_us) / 20}
    assert factor[GATES] == {round((2 * 6 + gap_us) / 6, 6)}
    assert factor[AT_ONCE] == {round(model(256, 1024, 256) / model(128, 1024, 256), 6)}


def test_twice_the_steps_launch_twice_as_often(layout):
    changed = resize(*layout, load_cluster("a100-40gb").accelerator, seq=8)
    graph = changed.segmentation.graph
    launches = np.flatnonzero(graph.kind == Kind.LAUNCH)
    assert changed.prices.best[launches].tolist() == [1, 1, *[2] * 8]  # of the look-up, of the inputs, of the steps
    assert set(changed.prices.best[graph.name == graph.names.index("aten::_cudnn_rnn")].tolist()) == {2}


def test_four_times_the_batch_is_four_times_the_gates_beyond_a_kernels_fixed_time(layout):
    _, factor = grown(layout, micro_batch=128)
    assert factor[GATES] == {round((2 + 4 * (6 - 2)) / 6, 6)}
    # 32 rows leave processors idle: the mean of the model and of the bytes, (128 · 1280 + 1024 · 256) of (32 · 1280 + 1024 · 256)
    assert factor[PRODUCT] == {round(sqrt(model(128, 1024, 256) / model(32, 1024, 256) * 425_984 / 303_104), 6)}
    assert factor[AT_ONCE] == {round(model(512, 1024, 256) / model(128, 1024, 256), 6)}


def test_twice_the_width_is_twice_the_columns_of_the_gates_and_twice_their_depth(layout):
    _, factor = grown(layout, hidden=512)
    assert factor[PRODUCT] == {round(model(32, 2048, 512) / model(32, 1024, 256), 6)}
    assert factor[AT_ONCE] == {round(model(128, 2048, 512) / model(128, 1024, 256), 6)}


def test_kernels_of_a_step_are_those_that_are_launched_for_every_step():
    # a call of four steps and two layers: kernel 0 for every step of both, kernel 1 once a layer, kernel 2 twice a layer
    names = np.array([0] * 8 + [1] * 2 + [2] * 4)
    calls, steps = np.full(len(names), 77), np.full(len(names), 4)
    found = once_a_step(names, calls, steps)
    assert found.tolist() == [True] * 8 + [False] * 2 + [True] * 4  # four launches in four steps: the count alone cannot tell


def whole(name, steps=35, rows=64):
    before, after = (
        ShapedOperator(name, ((of_rows, of_steps, 1024), *((2, of_rows, 1024),) * 2, *SHAPES[3:]), ("float",) * len(SHAPES), False)
        for of_rows, of_steps in ((64, 35), (rows, steps))
    )
    return whole_factor(before, after, load_cluster("a100-40gb").accelerator)


@pytest.mark.parametrize("name", ["aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"])
def test_twice_the_steps_take_a_kernel_of_all_steps_twice_as_long(name):
    found = whole(name, steps=70)
    assert found.best == pytest.approx(2, rel=0.03)
    assert found.fixed == 0


@pytest.mark.parametrize("name", ["aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"])
def test_half_the_batch_makes_a_kernel_of_all_steps_hardly_shorter(name):
    # 64 rows fit into one tile as 32 do; the multiplication of all inputs at once takes half as long
    assert 0.6 < whole(name, rows=32).best < 0.97
