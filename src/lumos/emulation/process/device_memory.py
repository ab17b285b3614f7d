"""The questions that a script asks about the memory of its device, as the emulated accelerator would answer them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumos.emulation.record import CallKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.emulation.process.settings import Device
    from lumos.emulation.process.streams import Streams

#: What torch's allocator counts in bytes and what it counts in blocks, each for all memory and by the size of the requests.
_IN_BYTES = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes", "inactive_split_bytes")
_IN_BLOCKS = ("allocation", "segment", "active", "inactive_split")
_POOLS = ("all", "large_pool", "small_pool")
_NOTHING = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}


def answers(device: Device, in_use: Callable[[], tuple[int, int]], streams: Streams) -> dict[str, Any]:
    """Functions of torch.cuda.memory by their names. in_use: bytes allocated now and at most. Summaries and single figures that are not
    here follow in torch's own code from `memory_stats_as_nested_dict`."""

    def statistics(*_: Any, **__: Any) -> dict[str, Any]:
        return _statistics(*in_use())

    return {
        "memory_stats_as_nested_dict": statistics,
        "host_memory_stats_as_nested_dict": dict,
        "empty_cache": lambda: streams.call(CallKind.EMPTY_CACHE),
        "mem_get_info": lambda *_: (device.memory - in_use()[0], device.memory),
        "memory_snapshot": lambda *_, **__: [],
        "get_allocator_backend": lambda: "native",
        "get_per_process_memory_fraction": lambda *_: 1.0,
        "_snapshot": lambda *_, **__: {"segments": [], "device_traces": []},
        **dict.fromkeys(_WITHOUT_ANSWER, _nothing),
    }


def _statistics(now: int, peak: int) -> dict[str, Any]:
    """What torch.cuda.memory_stats flattens. Memory counts as reserved while it is allocated, and all of it as in large blocks."""
    used = {"current": now, "peak": peak, "allocated": peak, "freed": peak - now}
    filled = {kind: dict.fromkeys(_POOLS, used) | {"small_pool": _NOTHING} for kind in _IN_BYTES[:-1]}
    empty = {kind: dict.fromkeys(_POOLS, _NOTHING) for kind in (_IN_BYTES[-1], *_IN_BLOCKS)}
    once = {"oversize_allocations": _NOTHING, "oversize_segments": _NOTHING, "num_alloc_retries": 0, "num_ooms": 0}
    return filled | empty | once


def _nothing(*_: Any, **__: Any) -> None:
    pass


#: Functions that change how memory is kept or what is noted of it, none of which the emulated device does.
_WITHOUT_ANSWER = (
    "reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached", "reset_accumulated_memory_stats",
    "reset_peak_host_memory_stats", "reset_accumulated_host_memory_stats", "set_per_process_memory_fraction", "ipc_collect",
    "_record_memory_history", "_dump_snapshot", "_set_allocator_settings",
)  # fmt: skip
