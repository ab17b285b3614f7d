"""The use of the hardware: bytes that operators and transfers move, and the most memory that the process held."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lumos.proxy.benchmark.device import cuda
from lumos.proxy.benchmark.memory import tensors

if TYPE_CHECKING:
    from lumos.proxy.benchmark.recording import Node

#: Operators that read only the rows of their first argument that an argument of integers names.
LOOK_UPS = ("aten::embedding", "aten::_embedding_bag", "aten::index_select", "aten::gather")


def moved(node: Node, arguments: list[Any], named: dict[str, Any], out: Any) -> int:
    """Bytes that an operator reads and writes if it touches every element of its arguments and of its results once.

    An operator whose result is in the memory of an argument is a view, which moves nothing, unless its name says that it writes
    there (it ends with an underscore).
    """
    read, results = ([t for t in tensors(value) if t.layout == torch.strided] for value in ([*arguments, *named.values()], out))
    memory = {tensor.untyped_storage().data_ptr() for tensor in read}
    in_place = node.name.endswith("_")
    if node.name.startswith("aten::empty") or (results and not in_place and results[0].untyped_storage().data_ptr() in memory):
        return 0
    written = results or (list(tensors(arguments[:1])) if in_place else [])
    total: int = sum(size(tensor) for tensor in (*read, *written))
    return total - unread(node, read)


def unread(node: Node, read: list[torch.Tensor]) -> int:
    """Bytes of the first argument of a look-up that no index names, at the least."""
    rows = [tensor.numel() for tensor in read[1:] if not tensor.is_floating_point()]
    if not node.name.startswith(LOOK_UPS) or "backward" in node.name or not rows or not read[0].dim():
        return 0
    named: int = max(rows) * size(read[0]) // max(read[0].shape[0], 1)
    return max(0, size(read[0]) - named)


def size(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements; those that an expanded tensor repeats count once."""
    return int(min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()))


def sent(collective: dict[str, Any]) -> int:
    """Bytes that this rank puts into a transfer, or takes from it where it only receives."""
    count = collective["elements_out"] if collective["kind"] == "receive" else collective["elements_in"]
    return int(count * getattr(torch, collective["dtype"]).itemsize)


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
