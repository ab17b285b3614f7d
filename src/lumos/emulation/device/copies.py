"""Operators that copy a tensor: between host and device, as one block of memory, or element by element into another layout or type.

A copy between host and device moves at the rate of the host's bus. The rate is that of PCI Express 5.0 with 16 lanes, 63 GB/s a
direction (PCI-SIG, PCI Express Base Specification 5.0), of which large copies reach some 85 %.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.blocks.work import Fixed, Traffic
from lumos.cost.memory_bound_model import POINTWISE
from lumos.emulation.device.elementwise import elementwise
from lumos.emulation.device.launch import DeviceEngine, Launch, nbytes, results_of, same_layout, tensors_of

if TYPE_CHECKING:
    from lumos.emulation.record import Operator

#: Bytes per second of a copy between host and device, and the ns that a copy of a few bytes takes.
HOST_BYTES_PER_S = 0.85 * 63e9
HOST_COPY_NS = 1_500
#: Operators that copy; the position of the source among their tensors, and of the target (None: the result).
_COPIES: dict[str, tuple[int, int | None]] = {
    "copy": (1, 0),
    "_to_copy": (0, None),
    "to": (0, None),
    "clone": (0, None),
    "contiguous": (0, None),
    "_copy_from": (0, 1),
    "_copy_from_and_resize": (0, 1),
}


def copy_kernels(name: str, operator: Operator) -> list[Launch] | None:
    """What a copying operator of this base name launches; None where it is none."""
    if name not in _COPIES:
        return None
    source, target = _COPIES[name]
    inputs = list(tensors_of(operator.inputs))
    results = results_of(operator)
    if source >= len(inputs) or (target is None and not results):
        return []
    a, b = inputs[source], results[0] if target is None else inputs[target]
    if target is None and operator.outputs and a.storage == b.storage:
        return []
    size = nbytes(b)
    if a.device != b.device:
        way = "HtoD (Pinned -> Device)" if a.device == "cpu" else "DtoH (Device -> Pinned)"
        return [Launch(f"Memcpy {way}", Fixed(host_copy_ns(size)), DeviceEngine.COPY)] if size else []
    if not size or b.device == "cpu":
        return []
    if a.dtype == b.dtype and same_layout(a, b) and a.stride and b.stride:
        return [Launch("Memcpy DtoD (Device -> Device)", Traffic(2 * size, 1, POINTWISE), DeviceEngine.COPY)]
    return [Launch(f"elementwise_kernel [{name}]", elementwise("copy", nbytes(a) + size, [b], [a]))]


def host_copy_ns(size: int) -> int:
    """Time of a copy of `size` bytes between host and device."""
    return HOST_COPY_NS + round(size / HOST_BYTES_PER_S * 1e9)
