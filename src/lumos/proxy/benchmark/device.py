"""The device: waiting on it and on the processor, and the memory that it has."""

from __future__ import annotations

import os
import time
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
