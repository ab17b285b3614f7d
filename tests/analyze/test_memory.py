from __future__ import annotations

from lumos.analyze.memory import memory_curves
from lumos.trace.table import Category


def row(time, device_type, device, allocated, reserved):
    args = {"Device Type": device_type, "Device Id": device, "Total Allocated": allocated, "Total Reserved": reserved}
    return (Category.MEMORY, "[memory]", 0, time, 0, args)


def test_one_curve_a_device_in_the_order_of_time(record):
    trace = record(row(20, 1, 0, 300, 512), row(10, 1, 0, 100, 512), row(15, 0, -1, 7, 0), row(30, 1, 0, 50, 512))
    cpu, gpu = memory_curves(trace)
    assert (cpu.name, cpu.peak_bytes) == ("CPU", 7)
    assert (gpu.name, gpu.time.tolist(), gpu.allocated.tolist(), gpu.peak_bytes) == ("device 0", [10, 20, 30], [100, 300, 50], 300)


def test_without_memory_rows_there_is_no_curve(record):
    assert memory_curves(record((Category.OPERATOR, "op", 0, 0, 1))) == ()
