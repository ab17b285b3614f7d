"""Rows of a trace: found by name and by category, and left out."""

import json

import numpy as np
import pytest

from lumos.trace import read


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
