"""Recorded jobs small enough to check by hand, as profiler files."""

import pytest
from tests.drawn_rank import DrawnRank
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
            world = {"rank": rank, "world_size": len(lengths) or 2}
            paths.append(_ahead(of_rank).write(tmp_path / f"ahead{rank}.json", distributedInfo=world))
        return paths

    return write


def _ahead(lengths):
    rank = DrawnRank()
    for i, length in enumerate(lengths):
        number = {"External id": 1 + i}
        rank.step(i, 10 * i, 10)
        rank.operator("aten::mm", 10 * i, 10, **number)
        rank.call("cudaLaunchKernel", 10 * i + 2, 2, ("gemm_kernel", 10 + sum(lengths[:i]), length), **number)
    return rank


@pytest.fixture
def nested(tmp_path):
    """Write the profiler file of a rank whose operators are nested (µs):

    thread 1   ProfilerStep#0     0–200
                 aten::linear     0–100
                   aten::mm       10–60, with cudaLaunchKernel from 20 to 25
                 aten::add        120–150
    stream 7   gemm               30–90, launched by aten::mm
    """
    rank = DrawnRank()
    rank.step(0, 0, 200)
    rank.operator("aten::linear", 0, 100, **{"External id": 4})
    rank.operator("aten::mm", 10, 50, **{"External id": 5, "Input Dims": [[8, 16], [16, 4]]})
    rank.call("cudaLaunchKernel", 20, 5, ("gemm", 30, 60), **{"External id": 5})
    rank.operator("aten::add", 120, 30, **{"External id": 6})
    return rank.write(tmp_path / "nested.json")


@pytest.fixture
def hostile():
    return HOSTILE
