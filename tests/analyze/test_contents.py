from lumos.analyze.contents import contents, memory_curves
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


def row(time, device_type, device, allocated, reserved):
    args = {"Device Type": device_type, "Device Id": device, "Total Allocated": allocated, "Total Reserved": reserved}
    return (Category.MEMORY, "[memory]", 0, time, 0, args)


def test_one_curve_a_device_in_the_order_of_time(record):
    trace = record(row(20, 1, 0, 300, 512), row(10, 1, 0, 100, 512), row(15, 0, -1, 7, 0), row(30, 1, 0, 50, 512))
    cpu, gpu = memory_curves(trace)
    assert (cpu.name, cpu.peak_bytes) == ("CPU", 7)
    assert (gpu.name, gpu.time.tolist(), gpu.allocated.tolist(), gpu.peak_bytes) == ("device 0", [10, 20, 30], [100, 300, 50], 300)
