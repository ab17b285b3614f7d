"""The device: waiting on it and on the processor, the memory that it has, and the most that was held."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

cuda: Any = torch.cuda


def spin_until(deadline: int) -> None:
    while time.perf_counter_ns() < deadline:
        pass


def calibrate() -> float:
    """Cycles of torch.cuda._sleep per nanosecond, measured."""
    cuda._sleep(1000)
    begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    begin.record()
    cuda._sleep(20_000_000)
    end.record()
    cuda.synchronize()
    return 20_000_000 / float(begin.elapsed_time(end) * 1e6)


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(cuda.mem_get_info()[0])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def forget_most(device: torch.device) -> None:
    """Begin again to note the most memory held."""
    if device.type == "cuda":
        cuda.reset_peak_memory_stats()
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def held(device: torch.device, field: str = "VmRSS") -> int | None:
    """Bytes of tensors on a GPU, or of the whole process in main memory, VmHWM for the most so far; None where that is unknown."""
    if device.type == "cuda":
        return int(cuda.max_memory_allocated() if field == "VmHWM" else cuda.memory_allocated())
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), None)
