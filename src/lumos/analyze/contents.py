"""What one trace contains, which features of a recording it lacks, and memory over time where it was recorded (profile_memory=True)."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lumos.graph.places import is_step_mark
from lumos.result import Shown
from lumos.trace.table import DEVICE_WORK, Category, Int64, Trace, unique

#: Optional features of a recording, and what is missing or worse without each.
FEATURES = {
    "shapes": "record_shapes=True: without it, no FLOP/s and no cost by shape",
    "sync_rows": "enable_cuda_sync_events: without it, waits between streams are inferred from the order of calls",
    "sequence_numbers": "a torch that writes Seq: without it, collectives of different ranks are joined by their order",
    "call_stacks": "with_stack or with_modules=True: without it, no breakdown by module",
    "memory_rows": "profile_memory=True: without it, no memory over time",
    "steps": "prof.step() in the loop: without it, the whole recording is one step",
}

#: Those of FEATURES that a recording without device work cannot have.
DEVICE_FEATURES = frozenset({"sync_rows"})


@dataclass(frozen=True, slots=True)
class StepMark:
    """A step as the profiler marked it, ns."""

    name: str
    duration_ns: int


@dataclass(frozen=True, slots=True, repr=False)
class Contents(Shown):
    """One trace. rows: number by category. features: whether it has each of FEATURES. unlinked: share of device work whose
    launch call has no row; None without device work. first_work_gap_ns: from the first row of work to the first device work, which is long
    where the profiler or the driver was starting up; None without device work. overhead_ns: the profiler's own cost, 0 where it does not
    report it."""

    path: str
    rank: int
    rank_source: str
    world_size: int | None
    events: int
    memory_bytes: int
    duration_ns: int
    rows: dict[str, int]
    threads: int
    streams: int
    devices: tuple[str, ...]
    steps: tuple[StepMark, ...]
    features: dict[str, bool]
    unlinked: float | None
    first_work_gap_ns: int | None
    overhead_ns: int
    peak_memory_bytes: dict[str, int]


def contents(trace: Trace) -> Contents:
    """Summarise one trace."""
    device = np.flatnonzero(trace.is_any(*DEVICE_WORK))
    host = trace.is_any(Category.OPERATOR, Category.RUNTIME, Category.PYTHON)
    work = np.flatnonzero(trace.is_any(Category.OPERATOR, Category.ANNOTATION, Category.RUNTIME, *DEVICE_WORK))
    start, end = trace.start[work], trace.start[work] + trace.duration[work]
    counts = np.bincount(trace.category, minlength=len(Category))
    marked = np.flatnonzero(is_step_mark(trace))  # the profiler also writes a derived copy of each mark on the device, which does not count
    marked = marked[np.argsort(trace.start[marked], kind="stable")]
    marks = tuple(StepMark(trace.strings[trace.name[row]], int(trace.duration[row])) for row in marked.tolist())
    return Contents(
        path=trace.path,
        rank=trace.rank,
        rank_source=trace.rank_source,
        world_size=trace.world_size,
        events=len(trace),
        memory_bytes=trace.nbytes,
        duration_ns=int(end.max() - start.min()) if len(work) else 0,
        rows={c.name.lower(): int(counts[c]) for c in Category if counts[c]},
        threads=len(unique(trace.lane[host])),
        streams=len(unique(trace.lane[device])),
        devices=tuple(listed["name"] for listed in trace.devices if "name" in listed),
        steps=marks,
        features={
            "shapes": "Input Dims" in trace.args,
            "sync_rows": bool(counts[Category.SYNC]),
            "sequence_numbers": "Seq" in trace.args,
            "call_stacks": bool(counts[Category.PYTHON]),
            "memory_rows": bool(counts[Category.MEMORY]),
            "steps": bool(marks),
        },
        unlinked=unlinked(trace),
        first_work_gap_ns=int(trace.start[device].min() - start.min()) if len(device) else None,
        overhead_ns=int(trace.duration[trace.is_any(Category.OVERHEAD)].sum()),
        peak_memory_bytes={curve.name: curve.peak_bytes for curve in memory_curves(trace)},
    )


def unlinked(trace: Trace) -> float | None:
    """Share of device work whose correlation id is that of no runtime call; None without device work."""
    device = np.flatnonzero(trace.is_any(*DEVICE_WORK))
    if len(device) == 0:
        return None
    calls = trace.correlation[trace.category == Category.RUNTIME]
    linked = np.isin(trace.correlation[device], calls[calls >= 0])
    return float(1 - linked.mean())


#: The number of the CPU in c10::DeviceType, which memory rows use.
_CPU = 0


class MemoryCurve(NamedTuple):
    """Bytes allocated and reserved on one device after each allocation or free. Arrays of int64; time in ns."""

    device_type: int
    device: int
    time: Int64
    allocated: Int64
    reserved: Int64

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were allocated at any time."""
        return int(self.allocated.max())

    @property
    def name(self) -> str:
        """What the memory belongs to: the CPU, or a device with its number."""
        return "CPU" if self.device_type == _CPU else f"device {self.device}"


def memory_curves(trace: Trace) -> tuple[MemoryCurve, ...]:
    """One curve for each device with memory rows in the trace, by type and number; empty where there are none."""
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
