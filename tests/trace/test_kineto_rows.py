"""Rows of profiler files as text."""

from __future__ import annotations

import json

from lumos.trace.kineto_rows import complete


def test_a_name_with_half_a_surrogate_pair_is_written_as_it_was_read():
    row = complete("cpu_op", 'a "b" \ud83d', 1_500, 2_750, "")
    assert row.isascii()
    assert json.loads(row) == {
        "ph": "X", "cat": "cpu_op", "name": 'a "b" \ud83d', "pid": 4000, "tid": 4001, "ts": 1.5, "dur": 1.25, "args": {}
    }  # fmt: skip
