"""PyTorch's caching allocator of device memory, as arithmetic: how much it reserves for what a script takes, and when that is too much.

Memory is asked of the driver in segments and lent in blocks, each rounded up to 512 bytes. What is given back joins its free neighbours
of the same segment and is lent again on the same stream, the smallest block that is large enough first. Where the driver has no segment
left, those that are free as a whole go back to it, and then the request fails.

    up to 1 MiB       blocks of a segment of 2 MiB, among small blocks only
    up to 10 MiB      blocks of a segment of 20 MiB
    above             a segment of its own, a multiple of 2 MiB; a rest of more than 1 MiB is split off

With expandable segments there is one for each stream and size class, of which pages of 2 or 20 MiB are taken and given back, and every
rest is split off (c10/cuda/CUDACachingAllocator.cpp and c10/core/AllocatorConfig.h of torch 2.13). Limits: pages go back from the end of
such a segment only; no other option counts.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_MIB = 1 << 20
_BLOCK, _SMALL, _SMALL_SEGMENT, _LARGE_SEGMENT, _OWN_SEGMENT, _ROUND = 512, _MIB, 2 * _MIB, 20 * _MIB, 10 * _MIB, 2 * _MIB
_FIRST_ADDRESS = 0x7F0000000000
#: What is counted of blocks and of segments, each in all and by the size of the requests: now, at most, taken and given back so far.
_COUNTED = (
    "allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes", "inactive_split_bytes", "allocation", "segment", "active",
    "inactive_split",
)  # fmt: skip
#: Of a block that the script has, and of one that is not free.
_LENT, _ACTIVE = ("allocated_bytes", "allocation"), ("active_bytes", "active", "requested_bytes")
_FIGURES = ("current", "peak", "allocated", "freed")


class NoRoomError(Exception):
    """The device has no room for a request; the text is torch's."""


class MemoryBlock:
    """A part of a segment. requested: bytes that were asked for; -1 where it is free. made: who asked, as the caller says. awaited: it was
    given back while another stream uses it."""

    __slots__ = ("address", "awaited", "made", "requested", "segment", "size")

    def __init__(self, segment: Segment, address: int, size: int) -> None:
        self.segment, self.address, self.size = segment, address, size
        self.requested, self.made = -1, None  # type: int, Any
        self.awaited = False


class Segment:
    """Memory that the driver lent, for one stream. blocks: by their addresses."""

    def __init__(self, address: int, size: int, stream: int, is_small: bool) -> None:
        self.address, self.size, self.stream, self.is_small = address, size, stream, is_small
        self.page = _SMALL_SEGMENT if is_small else _LARGE_SEGMENT
        self.blocks = [MemoryBlock(self, address, size)]

    def place(self, block: MemoryBlock) -> int:
        """The place of a block among all."""
        return bisect.bisect_left(self.blocks, block.address, key=lambda other: other.address)

    def cut(self, block: MemoryBlock, size: int) -> MemoryBlock:
        """Let a block keep `size` bytes, and the next one begin there; returns that one."""
        rest = MemoryBlock(self, block.address + size, block.size - size)
        self.blocks.insert(self.place(block) + 1, rest)
        block.size = size
        return rest


class CachingAllocator:
    """The allocator of one device. memory: bytes of the device; outside: of them, those that the process holds beside PyTorch's. variable:
    with torch's options, for the message. share: of the memory that the script lets PyTorch have. noted: called with what happens, as a
    snapshot names it, the block and bytes. synchronise: called before memory goes back to the driver, so that all work is done."""

    def __init__(self, memory: int, outside: int, expandable: bool = False, variable: str = "PYTORCH_ALLOC_CONF") -> None:
        self.memory, self.outside, self.expandable, self._variable = memory, outside, expandable, variable
        self.share = 1.0
        self.segments: list[Segment] = []
        self.noted: Callable[[str, MemoryBlock, int], None] = lambda *_: None
        self.synchronise: Callable[[], None] = lambda: None
        self._retries = self._failures = 0
        self._free: dict[tuple[int, bool], list[tuple[int, int, MemoryBlock]]] = {}
        self._counts = {name: {pool: [0, 0, 0, 0] for pool in ("all", "large_pool", "small_pool")} for name in _COUNTED}
        self._next = _FIRST_ADDRESS

    @property
    def allocated(self) -> int:
        return self._counts["allocated_bytes"]["all"][0]

    @property
    def reserved(self) -> int:
        return self._counts["reserved_bytes"]["all"][0]

    @property
    def free(self) -> int:
        """Bytes that the driver still has."""
        return self.memory - self.outside - self.reserved

    def take(self, requested: int, stream: int) -> MemoryBlock:
        """A block for a request of so many bytes. Raises NoRoomError where the device has none."""
        size = max(_BLOCK, -(-requested // _BLOCK) * _BLOCK)
        is_small = size <= _SMALL
        free = self._free.setdefault((stream, is_small), [])
        position = bisect.bisect_left(free, (size, 0))
        block = free[position][2] if position < len(free) else self._more(size, stream, is_small)
        if block is None:
            self.empty()
            self._retries += 1
            block = self._more(size, stream, is_small)
        if block is None:
            self._failures += 1
            raise NoRoomError(self._message(size))
        self._leave(block)
        rest = block.size - size
        if rest >= _BLOCK if is_small or self.expandable else rest > _SMALL:
            self._enter(block.segment.cut(block, size))
        block.requested = requested
        for count in (*_LENT, *_ACTIVE):
            self._count(block, count, 1)
        self.noted("alloc", block, requested)
        return block

    def give(self, block: MemoryBlock, awaited: bool = False) -> None:
        """Take a block back. awaited: another stream uses it, so that it is lent again only after `reuse`."""
        for count in _LENT:
            self._count(block, count, -1)
        self.noted("free_requested", block, block.requested)
        block.awaited = awaited
        if not awaited:
            self.reuse(block)

    def reuse(self, block: MemoryBlock) -> None:
        """Let a block that was given back be lent again."""
        for count in _ACTIVE:
            self._count(block, count, -1)
        self.noted("free_completed", block, block.requested)
        block.requested, block.made, block.awaited = -1, None, False
        blocks, position = block.segment.blocks, block.segment.place(block)
        first = position - (position > 0 and blocks[position - 1].requested < 0)
        joined = blocks[first : position + 1 + (blocks[position + 1 : position + 2] != [] and blocks[position + 1].requested < 0)]
        for part in joined:
            if part is not block:
                self._leave(part)
        joined[0].size = sum(part.size for part in joined)
        del blocks[first + 1 : first + len(joined)]
        self._enter(joined[0])

    def empty(self) -> None:
        """Return what is free as a whole to the driver (`empty_cache`): segments, or the pages at the end of an expandable one."""
        self.synchronise()
        for segment in list(self.segments):
            last = segment.blocks[-1]
            length = last.size if len(segment.blocks) == 1 else last.size // segment.page * segment.page if self.expandable else 0
            if last.requested >= 0 or not length:
                continue
            self._leave(last)
            self.noted("segment_free", last, length)
            self._reserve(segment, -length, -1 if length == segment.size else 0)
            if not segment.size:
                self.segments.remove(segment)
            elif length < last.size:
                last.size -= length
                self._enter(last)
            else:
                segment.blocks.pop()

    def reset(self, *figures: str) -> None:
        """Let peaks be what there is now, and sums begin anew, of the figures that are named."""
        for counters in (counts for pools in self._counts.values() for counts in pools.values()):
            for name in figures:
                counters[_FIGURES.index(name)] = counters[0] if name == "peak" else 0

    def statistics(self) -> dict[str, Any]:
        """What `torch.cuda.memory_stats` flattens."""
        counted = {
            name: {pool: dict(zip(_FIGURES, counts, strict=True)) for pool, counts in pools.items()} for name, pools in self._counts.items()
        }
        segments, none = counted["segment"]["all"], dict.fromkeys(_FIGURES, 0)
        return counted | {
            "num_alloc_retries": self._retries, "num_ooms": self._failures, "num_sync_all_streams": self._retries, "num_oom_rejections": 0,
            "num_device_alloc": segments["allocated"], "num_device_free": segments["freed"], "max_split_size": -1,
            "oversize_allocations": none, "oversize_segments": none,
        }  # fmt: skip

    def _more(self, size: int, stream: int, is_small: bool) -> MemoryBlock | None:
        """A free block of memory that the driver lends; None where it has none."""
        of_kind = (segment for segment in self.segments if self.expandable and (segment.stream, segment.is_small) == (stream, is_small))
        one = next(of_kind, None)
        page = _SMALL_SEGMENT if is_small else _LARGE_SEGMENT
        at_hand = one.blocks[-1].size if one is not None and one.blocks[-1].requested < 0 else 0
        step = page if self.expandable or size < _OWN_SEGMENT else _ROUND
        length = -(-(size - at_hand) // step) * step
        if length > self.free or self.reserved + length > self.share * self.memory:
            return None
        if one is None:
            one = Segment(self._next, 0, stream, is_small)
            self._next += -(-(self.memory if self.expandable else length) // _ROUND) * _ROUND
            self.segments.append(one)
        elif at_hand:
            self._leave(one.blocks[-1])
        else:
            one.cut(one.blocks[-1], one.blocks[-1].size)
        self._reserve(one, length, 0 if one.size else 1)
        last = one.blocks[-1]
        last.size += length
        self.noted("segment_alloc", last, length)
        self._enter(last)
        return last

    def _enter(self, block: MemoryBlock) -> None:
        segment = block.segment
        bisect.insort(self._free.setdefault((segment.stream, segment.is_small), []), (block.size, block.address, block))
        self._inactive(block, 1)

    def _leave(self, block: MemoryBlock) -> None:
        free = self._free[block.segment.stream, block.segment.is_small]
        del free[bisect.bisect_left(free, (block.size, block.address))]
        self._inactive(block, -1)

    def _count(self, block: MemoryBlock, name: str, sign: int) -> None:
        size = block.requested if name == "requested_bytes" else block.size if name.endswith("bytes") else 1
        self._add(name, block.segment, sign * size)

    def _inactive(self, block: MemoryBlock, sign: int) -> None:
        if len(block.segment.blocks) > 1 and not self.expandable:
            self._add("inactive_split_bytes", block.segment, sign * block.size)
            self._add("inactive_split", block.segment, sign)

    def _reserve(self, segment: Segment, length: int, segments: int) -> None:
        segment.size += length
        self._add("reserved_bytes", segment, length)
        self._add("segment", segment, segments)

    def _add(self, name: str, segment: Segment, change: int) -> None:
        for pool in ("all", "small_pool" if segment.is_small else "large_pool"):
            counts = self._counts[name][pool]
            counts[0] += change
            counts[1] = max(counts[1], counts[0])
            counts[2 if change > 0 else 3] += abs(change)

    def _message(self, size: int) -> str:
        """What torch says (c10/cuda/CUDACachingAllocator.cpp, malloc)."""
        allowed = f"{said(round(self.share * self.memory))} allowed; " if self.share < 1 else ""
        return (
            f"CUDA out of memory. Tried to allocate {said(size)}. GPU 0 has a total capacity of {said(self.memory)} of which "
            f"{said(self.free)} is free. Including non-PyTorch memory, this process has {said(self.reserved + self.outside)} memory in "
            f"use. {allowed}Of the allocated memory {said(self.allocated)} is allocated by PyTorch, and "
            f"{said(self.reserved - self.allocated)} is reserved by PyTorch but unallocated. If reserved but unallocated memory is large "
            f"try setting {self._variable}=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  "
            "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
        )


def said(size: int) -> str:
    """A number of bytes as torch writes it: "1.50 GiB"."""
    if size <= 1 << 10:
        return f"{size} bytes"
    unit, power = ("KiB", 10) if size <= 1 << 20 else ("MiB", 20) if size <= 1 << 30 else ("GiB", 30)
    return f"{size / (1 << power):.2f} {unit}"
