"""The most memory that a process has allocated on its device: when, for what, and how much room is left.

Sizes are those of the blocks of PyTorch's allocator, which the process simulated, so that they are what `torch.cuda.max_memory_allocated`
and `max_memory_reserved` would have said.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from lumos.emulation.record import MemoryKind
from lumos.vocabulary import MODULE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumos.emulation.record import Allocation, Process


class Held(NamedTuple):
    """Memory of one kind that modules of one path hold, layers of one list together ("model.layers.*.mlp"; "" outside of all)."""

    kind: MemoryKind
    module: str
    bytes: int


class Peak(NamedTuple):
    """rank: whose. allocated_bytes, reserved_bytes: the most of each. room_bytes: what PyTorch may reserve on the device, 0 without a
    limit. steps_bytes: the most allocated in the recorded steps. operator, module: what ran when the most was allocated, "" before those.
    held: what was allocated then, the most first."""

    rank: int
    allocated_bytes: int
    reserved_bytes: int
    room_bytes: int
    steps_bytes: int
    operator: str
    module: str
    held: list[Held]

    def by_kind(self) -> dict[MemoryKind, int]:
        """Bytes of each kind, the most first."""
        sizes: Counter[MemoryKind] = Counter()
        for holding in self.held:
            sizes[holding.kind] += holding.bytes
        return dict(sizes.most_common())


def peak(process: Process) -> Peak:
    """The peak of a process; of several equal ones the last."""
    changes = process.allocations
    if not changes:
        return Peak(process.rank, 0, 0, process.room, 0, "", "", [])
    highest = max(range(len(changes)), key=lambda i: (changes[i].allocated, i))
    operator, module = _running(process, changes[highest].position)
    reserved = max(change.reserved for change in changes)
    in_steps = max((change.allocated for change in changes if change.position), default=changes[-1].allocated)
    held = holdings(changes[: highest + 1], {owner.storage: (owner.kind, owner.module) for owner in process.owners})
    return Peak(process.rank, changes[highest].allocated, reserved, process.room, in_steps, operator, module, held)


def holdings(changes: Iterable[Allocation], owners: dict[int, tuple[MemoryKind, str]]) -> list[Held]:
    """What is held after some changes, by kind and module, the most first."""
    live: Counter[int] = Counter()
    for change in changes:
        live[change.storage] += change.bytes
    sizes: Counter[tuple[MemoryKind, str]] = Counter()
    for storage, size in live.items():
        if size:
            kind, module = owners.get(storage, (MemoryKind.TEMPORARY, ""))
            parts = ("*" if part.isdigit() else part for part in module.split("."))  # a star for numbers in a row
            sizes[kind, ".".join(name for name, _ in groupby(parts))] += size
    return [Held(kind, module, size) for (kind, module), size in sizes.most_common()]


def _running(process: Process, position: int) -> tuple[str, str]:
    """The innermost operator and module at a reading of the counter, "" where there is none."""
    operator = max((call for call in process.operators if call.begin <= position <= call.end), key=lambda call: call.begin, default=None)
    around = (mark for mark in process.marks if mark.name.startswith(MODULE_PREFIX) and mark.begin <= position <= mark.end)
    module = max(around, key=lambda mark: mark.begin, default=None)
    return operator.name if operator else "", module.name.removeprefix(MODULE_PREFIX) if module else ""
