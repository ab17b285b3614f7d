"""Recorded jobs small enough to check by hand, as profiler files."""

import json

import pytest
from tests.steps_alike import write_rank

#: A name that would run as a script if a page read it as markup.
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=2'><b>bold</b>"


@pytest.fixture
def trace(tmp_path):
    """Write a profiler file of a rank, of which operators and kernels have a name."""

    def write(name="gemm_kernel", **words):
        return write_rank(tmp_path, operator=f"aten::{name}", kernel=name, **words)

    return write


@pytest.fixture
def ahead(tmp_path):
    """Write the profiler files of ranks whose CPU runs ahead of their devices. By default two ranks of three steps (µs):

    thread 1            step i, an operator and its launch, 10i to 10i+10
    stream 7 of rank 0  kernels 10–40 | 40–70 | 70–100
    stream 7 of rank 1  kernels 10–30 | 30–50 | 50–70

    lengths: how long the kernel of each step runs, by rank.
    """

    def write(*lengths):
        paths = []
        for rank, of_rank in enumerate(lengths or ((30, 30, 30), (20, 20, 20))):
            header = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": len(lengths) or 2}}
            paths.append(tmp_path / f"ahead{rank}.json")
            paths[-1].write_text(json.dumps({**header, "traceEvents": _ahead(of_rank)}))
        return paths

    return write


def _ahead(lengths):
    found = []
    for i, length in enumerate(lengths):
        own = {"correlation": 1 + i, "External id": 1 + i}
        shared = {"ph": "X", "pid": 1, "tid": 1, "ts": 10 * i}
        kernel = {"pid": 0, "tid": 7, "ts": 10 + sum(lengths[:i]), "dur": length, "args": {**own, "device": 0, "stream": 7}}
        found += [
            {**shared, "cat": "user_annotation", "name": f"ProfilerStep#{i}", "dur": 10},
            {**shared, "cat": "cpu_op", "name": "aten::mm", "dur": 10, "args": {"External id": 1 + i}},
            {**shared, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 10 * i + 2, "dur": 2, "args": own},
            {"ph": "X", "cat": "kernel", "name": "gemm_kernel", **kernel},
        ]
    return found


@pytest.fixture
def nested(tmp_path):
    """Write the profiler file of a rank whose operators are nested (µs):

    thread 1   ProfilerStep#0     0–200
                 aten::linear     0–100
                   aten::mm       10–60, with cudaLaunchKernel from 20 to 25
                 aten::add        120–150
    stream 7   gemm               30–90, launched by aten::mm
    """
    own, call = {"ph": "X", "pid": 1, "tid": 1}, {"correlation": 1, "External id": 5}
    rows = [
        {**own, "cat": "user_annotation", "name": "ProfilerStep#0", "ts": 0, "dur": 200},
        {**own, "cat": "cpu_op", "name": "aten::linear", "ts": 0, "dur": 100, "args": {"External id": 4}},
        {**own, "cat": "cpu_op", "name": "aten::mm", "ts": 10, "dur": 50, "args": {"External id": 5, "Input Dims": [[8, 16], [16, 4]]}},
        {**own, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 20, "dur": 5, "args": call},
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 30, "dur": 60, "args": {**call, "stream": 7, "device": 0}},
        {**own, "cat": "cpu_op", "name": "aten::add", "ts": 120, "dur": 30, "args": {"External id": 6}},
    ]
    path = tmp_path / "nested.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    return path


@pytest.fixture
def hostile():
    return HOSTILE
