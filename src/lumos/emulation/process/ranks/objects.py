"""Objects that ranks tell each other: what one rank tells the others is left in a file for those that run beside it or later.

The rank that tells may be none of those that run. So the first one that tells as many ranks for the n-th time stands for all that do, and
where none has, and where all tell all, an object is this rank's own, as in a job whose ranks do the same.
"""

from __future__ import annotations

import os
import pickle
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from lumos.emulation.process.settings import EmulationSettings

#: Rank 0 runs beside the last one, which waits so long for it.
_PATIENCE_S = 120.0
_PAUSE_S = 0.01
_sleep = time.sleep


def leave_message(file: Path, message: bytes) -> None:
    """Leave a message for other processes, which is there as a whole or not at all."""
    file.parent.mkdir(exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_bytes(message)
    partial.replace(file)


def awaited_message(file: Path, patience_s: float) -> bytes | None:
    """The message of another process; None where none came."""
    until = time.monotonic() + patience_s
    while not file.exists() and time.monotonic() < until:
        _sleep(_PAUSE_S)
    return file.read_bytes() if file.exists() else None


def objects(settings: EmulationSettings) -> dict[str, Any]:
    """What takes the place of torch.distributed's functions for objects."""
    folder, counts = Path(settings.file).parent / "objects", Counter[int]()

    def told(own: Any, src: int | None, group: Any, place: int | None) -> Any:
        """What the root tells. A file is empty where that is nothing that another process can have, such as a tensor without data."""
        size = torch.distributed.get_world_size(group)
        counts[size] += 1
        file = folder / f"{size}-{counts[size]}.object"
        root = torch.distributed.get_global_rank(group, place or 0) if src is None and group is not None else src or place or 0
        if root == settings.rank:
            try:
                leave_message(file, pickle.dumps(own))
            except (pickle.PicklingError, TypeError, AttributeError, RuntimeError):
                leave_message(file, b"")
            return own
        said = awaited_message(file, 0.0 if root else _PATIENCE_S)
        return pickle.loads(said) if said else own

    def broadcast(objects: list[Any], src: int | None = None, group: Any = None, _: Any = None, group_src: int | None = None) -> None:
        objects[:] = told(objects, src, group, group_src)

    def scatter(
        output: list[Any], values: Any = None, src: int | None = None, group: Any = None, group_src: int | None = None
    ) -> None:  # fmt: skip
        every = told(values, src, group, group_src) or [None]
        output[0] = every[min(torch.distributed.get_rank(group), len(every) - 1)]

    def all_gather(objects: list[Any], value: Any, group: Any = None) -> None:
        objects[:] = [value] * int(torch.distributed.get_world_size(group))

    def gather(value: Any, objects: list[Any] | None = None, *_: Any, group: Any = None, **__: Any) -> None:
        if objects is not None:
            all_gather(objects, value, group)

    return {
        "all_gather_object": all_gather, "gather_object": gather, "scatter_object_list": scatter, "broadcast_object_list": broadcast,
        "send_object_list": lambda *_, **__: None, "recv_object_list": lambda *_, **__: 0,
    }  # fmt: skip
