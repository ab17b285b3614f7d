"""Which operators of a script belong to the parts that it compiled, and which of those nothing needs.

A call of a compiled function is a range of the record. Its backward pass is no range: it is the nodes that share a number with an
operator of the range, and what runs inside them, a forward pass run again included. A compiler drops an operator whose results nothing
reads; a script that runs operator by operator does not, as where checkpointing runs a whole layer again. So the record is read backwards:
an operator is needed where it makes or changes memory that a needed operator reads later, that is communicated later, or that the script
has still when the range is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lumos.emulation.device.launch import results_of, tensors_of
from lumos.emulation.record import REGION_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lumos.emulation.record import Operator, Process

class Region(NamedTuple):
    """A call of a compiled function: the place of its mark, and whether it is the backward pass of that call."""

    mark: int
    backward: bool


def compiled(process: Process) -> dict[int, Region]:
    """The region of every operator that belongs to a compiled range, or to the backward pass of one."""
    found: dict[int, Region] = {}
    marks = [(i, mark) for i, mark in enumerate(process.marks) if mark.name.startswith(REGION_PREFIX)]
    if not marks:
        return found
    forward: dict[tuple[int, int], int] = {}
    for i, operator, place in _inside(process, [(mark.thread, mark.begin, mark.end, i) for i, mark in marks]):
        found[i] = Region(place, False)
        if operator.sequence >= 0 and operator.forward_thread < 0:
            forward.setdefault((operator.thread, operator.sequence), place)
    nodes = [
        (each.thread, each.begin, each.end, forward[each.forward_thread, each.sequence])
        for each in process.operators
        if each.forward_thread >= 0 and (each.forward_thread, each.sequence) in forward
    ]
    for i, _, place in _inside(process, nodes):
        found.setdefault(i, Region(place, True))
    return found


def _inside(process: Process, spans: Iterable[tuple[int, int, int, int]]) -> list[tuple[int, Operator, int]]:
    """The operators in spans of threads, with what the innermost span of each carries. spans: thread, begin, end, and that."""
    every = [(thread, begin, -end, -1, place) for thread, begin, end, place in spans]
    every += [(each.thread, each.begin, -each.end, i, -1) for i, each in enumerate(process.operators)]
    found: list[tuple[int, Operator, int]] = []
    open_: list[tuple[int, int, int]] = []  # thread, end, and what the span carries
    for thread, begin, end, i, place in sorted(every):
        while open_ and (open_[-1][0] != thread or open_[-1][1] < begin):
            open_.pop()
        if i < 0:
            open_.append((thread, -end, place))
        elif open_:
            found.append((i, process.operators[i], open_[-1][2]))
    return found


def gives_back(process: Process) -> Callable[[Region, int], bool]:
    """Whether the script has a storage still when a region is over: after the range of a forward pass, and at the end of the record for a
    backward pass, whose end has no mark."""
    freed = {each.storage: each.position for each in process.allocations if each.bytes <= 0}

    def given(region: Region, storage: int) -> bool:
        return storage not in freed or (not region.backward and freed[storage] > process.marks[region.mark].end)

    return given


def unneeded(process: Process, working: Iterable[int], regions: Mapping[int, Region]) -> set[int]:
    """The operators that a compiler drops, by their index. working: those that launch anything."""
    given_back = gives_back(process)
    moments = [(process.operators[i].begin, i) for i in working]
    moments += [(exchange.begin, -1 - i) for i, exchange in enumerate(process.exchanges)]
    read: set[int] = set()
    dropped: set[int] = set()
    for _, i in sorted(moments, reverse=True):
        if i < 0:
            read.update(process.exchanges[-1 - i].storages)
            continue
        operator = process.operators[i]
        made = {tensor.storage for tensor in results_of(operator)}
        if i in regions and made and read.isdisjoint(made) and not any(given_back(regions[i], storage) for storage in made):
            dropped.add(i)
        else:
            read.update(tensor.storage for tensor in tensors_of(operator.inputs))
    return dropped
