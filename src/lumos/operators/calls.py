"""The calls of a recorded program, its operators and autograd's rows around them, and what their order says: which node of the backward
pass undoes which call, and which calls are at the same place of repeated stretches, or work on tensors that ranks share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from lumos.operators.table import OperatorKind, kind_of, own_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.operators.table import Shape

#: How the name of autograd's rows begins that stand for a node of the backward pass.
BACKWARD_NODE = "autograd::engine::evaluate_function"
#: The row in which autograd adds a gradient to that of a weight.
GATHERS = "torch::autograd::AccumulateGrad"
#: Rows on the one side of an operator, and on the other, that must be alike for two to be at the same place of a repeated stretch: many on
#: the one, since parts of a layer are alike among themselves, and some on the other, since what follows a stretch may begin as it does.
STRETCH, EDGE = 64, 12


@dataclass(frozen=True)
class OperatorCall:
    """One operator of a recording. inputs: by argument, the shapes of the tensors in it: one of a tensor, several of a list, none of
    anything else. lists: which arguments are lists. values: of the arguments, as the profiler writes them. parent: the call that it is in,
    -1 for none. sequence: autograd's number, -1 without one. forward: whether it stands in a forward pass, where the number is that of
    the next node. strides: by argument, how far apart the neighbours along each axis of a tensor lie in memory, in elements; nothing where
    the recording does not say."""

    name: str
    inputs: tuple[tuple[Shape, ...], ...]
    lists: frozenset[int]
    values: tuple[str, ...]
    parent: int
    sequence: int
    forward: bool
    strides: tuple[Shape, ...] = ()

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The shape of every input that is one tensor; () for others."""
        return tuple(of[0] if len(of) == 1 and i not in self.lists else () for i, of in enumerate(self.inputs))

    def strides_of(self, argument: int) -> Shape:
        """The strides of an input that is one tensor; () where they are not known."""
        known = self.strides[argument] if argument < len(self.strides) and argument not in self.lists else ()
        return known if len(known) == len(self.shapes[argument]) else ()


def nodes_of(calls: Sequence[OperatorCall]) -> tuple[dict[int, list[Shape]], dict[int, int], dict[int, int]]:
    """By node of the backward pass the shapes of the gradients that are added up behind it; by call the node that it made; and by node
    the call. Of the calls with a number the last one of the node's name made it, or else the last one."""
    added: dict[int, list[Shape]] = {c.sequence: [] for c in calls if c.name.startswith(BACKWARD_NODE) and c.sequence >= 0}
    for call in calls:
        parent = calls[call.parent] if call.parent >= 0 else None
        if parent is not None and parent.name.startswith(BACKWARD_NODE) and parent.sequence >= 0 and own_name(call.name) == "add":
            added[parent.sequence].append(call.shapes[0] if call.shapes else ())
    named = {
        call.sequence: _plain(call.name.removeprefix(f"{BACKWARD_NODE}: ").partition("Backward")[0])
        for call in calls
        if call.sequence in added and call.name.startswith(BACKWARD_NODE)
    }
    forward: dict[int, int] = {}
    for number, call in enumerate(calls):
        if call.forward and call.sequence in added and "Backward" not in call.name:
            known = forward.get(call.sequence)
            wanted = named[call.sequence]
            if known is None or _plain(own_name(call.name)) == wanted or _plain(own_name(calls[known].name)) != wanted:
                forward[call.sequence] = number
    return added, {number: node for node, number in forward.items()}, forward


def _plain(name: str) -> str:
    """A name as autograd and the table of operators have it in common."""
    return name.replace("_", "").lower()


def same_places(calls: Sequence[OperatorCall], around: Sequence[int]) -> list[list[int]]:
    """By call of a forward pass, earlier ones at the same place of a repeated stretch: those around which the same calls stand. A backward
    pass has the calls of a few kinds of nodes over and over. around: of `nodes_around`."""
    numbers: dict[object, int] = {}
    kinds = [numbers.setdefault((call.name, call.inputs), len(numbers)) for call in calls]
    before: dict[tuple[int, ...], int] = {}
    behind: dict[tuple[int, ...], int] = {}
    out: list[list[int]] = []
    for number in range(len(calls)):
        region = []
        for known, low, high in ((behind, number - EDGE, number + STRETCH), (before, number - STRETCH, number + EDGE)):
            if low >= 0 and high <= len(calls) and around[number] < 0:
                first = known.setdefault(tuple(kinds[low:high]), number)
                if first != number:
                    region.append(first)
        out.append(region)
    return out


def run_again(calls: Sequence[OperatorCall], around: Sequence[int]) -> dict[int, int]:
    """By call that a node of the backward pass runs again the call of the forward pass that it is: calls of the same names and inputs stand
    there one after the other. `detach` is none of either, as a checkpoint looks at tensors by it. around: of `nodes_around`."""
    kinds = [(call.name, call.inputs) for call in calls]
    forward, within, starts = list[int](), dict[int, list[int]](), dict[object, list[int]]()
    for number, call in enumerate(calls):
        if own_name(call.name) == "detach":
            continue
        if around[number] < 0 and call.parent < 0:
            starts.setdefault(kinds[number], []).append(len(forward))
            forward.append(number)
        elif around[number] >= 0 and call.parent >= 0 and not calls[call.parent].name.startswith("aten::"):
            within.setdefault(call.parent, []).append(number)
    out: dict[int, int] = {}
    for several in within.values():
        numbered = [i for i, number in enumerate(several) if calls[number].forward and calls[number].sequence >= 0]
        again = several[numbered[0] : numbered[-1] + 1] if numbered else []
        for place in starts.get(kinds[again[0]], ()) if len(again) >= EDGE else ():
            same = forward[place : place + len(again)]
            if [kinds[number] for number in same] == [kinds[number] for number in again]:
                out |= dict(zip(again, same, strict=True))
                break
    return out


def nodes_around(calls: Sequence[OperatorCall]) -> list[int]:
    """By call the innermost node of the backward pass that it is, or stands in; -1 for none."""
    out: list[int] = []
    for number, call in enumerate(calls):
        out.append(number if call.name.startswith(BACKWARD_NODE) else out[call.parent] if call.parent >= 0 else -1)
    return out


def to_be_undone(calls: Sequence[OperatorCall], around: Sequence[int], node_of: Mapping[int, int]) -> set[int]:
    """The calls of forward passes that a backward pass undoes, with the copies of data before them: what stands behind the last update in
    place, or node of a backward pass, up to the last call that made a node. around: of `nodes_around`. node_of: of `nodes_of`."""
    out: set[int] = set()
    inside = False
    for number in range(len(calls) - 1, -1, -1):
        updates = own_name(calls[number].name).endswith("_") and kind_of(calls[number].name) is not OperatorKind.COPY
        inside = number in node_of or (inside and around[number] < 0 and not updates)
        out |= {number} if inside and around[number] < 0 else set()
    return out


def whole_of_parts(calls: Sequence[OperatorCall]) -> set[int]:
    """The calls on tensors that ranks share, which hold one of the same name on this rank's parts, and those around them. One in such a
    call that holds nothing but `detach` did not run: its result was kept."""
    wholes: set[int] = set()
    runs = {call.parent for call in calls if own_name(call.name) != "detach"}
    for call in calls:
        outer = call.parent
        for _ in range(4):
            if outer < 0 or not call.name.startswith("aten::"):
                break
            other = calls[outer]
            if other.name == call.name and other.inputs != call.inputs and any(other.shapes):
                while outer >= 0 and calls[outer].name.startswith("aten::"):
                    wholes.add(outer)
                    outer = calls[outer].parent
                break
            outer = other.parent
    wholes |= {call.parent for call in calls if call.parent not in runs and call.parent >= 0 and calls[call.parent].parent in wholes}
    return wholes - {number for number, call in enumerate(calls) if not call.name.startswith("aten::")}
