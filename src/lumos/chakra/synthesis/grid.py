"""The ranks of a set as a grid of tensor, data and pipeline parallelism, and its structure on a grid of another size.

Ranks count through one axis after the other, the innermost first. Which axis is which follows from the communicators and the messages:
messages go along the pipeline alone, and the members of a communicator are all that share their places on the axes that it does not span.
Ranks at the same place modulo the old size run the same program.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations, product
from math import prod
from typing import TYPE_CHECKING

import msgspec

from lumos.chakra.synthesis.model import SetProgram, SetStructure
from lumos.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

TENSOR, DATA, PIPELINE = "tp", "dp", "pp"
#: The axes from the innermost to the outermost, as most frameworks order them.
AXES = (TENSOR, DATA, PIPELINE)


@dataclass(frozen=True, slots=True)
class Grid:
    """axes: from the innermost. size: how many ranks lie along each."""

    axes: tuple[str, ...]
    size: tuple[int, ...]

    def place(self, rank: int) -> tuple[int, ...]:
        """Where a rank lies on each axis."""
        out = []
        for size in self.size:
            rank, at = divmod(rank, size)
            out.append(at)
        return tuple(out)

    def rank(self, place: Sequence[int]) -> int:
        """The rank that lies there."""
        out = 0
        for size, at in zip(reversed(self.size), reversed(place), strict=True):
            out = out * size + at
        return out


def grid_of(structure: SetStructure, size: Mapping[str, int]) -> Grid:
    """The grid of a structure whose axes have these sizes, 1 where none is given. UsageError where its communication fits no such grid."""
    world = len(structure.of_rank)
    sizes = {axis: size.get(axis, 1) for axis in AXES}
    product_ = " × ".join(f"{axis} {n}" for axis, n in sizes.items())
    if prod(sizes.values()) != world:
        raise UsageError(f"{product_}: a set of {world} ranks was learned from; give the size of every axis in which it is parallel")
    for axes in permutations(AXES):
        grid = Grid(axes, tuple(sizes[axis] for axis in axes))
        if _fits(structure, grid):
            return grid
    raise UsageError(f"{product_}: the communicators or the messages of the set of {world} ranks do not run along such axes")


def _fits(structure: SetStructure, grid: Grid) -> bool:
    """Whether communicators span whole axes (of the pipeline some stages) and messages keep to the pipeline."""
    stages = grid.axes.index(PIPELINE)
    for group in structure.groups:
        spans = _spans(grid, group)
        if prod(map(len, spans)) != len(group):
            return False
        if any(1 < len(span) < size for i, (span, size) in enumerate(zip(spans, grid.size, strict=True)) if i != stages):
            return False
    return all(
        here[:stages] + here[stages + 1 :] == there[:stages] + there[stages + 1 :]
        for rank, peers in enumerate(_peers(structure))
        for here, there in ((grid.place(rank), grid.place(rank + distance)) for distance in peers)
    )


def _peers(structure: SetStructure) -> Iterator[set[int]]:
    """For each rank the distances to the ranks that it exchanges messages with."""
    of_program = [{row[4] for row in program.comm if row[3] < 0} for program in structure.programs]
    return (of_program[p] for p in structure.of_rank)


def _spans(grid: Grid, ranks: Sequence[int]) -> list[tuple[int, ...]]:
    """On each axis the places of some ranks."""
    return [tuple(sorted(set(axis))) for axis in zip(*map(grid.place, ranks), strict=True)]


def with_axes(structure: SetStructure, grid: Grid, size: Mapping[str, int]) -> SetStructure:
    """The structure with other sizes of the axes but the pipeline's, whose stages differ in what they run."""
    new = Grid(grid.axes, tuple(size.get(axis, 1) for axis in grid.axes))
    if new == grid:
        return structure
    groups: dict[tuple[int, ...], int] = {}
    programs: dict[SetProgram, int] = {}
    of_rank = []
    for rank in range(prod(new.size)):
        place = new.place(rank)
        source = grid.rank([at % old for at, old in zip(place, grid.size, strict=True)])
        program = structure.programs[structure.of_rank[source]]
        number = {g: groups.setdefault(_members(structure.groups[g], grid, new, place), len(groups)) for g in _used(program)}
        comm = tuple(_moved(row, source, rank, place, grid, new, number) for row in program.comm)
        of_rank.append(programs.setdefault(msgspec.structs.replace(program, comm=comm), len(programs)))
    return SetStructure(tuple(programs), tuple(of_rank), tuple(groups))


def _used(program: SetProgram) -> list[int]:
    """The communicators that a program uses, in the order of their first use."""
    return list(dict.fromkeys(row[3] for row in program.comm if row[3] >= 0))


def _members(group: Sequence[int], grid: Grid, new: Grid, place: Sequence[int]) -> tuple[int, ...]:
    """The members of a communicator on the new grid, for the rank at `place`."""
    spans = []
    for axis, span, old, size, at in zip(grid.axes, _spans(grid, group), grid.size, new.size, place, strict=True):
        whole = axis != PIPELINE and len(span) == old > 1
        spans.append(range(size) if whole else span if axis == PIPELINE else (at,))
    return tuple(sorted(new.rank(found) for found in product(*spans)))


def _moved(
    row: tuple[int, ...], source: int, rank: int, place: tuple[int, ...], grid: Grid, new: Grid, number: Mapping[int, int]
) -> tuple[int, ...]:
    """A row of `SetProgram.comm` with the communicator, or the distance to the peer, of the new grid."""
    node, type_, size, group, distance, tag, kind = row
    if group >= 0:
        return (node, type_, size, number[group], distance, tag, kind)
    stage = grid.axes.index(PIPELINE)
    there = (*place[:stage], grid.place(source + distance)[stage], *place[stage + 1 :])
    return (node, type_, size, group, new.rank(there) - rank, tag, kind)
