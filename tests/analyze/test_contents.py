from __future__ import annotations

from lumos.analyze.contents import contents, unlinked
from lumos.trace.table import Category


def test_what_a_trace_holds(record):
    trace = record(
        (Category.ANNOTATION, "ProfilerStep#3", 0, 100, 50),
        (Category.OPERATOR, "aten::mm", 0, 110, 20, {"Input Dims": "[[1]]"}),
        (Category.RUNTIME, "cudaLaunchKernel", 0, 112, 5, {"correlation": 4}),
        (Category.KERNEL, "gemm", 1, 120, 80, {"correlation": 4}),
        (Category.KERNEL, "lost", 2, 190, 10, {"correlation": 9}),
        (Category.GPU_ANNOTATION, "ProfilerStep#3", 1, 120, 80),
        (Category.OVERHEAD, "Activity Buffer Request", 3, 0, 33),
        metadata={"deviceProperties": [{"name": "NVIDIA H100"}, {"id": 1}]},
    )
    found = contents(trace)
    assert (found.events, found.duration_ns, found.threads, found.streams) == (7, 100, 1, 2)
    assert [(s.name, s.duration_ns) for s in found.steps] == [("ProfilerStep#3", 50)]
    assert found.features == {
        "shapes": True,
        "sync_rows": False,
        "sequence_numbers": False,
        "call_stacks": False,
        "memory_rows": False,
        "steps": True,
    }
    assert (found.unlinked, found.first_work_gap_ns, found.overhead_ns) == (0.5, 20, 33)
    assert found.devices == ("NVIDIA H100",)
    assert found.rows["kernel"] == 2


def test_a_trace_without_device_work_has_no_unlinked_share(record):
    assert unlinked(record((Category.OPERATOR, "op", 0, 0, 1))) is None


def test_a_launch_flow_links_too(record):
    trace = record((Category.LAUNCH_FLOW_START, "ac2g", 0, 0, 0, {"correlation": 5}), (Category.KERNEL, "k", 1, 1, 1, {"correlation": 5}))
    assert unlinked(trace) == 0.0


def test_an_empty_trace_holds_nothing(record):
    found = contents(record((Category.OTHER, "x", 0, 0, 0)))
    assert (found.duration_ns, found.first_work_gap_ns, found.steps) == (0, None, ())
