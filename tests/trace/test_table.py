"""Rows of a trace: found by name and by category, and left out."""

import json

import numpy as np
import pytest

from lumos.trace import read
from lumos.trace.table import FEW, Category, excluding, unique


@pytest.fixture
def recorded(tmp_path):
    """Rows 0 to 2 · FEW: operators op0, op1, …, and behind each the call that it makes."""
    rows = [
        {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": 10 * i + later, "dur": 1}
        for i in range(2 * FEW)
        for later, (cat, name) in enumerate((("cpu_op", f"op{i}"), ("cuda_runtime", "cudaLaunchKernel")))
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": rows}), encoding="utf-8")
    return read(str(path)).traces[0]


@pytest.mark.parametrize("wanted", [0, 1, FEW, FEW + 1, 2 * FEW])
def test_rows_are_found_by_few_names_and_by_many(recorded, wanted):
    names = [f"op{i}" for i in range(wanted)]
    assert [recorded.strings[i] for i in recorded.name[recorded.named(names.__contains__)]] == names


def test_rows_are_found_by_category(recorded):
    assert recorded.is_any(Category.RUNTIME).tolist() == [False, True] * (2 * FEW)
    assert recorded.is_any(Category.OPERATOR, Category.RUNTIME).all()
    assert not recorded.is_any(Category.KERNEL).any()
    assert [recorded.strings[i] for i in recorded.names_of(recorded.is_any(Category.RUNTIME))] == ["cudaLaunchKernel"]  # each once


@pytest.mark.parametrize("gone", [np.array([0, 2]), np.array([True, False, True, False])])
def test_rows_are_left_out_with_what_belongs_to_them(tmp_path, gone):
    """Of four kernels on streams 1 to 4, of which all but the second have a grid, the first and the third are left out."""
    kernel = {"ph": "X", "cat": "kernel", "pid": 0}
    kernels = [
        {**kernel, "name": f"k{i}", "tid": i, "ts": 10 * i, "dur": i, "args": {"stream": i, "correlation": 10 + i}} for i in (1, 2, 3, 4)
    ]
    for i in (0, 2, 3):
        kernels[i]["args"]["grid"] = [i, 1, 1]
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": kernels}))
    trace = read(str(tmp_path)).traces[0]
    left = trace.without(gone)
    assert [left.strings[i] for i in left.name.tolist()] == ["k2", "k4"]
    assert left.duration.tolist() == [2000, 4000] and left.correlation.tolist() == [12, 14]
    assert left.dense("stream").tolist() == [2, 4]
    assert left.args["grid"].rows.tolist() == [1] and left.strings[int(left.args["grid"].values[0])] == "[3,1,1]"
    assert [left.lanes[i].tid for i in left.lane.tolist()] == ["2", "4"]
    assert len(trace) == 4


def test_values_of_columns_are_what_numpy_says():
    draw = np.random.default_rng(7).integers
    one, other, none = draw(0, 90, 200), draw(0, 90, 30), draw(0, 90, 0)
    for columns in ((one,), (one, other), (none,), (one.reshape(2, 100), none)):
        assert np.array_equal(unique(*columns), np.unique(np.concatenate([column.ravel() for column in columns])))
    for gone in (other, none, one):
        assert np.array_equal(excluding(one, gone), np.setdiff1d(one, gone))
    assert unique(np.array([2, 1], np.int32)).dtype == np.int32
