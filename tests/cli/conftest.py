"""The command line, run as a user does; and profiler files small enough to check by hand."""

from __future__ import annotations

import json
import sys
from typing import NamedTuple

import pytest


class Done(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def lumos(monkeypatch, capfd):
    """Run `lumos ARGUMENTS…`."""

    def run(*arguments):
        from lumos.cli import fitting, main

        monkeypatch.setattr(fitting, "_error_width", lambda: None)  # messages as a pipe gets them, each in one line
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys, "argv", ["lumos", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capfd.readouterr()
        return Done(left.value.code or 0, out, err)

    return run


def rows(steps=2, per_step=60, long=None):
    """Kineto rows of a rank: every step (1000 µs) has equally many operators, launches and kernels, and one all-reduce.

    Before the step `long`, if any, the loop pauses for 2000 µs. A step is complete 601 µs after it began, with its last kernel: operator i
    of a step runs 10i–10i+8 µs and launches at 10i+2–10i+4; its kernel runs 10i+5–10i+11 on stream 7, so that each waits for the one
    before it by 1 µs.
    """
    found = []
    for step in range(steps):
        zero = 1000 * step + (2000 if long is not None and step >= long else 0)
        found.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1, "ts": zero, "dur": 1000})
        for i in range(per_step):
            correlation, at = 1 + step * per_step + i, zero + 10 * i
            queue = {"device": 0, "stream": 7}
            args = {"correlation": correlation, "External id": correlation}
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL" if i == 3 else "gemm_kernel"
            op = {"External id": correlation, "Input Dims": [[8, 4], [4, 2]]}
            found += [
                {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": at, "dur": 8, "args": op},
                {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": at + 2, "dur": 2, "args": args},
                {
                    "ph": "X",
                    "cat": "kernel",
                    "name": name,
                    "pid": 0,
                    "tid": 7,
                    "ts": at + 5,
                    "dur": 6,
                    "args": {**args, **queue},
                },
            ]
    return found


@pytest.fixture
def trace(tmp_path):
    """Write a profiler file of a rank."""

    def write(name="rank0.json", rank=0, world=1, **shape):
        path = tmp_path / name
        header = {
            "schemaVersion": 1,
            "distributedInfo": {"rank": rank, "world_size": world},
            "deviceProperties": [{"id": 0, "name": "H100"}],
        }
        path.write_text(json.dumps({**header, "traceEvents": rows(**shape)}))
        return path

    return write


@pytest.fixture
def interrupted(trace):
    """A profiler file of five steps. Before the fourth Python pauses for 2000 µs, so that its period is 3000 µs, the others' 1000 µs."""
    path = trace(steps=5)
    recorded = json.loads(path.read_text())
    for row in recorded["traceEvents"]:
        row["ts"] += 2000 if row["ts"] >= 3000 else 0
    path.write_text(json.dumps(recorded))
    return path
