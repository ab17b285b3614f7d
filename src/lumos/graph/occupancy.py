"""How much of a device's streaming multiprocessors (SMs) each kernel takes, and until when.

All streams of a device share its SMs. A kernel's blocks are placed on them as slots become free, and no block of another
kernel is placed while this kernel still has blocks to place. So a kernel of many waves holds other streams back until its
last wave has begun, and one that does not fill the SMs lets others run beside it. A communication kernel has few blocks, which find a
place beside those of other kernels: it neither holds others back nor is held back itself. Everything is computed from the launch
configuration (grid, block, registers, shared memory) and the device's limits: not from measured overlap, and not from the profiler's
own estimate of occupancy, which can be 0.

The last wave begins one wave before the kernel's end where all blocks take equally long. Where they do not, all blocks may be placed long
before the end, and the configuration does not say when. Measured starts can refute the rule: where a kernel of another stream began while
blocks were still to be placed, kernels of that name and configuration hold nothing back, wherever they run. They wait
for others all the same.

Residency follows the CUDA occupancy calculator (CUDA C++ Programming Guide, "Compute Capabilities"): blocks per SM are
limited by threads, registers (allocated per warp in units of 256), shared memory (1 KiB reserved per block) and 32 slots.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.graph.lists import numbered
from lumos.graph.table import Occupancy
from lumos.trace.table import ABSENT, Category, Int32, Int64, Trace, unique

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from lumos.graph.launches import DeviceWork

#: Limits of an SM where the trace has no device properties: those of compute capability 8.0.
DEFAULT_LIMITS = {"maxThreadsPerMultiprocessor": 2048, "regsPerMultiprocessor": 65536, "sharedMemPerMultiprocessor": 167936}
MOST_BLOCKS = 32
REGISTER_UNIT = 256
RESERVED_SHARED = 1024
#: A start so many waves before the last one begins refutes the hold; the blocks of a wave do not end all at once.
EARLY_WAVES = 2.0
#: Nor does a start refute it that is up to so much earlier than that (ns): kernels take some us to end and to start.
EARLY = 10_000


def occupancy(trace: Trace, work: DeviceWork, first_task: int) -> Occupancy | None:
    """Share and hold of every kernel with a known launch configuration; None where streams never share a device.

    Entry i of `work` is task first_task + i. The hold is the part of the kernel's duration before its last wave: the whole
    duration where one wave suffices (the share is then at most 1), else 1 - 1/waves of it; nothing where it is refuted.
    """
    if len(work.streams) < 2:
        return None
    kernels = np.flatnonzero((trace.category[work.row] == Category.KERNEL) & ~work.communicates)
    rows = work.row[kernels]
    blocks, threads = launch_size(trace, "grid")[rows], launch_size(trace, "block")[rows]
    registers = trace.dense("registers per thread")[rows]
    shared = trace.dense("shared memory", 0)[rows]
    known = (blocks > 0) & (threads > 0) & (registers > 0)
    if not known.any():
        return None
    kernels, rows = kernels[known], rows[known]
    device = np.array([d for d, _ in work.streams])[work.stream[kernels]]
    multiprocessors, resident = _capacity(trace, rows, device, blocks[known], threads[known], registers[known], shared[known])
    able = multiprocessors > 0
    kernels, blocks, device = kernels[able], blocks[known][able], device[able]
    waves = blocks / (multiprocessors[able] * resident[able])
    shape = numbered(trace.name[work.row[kernels]], blocks, threads[known][able])
    refuted = np.isin(shape, shape[_refuted(work, kernels, device, waves)])
    duration = np.where(refuted, 0, (work.end - work.start)[kernels])
    return Occupancy(
        task=(first_task + kernels).astype(np.int32),
        share=np.minimum(waves, 1.0).astype(np.float32),
        hold=np.where(waves > 1, duration * (1 - 1 / np.maximum(waves, 1)), duration).astype(np.int64),
    )


def _refuted(work: DeviceWork, kernels: Int64, device: Int64, waves: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which kernels of several waves another stream's kernel began beside, after the first wave and well before the last: bool[kernels]."""
    wave = (work.end - work.start)[kernels] / np.maximum(waves, 1)
    out = np.zeros(len(kernels), bool)
    for number in unique(device).tolist():
        here = np.flatnonzero(device == number)
        for stream in unique(work.stream[kernels[here]]).tolist():
            mine = here[work.stream[kernels[here]] == stream]
            others = np.sort(work.start[kernels[here[work.stream[kernels[here]] != stream]]])
            since, until = work.start[kernels[mine]] + wave[mine], work.end[kernels[mine]] - (1 + EARLY_WAVES) * wave[mine] - EARLY
            out[mine] = np.searchsorted(others, since, "right") < np.searchsorted(others, until, "left")
    return out & (waves > 1)


def _capacity(
    trace: Trace, rows: Int32, device: Int64, blocks: Int64, threads: Int64, registers: Int64, shared: Int64
) -> tuple[Int64, Int64]:
    """SMs of each kernel's device (0 unknown) and blocks of the kernel that one SM holds (at least 1)."""
    properties: dict[int, Mapping[str, Any]] = {listed["id"]: listed for listed in trace.devices if "id" in listed}
    devices, of_device = np.unique(device, return_inverse=True)
    limits = [{**DEFAULT_LIMITS, "numSms": 0, **properties.get(d, {})} for d in devices.tolist()]

    def limit(key: str) -> Int64:
        return np.array([int(device_limits[key]) for device_limits in limits], np.int64)[of_device]

    count = limit("numSms")
    if (count == 0).any():
        per_sm = _number(trace, "blocks per SM")[rows]
        derived = np.where(per_sm > 0, np.rint(blocks / np.where(per_sm > 0, per_sm, 1)), 0).astype(np.int64)
        count = np.where(count == 0, derived, count)
    warps = -(-threads // 32)
    per_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    resident = np.minimum.reduce(
        [
            limit("maxThreadsPerMultiprocessor") // (warps * 32),
            limit("regsPerMultiprocessor") // (warps * per_warp),
            limit("sharedMemPerMultiprocessor") // (np.maximum(shared, 0) + RESERVED_SHARED),
            np.full(len(rows), MOST_BLOCKS, np.int64),
        ]
    )
    return count, np.maximum(resident, 1)


def launch_size(trace: Trace, key: str) -> Int64:
    """Product of a three-number argument such as grid [8,1,4]; ABSENT where a row lacks it."""
    out = np.full(len(trace), ABSENT, np.int64)
    column = trace.args.get(key)
    if column is None or column.kind != "string":
        return out
    texts, of_row = np.unique(column.values, return_inverse=True)
    out[column.rows] = np.array([_dimensions(trace.strings[int(i)]) for i in texts], np.int64)[of_row]
    return out


def _dimensions(text: str) -> int:
    numbers = re.findall(r"\d+", text)
    return int(np.prod([int(n) for n in numbers], dtype=object)) if 1 <= len(numbers) <= 3 else ABSENT


def _number(trace: Trace, key: str) -> Any:
    """A numeric argument as float64, NaN where a row lacks it."""
    out = np.full(len(trace), np.nan)
    column = trace.args.get(key)
    if column is not None:
        values = column.values
        out[column.rows] = [float(trace.strings[v]) for v in values] if column.kind == "string" else values
    return out
