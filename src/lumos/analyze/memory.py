"""Memory over time, from the profiler's [memory] rows (profile_memory=True)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lumos.trace.table import Category, Int64, Trace

#: c10::DeviceType of the CPU, as the rows give it.
CPU = 0


class MemoryCurve(NamedTuple):
    """Bytes allocated and reserved on one device after each allocation or free. Arrays of int64; time in ns."""

    device_type: int
    device: int
    time: Int64
    allocated: Int64
    reserved: Int64

    @property
    def peak_bytes(self) -> int:
        """The most that was allocated at a time."""
        return int(self.allocated.max())

    @property
    def name(self) -> str:
        return "CPU" if self.device_type == CPU else f"device {self.device}"


def memory_curves(trace: Trace) -> tuple[MemoryCurve, ...]:
    """One curve for each device that a trace has memory rows of, the devices in order; empty where it has none."""
    rows = np.flatnonzero(trace.is_any(Category.MEMORY))
    if len(rows) == 0:
        return ()
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    kind, number = trace.dense("Device Type")[rows], trace.dense("Device Id")[rows]
    allocated, reserved = trace.dense("Total Allocated")[rows], trace.dense("Total Reserved")[rows]
    curves = []
    for device_type, device in sorted(set(zip(kind.tolist(), number.tolist(), strict=True))):
        here = (kind == device_type) & (number == device) & (allocated >= 0)
        if here.any():
            curves.append(MemoryCurve(device_type, device, trace.start[rows][here], allocated[here], reserved[here]))
    return tuple(curves)
