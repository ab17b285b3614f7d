"""Answers about a trace that are computed once, and kept no longer than the trace."""

import gc
import json
import weakref
from dataclasses import replace

import pytest

from lumos.segment.program import shapes_of
from lumos.segment.sizes import sizes
from lumos.trace import read


@pytest.fixture
def trace(tmp_path):
    """Two equal multiplications of [4, 8] by [8, 16]."""
    args = {"Input Dims": [[4, 8], [8, 16]], "Input type": ["float", "float"]}
    rows = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": at, "dur": 5, "args": args} for at in (0, 10)]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    return read(str(path)).traces[0]


def test_a_trace_whose_shapes_were_asked_for_does_not_stay_when_nobody_holds_it(trace):
    """pytest holds the trace of the fixture, so a copy is made."""
    copy = replace(trace)
    assert shapes_of(copy) is shapes_of(copy)
    sizes(copy)
    alive = weakref.ref(copy)
    del copy
    gc.collect()
    assert alive() is None
