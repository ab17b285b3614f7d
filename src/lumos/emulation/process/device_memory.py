"""The questions that a script asks about the memory of its device, answered from the emulated allocator."""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumos.emulation.process.allocator import CachingAllocator
from lumos.emulation.process.script import is_of_lumos
from lumos.emulation.process.settings import SNAPSHOTS
from lumos.emulation.process.versions import TORCH_VERSION

if TYPE_CHECKING:
    from types import FrameType

    from lumos.emulation.process.allocator import MemoryBlock
    from lumos.emulation.process.journal import Journal
    from lumos.emulation.process.settings import Device, EmulationSettings

#: The variables with the allocator's options, the one that counts first.
_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_EXPANDABLE = "expandable_segments:True"
_RESETS = ("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached")
#: Frames that a snapshot has of a call.
_DEEPEST = 64


def allocator_of(device: Device) -> CachingAllocator:
    """The allocator of a device, with expandable segments where the environment asks for them; of a host's processors, without a limit."""
    options = next((os.environ[name] for name in _VARIABLES if name in os.environ), "")
    return CachingAllocator(device.memory or sys.maxsize, device.outside, _EXPANDABLE in options, _VARIABLES[TORCH_VERSION < (2, 9)])


class DeviceMemory:
    """What torch.cuda.memory tells of an allocator, and its history where the script asks for one."""

    def __init__(self, allocator: CachingAllocator, settings: EmulationSettings, journal: Journal) -> None:
        self._allocator, self._settings, self._journal = allocator, settings, journal
        self._history: deque[dict[str, Any]] | None = None

    def answers(self) -> dict[str, Any]:
        """Functions of torch.cuda.memory by their names. Summaries and single figures that are not here follow in torch's own code from
        `memory_stats_as_nested_dict`."""
        allocator = self._allocator

        def set_share(fraction: float, *_: Any, **__: Any) -> None:
            allocator.share = fraction

        def set_options(env: str) -> None:
            if not allocator.segments:  # torch refuses it later
                allocator.expandable = _EXPANDABLE in env

        return {
            "memory_stats_as_nested_dict": lambda *_, **__: allocator.statistics(), "host_memory_stats_as_nested_dict": dict,
            "empty_cache": allocator.empty, "mem_get_info": lambda *_, **__: (allocator.free, allocator.memory),
            "get_allocator_backend": lambda: "native", "get_per_process_memory_fraction": lambda *_, **__: allocator.share,
            "set_per_process_memory_fraction": set_share, "_set_allocator_settings": set_options,
            "memory_snapshot": lambda *_, **__: self._snapshot()["segments"], "_snapshot": lambda *_, **__: self._snapshot(),
            "_dump_snapshot": self._dump, "_record_memory_history": self._record,
            **dict.fromkeys(_RESETS, lambda *_, **__: allocator.reset("peak")),
            "reset_accumulated_memory_stats": lambda *_, **__: allocator.reset("allocated", "freed"),
            **dict.fromkeys(("reset_peak_host_memory_stats", "reset_accumulated_host_memory_stats", "ipc_collect"), _nothing),
        }  # fmt: skip

    def _record(self, enabled: Any = "all", *_: Any, max_entries: int = sys.maxsize, **__: Any) -> None:
        self._history = deque(maxlen=min(int(max_entries), sys.maxsize)) if enabled else None
        self._allocator.noted = self._note if enabled else _nothing

    def _note(self, action: str, block: MemoryBlock, size: int) -> None:
        if action == "alloc":
            block.made = _frames()
        if self._history is not None:
            self._history.append({
                "action": action, "addr": block.address, "size": size, "stream": block.segment.stream, "time_us": time.time_ns() // 1000,
                "frames": block.made or [], "compile_context": "N/A", "user_metadata": "",
            })  # fmt: skip

    def _snapshot(self) -> dict[str, Any]:
        """The form of torch.cuda.memory._snapshot."""
        return {
            "segments": [
                {
                    "device": 0, "address": segment.address, "total_size": segment.size, "stream": segment.stream,
                    "allocated_size": sum(block.size for block in segment.blocks if block.requested >= 0 and not block.awaited),
                    "active_size": sum(block.size for block in segment.blocks if block.requested >= 0),
                    "requested_size": sum(max(0, block.requested) for block in segment.blocks),
                    "segment_type": "small" if segment.is_small else "large", "segment_pool_id": (0, 0),
                    "is_expandable": self._allocator.expandable, "frames": [],
                    "blocks": [
                        {
                            "address": block.address, "size": block.size, "requested_size": max(0, block.requested),
                            "state": "inactive" if block.requested < 0 else "active_awaiting_free" if block.awaited else "active_allocated",
                            "frames": block.made or [],
                        }
                        for block in segment.blocks
                    ],
                }
                for segment in self._allocator.segments
            ],
            "device_traces": [list(self._history or ())],
            "allocator_settings": {"expandable_segments": self._allocator.expandable},
            "external_annotations": [],
        }  # fmt: skip

    def _dump(self, filename: Any = "dump_snapshot.pickle", *_: Any, **__: Any) -> None:
        """A snapshot is an answer, and so it is kept: beside the traces, under a name with the rank."""
        name = f"rank{self._settings.rank}.{Path(os.fsdecode(filename)).name}"
        folder = Path(self._settings.file).parent / SNAPSHOTS
        self._journal.assume("snapshot-kept", f"the snapshot of the device's memory that the script makes is {name}, beside the traces")
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(pickle.dumps(self._snapshot()))


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _frames() -> list[dict[str, Any]]:
    """The calls that lead here, the innermost first, without Lumos' own."""
    frames: list[dict[str, Any]] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and len(frames) < _DEEPEST:
        if not is_of_lumos(frame.f_code.co_filename):
            frames.append({"filename": frame.f_code.co_filename, "line": frame.f_lineno, "name": frame.f_code.co_name})
        frame = frame.f_back
    return frames
