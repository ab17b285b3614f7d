"""Memory: the tensors of one rank."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from lumos.proxy.benchmark.recording import Node, slots
from lumos.proxy.benchmark.schemas import SMALL_SIZE, scaled

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The bound in trace.json of floating point values that must not be negative.
NON_NEGATIVE = 2


class Memory:
    """The tensors of one rank: filled with random values where the step reads them first, otherwise what operators return.

    share: whether tensors of one type share memory and what operators return is discarded. This needs less memory, and caches
    then hold more of the step than in the recording. scale: factor on every size above SMALL_SIZE.
    """

    def __init__(self, rank: dict[str, Any], device: torch.device) -> None:
        self.raw, self.storages = rank["tensors"], rank["storages"]
        self.on_accelerator = rank["on_accelerator"]
        self.device = device
        self.share, self.scale = False, 1.0
        self.slots: list[torch.Tensor | None] = [None] * len(self.raw)
        self._buffers: dict[Any, torch.Tensor] = {}
        self._needed: dict[Any, int] = {}
        self.reset(False, 1.0)

    def reset(self, share: bool, scale: float) -> None:
        self.share, self.scale = share, scale
        self._buffers, self._needed = {}, {}
        for slot in range(len(self.raw)):
            key = self._key(slot)
            self._needed[key] = max(self._needed.get(key, 1), self._extent(slot))

    def _layout(self, slot: int) -> tuple[list[int], list[int], int]:
        _, shape, strides, offset, _ = self.raw[slot]
        if self.scale == 1 and not self.share:
            return shape, strides, offset
        if self.scale == 1:
            return shape, strides, 0
        sizes = [scaled(size, self.scale) for size in shape]
        steps, step = [0] * len(sizes), 1
        for axis in sorted(range(len(sizes)), key=lambda a: (strides[a], -a)):  # the recorded order of the axes, packed
            if strides[axis]:
                steps[axis], step = step, step * sizes[axis]
        return sizes, steps, 0

    def _extent(self, slot: int) -> int:
        shape, strides, offset = self._layout(slot)
        return 0 if 0 in shape else offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))

    def _key(self, slot: int) -> Any:
        dtype, *_, storage = self.raw[slot]
        _, device, bound = self.storages[storage]
        return (dtype, device, bound) if self.share else (dtype, storage)

    def device_of(self, slot: int) -> torch.device:
        recorded = self.storages[self.raw[slot][-1]][1]
        return torch.device("cpu") if recorded == "cpu" and self.on_accelerator else self.device

    def working_on(self, node: Node) -> torch.device:
        """The device of an operator's tensors: the host only if all of them are in host memory."""
        devices = {self.device_of(slot) for slot in slots(node.inputs)}
        return devices.pop() if len(devices) == 1 else self.device

    def nbytes(self, slot: int) -> int:
        return int(self._extent(slot) * getattr(torch, self.raw[slot][0]).itemsize)

    def planned(self, slots: set[int]) -> int:
        """Bytes on the device of tensors with random values for these slots."""
        keys = {self._key(slot): slot for slot in slots if self.device_of(slot) == self.device}
        return sum(self._needed[key] * getattr(torch, self.raw[slot][0]).itemsize for key, slot in keys.items())

    def leaf(self, slot: int) -> torch.Tensor:
        """A tensor of random values for a slot."""
        key = self._key(slot)
        shape, strides, offset = self._layout(slot)
        if key not in self._buffers:
            bound = self.storages[self.raw[slot][-1]][2]
            if self.scale != 1 and bound > SMALL_SIZE:
                bound = scaled(bound, self.scale)
            last = shape[-1] if shape else 1
            self._buffers[key] = values(self._needed[key], getattr(torch, self.raw[slot][0]), bound, last, self.device_of(slot))
        buffer = self._buffers[key]
        tensor = torch.empty(0, dtype=buffer.dtype, device=buffer.device)
        tensor.set_(buffer.untyped_storage(), offset, shape, strides)  # not a view, because some operators refuse views
        self.slots[slot] = tensor
        return tensor

    def get(self, slot: int) -> torch.Tensor:
        tensor = self.slots[slot]
        return self.leaf(slot) if tensor is None else tensor


def values(count: int, dtype: torch.dtype, bound: int, last: int, device: torch.device) -> torch.Tensor:
    """Random values. Floats are small enough for matrix products to keep their magnitude; integers are in [0, bound), or ascend
    from 0 to -bound where the bound is negative."""
    if dtype == torch.bool:
        return torch.ones(count, dtype=dtype, device=device)
    if not dtype.is_floating_point and not dtype.is_complex:
        if bound < 0:
            return torch.linspace(0, -bound, count + 1, device=device)[:-1].to(dtype)
        zeros = torch.zeros(count, dtype=dtype, device=device)
        return zeros.random_(0, bound) if bound > 1 else zeros
    out = torch.empty(count, dtype=dtype, device=device)
    drawn = min(count, 1 << 20)  # large tensors repeat these values, because drawing all of them would take minutes
    sample = torch.randn(drawn, device=device) / math.sqrt(max(last, 1))
    sample = (sample.abs() if bound == NON_NEGATIVE else sample).to(dtype)
    for begin in range(0, count, drawn):
        out[begin : begin + drawn] = sample[: count - begin]
    return out


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)
