"""Masks over the rows of a trace, by name and by category."""

from __future__ import annotations

import json

import pytest

from lumos.trace import read
from lumos.trace.table import FEW, Category


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


def test_names_of_rows_come_once(recorded):
    calls = recorded.is_any(Category.RUNTIME)
    assert [recorded.strings[i] for i in recorded.names_of(calls)] == ["cudaLaunchKernel"]
    assert recorded.names_of(calls.nonzero()[0][:0]) == []
