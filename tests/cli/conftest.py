"""Profiler files small enough to check by hand."""

import json
from functools import partial

import pytest
from tests.steps_alike import write_rank


@pytest.fixture
def trace(tmp_path):
    """Write a profiler file of a rank."""
    return partial(write_rank, tmp_path)


@pytest.fixture
def interrupted(trace):
    """A profiler file of five steps. Before the fourth Python pauses for 2000 µs, so that its period is 3000 µs, the others' 1000 µs."""
    path = trace(steps=5)
    recorded = json.loads(path.read_text())
    for row in recorded["traceEvents"]:
        row["ts"] += 2000 if row["ts"] >= 3000 else 0
    path.write_text(json.dumps(recorded))
    return path
