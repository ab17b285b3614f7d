"""Kernels drawn by hand: equal work during a collective and alone."""

from dataclasses import replace

import pytest

from lumos.analyze.collectives import interference
from lumos.trace.table import Category


@pytest.fixture
def traced(record):
    """A trace of a collective on stream 9 (0–1000 µs, in µs) and of kernels on stream 7: (name, start, duration, {changes})."""

    def build(*kernels, collective=(0, 1000, 0)):
        start, length, device = collective
        rows = [(Category.KERNEL, "ncclDevKernel_AllReduce", 2, start * 1000, length * 1000, {"stream": 9, "device": device})]
        for i, (name, at, time, *changes) in enumerate(kernels):
            facts = {"grid": "[8,1,1]", "block": "[64,1,1]", "shared memory": 0, "device": 0, "stream": 7, "dims": "[[8,4]]", "lane": 1}
            facts |= changes[0] if changes else {}
            dims, lane = facts.pop("dims"), facts.pop("lane")
            shapes = {"Input Dims": dims} if dims else {}
            rows.append((Category.OPERATOR, "aten::mm", 0, 10 * i, 8, shapes))
            rows.append((Category.RUNTIME, "cudaLaunchKernel", 0, 10 * i + 2, 2, {"correlation": i}))
            rows.append((Category.KERNEL, name, lane, at * 1000, time * 1000, {**facts, "correlation": i}))
        return record(*rows)

    return build


ALONE = [("gemm", 2000 + 100 * i, 20) for i in range(3)]


def test_by_hand(traced):
    """Inside: 30 and 26 µs; alone 20 each: 56 against 40. An elementwise kernel inside, 5 µs, alone 4."""
    trace = traced(
        ("gemm", 100, 30), ("gemm", 200, 26), *ALONE, ("elementwise", 300, 5), *(("elementwise", 3000 + 10 * i, 4) for i in range(3))
    )
    everything, gemm, elementwise = interference([trace])
    assert gemm == ("gemm", 2, 56_000, 40_000, 1.4)
    assert elementwise == ("elementwise", 1, 5000, 4000, 1.25)
    assert everything == ("all classes", 3, 61_000, 44_000, 61 / 44)
    assert interference([trace, trace])[1] == ("gemm", 4, 112_000, 80_000, 1.4)


@pytest.mark.parametrize("other", [{"dims": "[[16,4]]"}, {"grid": "[16,1,1]"}, {"block": "[128,1,1]"}, {"shared memory": 64}], ids=str)
def test_other_work_is_not_compared(traced, other):
    assert interference([traced(("gemm", 100, 30, other), *ALONE)]) == ()


def test_ranks_are_compared_where_their_devices_are_alike(traced):
    """Rank 0 ran it inside a collective, rank 1 alone; on H100 both, then one of them on an A100."""

    def on(name, *kernels):
        return replace(traced(*kernels), metadata={"deviceProperties": [{"id": 0, "name": name}]})

    inside, alone = ("gemm", 100, 30), on("H100", *ALONE)
    assert interference([on("H100", inside), alone])[1] == ("gemm", 1, 30_000, 20_000, 1.5)
    assert interference([on("A100", inside), alone]) == ()


@pytest.mark.parametrize(
    "kernels",
    [
        [("gemm", 100, 30, {"dims": ""}), *((*k, {"dims": ""}) for k in ALONE)],
        [("gemm", 100, 30, {"dims": "[[],[]]"}), *((*k, {"dims": "[[],[]]"}) for k in ALONE)],
        [("gemm", 100, 30), *ALONE[:2]],
        [("gemm", 980, 30), *ALONE],
        [("gemm", 100, 30), *((name, at, 20 + 10 * i) for i, (name, at, _) in enumerate(ALONE))],
        [("gemm", 100, 30, {"device": 1}), *((*k, {"device": 1}) for k in ALONE)],
        [("gemm", 100, 30, {"lane": 2}), *((*k, {"lane": 2}) for k in ALONE)],
        ALONE,
    ],
    ids=["no shapes", "empty shapes", "two alone", "half inside", "unsteady alone", "another device", "the same stream", "none inside"],
)
def test_nothing_is_said_without_evidence(traced, kernels):
    assert interference([traced(*kernels)]) == ()
