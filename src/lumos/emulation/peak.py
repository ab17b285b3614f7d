"""The most memory that a process has allocated on its device, and how much more it may be.

The record has what PyTorch's allocator gave. On the CPU, oneDNN's recurrent layers take memory for themselves: weights in another
layout, scratch, and what a layer keeps for its backward pass. The emulation measured it, and the record has it, except of layers that
were too large to be run for it. With those the peak has an interval: its upper end lets each such call take as much again as all its
operands and results, a layer's until its backward pass is done. The
copies of sums and of convolutions, which follow from shapes, are in the record too; what other kernels take for a moment is not.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from lumos.emulation.device.launch import nbytes, tensors_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumos.emulation.record import Operator, Process

_FORWARD, _BACKWARD = "aten::mkldnn_rnn_layer", "aten::mkldnn_rnn_layer_backward"


class Peak(NamedTuple):
    """bytes: the most that was allocated. high_bytes: with the memory that kernels may have taken for themselves. unknown: the names of
    the operators of such kernels."""

    bytes: int
    high_bytes: int
    unknown: tuple[str, ...]


def peak(process: Process, begin: int = 0) -> Peak:
    """The peak of a process from the reading `begin` of its counter on, beyond what was allocated then."""
    taking = [each for each in process.operators if each.name in (_FORWARD, _BACKWARD) and each.begin >= begin]
    own = [(each.position, each.bytes) for each in process.allocations if each.position >= begin]
    lent = sorted(each.position for each in process.allocations if not each.storage)
    known = [_between(lent, each.begin, each.end) for each in taking]
    unknown = {each.name for each, measured in zip(taking, known, strict=True) if not measured}
    return Peak(_highest(own), _highest([*own, *_workspaces(taking, known)]), tuple(sorted(unknown)))


def _between(positions: Sequence[int], begin: int, end: int) -> bool:
    """Whether one of the ascending positions lies in an interval."""
    place = bisect_left(positions, begin)
    return place < len(positions) and positions[place] <= end


def _highest(changes: Sequence[tuple[int, int]]) -> int:
    now = most = 0
    for _, change in sorted(changes, key=lambda each: each[0]):
        now += change
        most = max(most, now)
    return most


def _workspaces(taking: Sequence[Operator], known: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """When kernels may take memory and give it back, and how much: nothing where the record has it. The layer that ran last goes back
    first."""
    kept: list[int] = []
    for operator, measured in zip(taking, known, strict=True):
        size = 0 if measured else sum(map(nbytes, (*tensors_of(operator.inputs), *tensors_of(operator.outputs))))
        yield operator.begin, size
        if operator.name == _FORWARD:
            kept.append(size)
        else:
            yield operator.end, -size - (kept.pop() if kept else 0)
