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
    from collections.abc import Mapping, Sequence

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
        parts = (1 < len(span) < size for span, size in zip(spans, grid.size, strict=True))
        if prod(map(len, spans)) != len(group) or any(part for i, part in enumerate(parts) if i != stages):
            return False
    messages = ((rank, row[4]) for rank, p in enumerate(structure.of_rank) for row in structure.programs[p].comm if row[3] < 0)
    places = ((grid.place(rank), grid.place(rank + distance)) for rank, distance in set(messages))
    return all(here[:stages] + here[stages + 1 :] == there[:stages] + there[stages + 1 :] for here, there in places)


def _spans(grid: Grid, ranks: Sequence[int]) -> list[tuple[int, ...]]:
    """On each axis the places of some ranks."""
    return [tuple(sorted(set(axis))) for axis in zip(*map(grid.place, ranks), strict=True)]


def with_axes(structure: SetStructure, grid: Grid, size: Mapping[str, int]) -> SetStructure:
    """The structure with other sizes of the axes but the pipeline's, whose stages differ in what they run."""
    new = Grid(grid.axes, tuple(size.get(axis, 1) for axis in grid.axes))
    if new == grid:
        return structure
    stage = grid.axes.index(PIPELINE)
    groups: dict[tuple[int, ...], int] = {}
    programs: dict[SetProgram, int] = {}
    of_rank = []
    for rank in range(prod(new.size)):
        place = new.place(rank)
        source = grid.rank([at % old for at, old in zip(place, grid.size, strict=True)])
        program = structure.programs[structure.of_rank[source]]
        comm = []
        for node, type_, nbytes, group, distance, tag, kind in program.comm:
            if group >= 0:
                members = _members(structure.groups[group], grid, new, place)
                comm.append((node, type_, nbytes, groups.setdefault(members, len(groups)), distance, tag, kind))
            else:
                there = (*place[:stage], grid.place(source + distance)[stage], *place[stage + 1 :])
                comm.append((node, type_, nbytes, group, new.rank(there) - rank, tag, kind))
        of_rank.append(programs.setdefault(msgspec.structs.replace(program, comm=tuple(comm)), len(programs)))
    return SetStructure(tuple(programs), tuple(of_rank), tuple(groups))


def _members(group: Sequence[int], grid: Grid, new: Grid, place: Sequence[int]) -> tuple[int, ...]:
    """The members of a communicator on the new grid, for the rank at `place`."""
    spans = [
        span if axis == PIPELINE else range(size) if len(span) == old > 1 else (at,)
        for axis, span, old, size, at in zip(grid.axes, _spans(grid, group), grid.size, new.size, place, strict=True)
    ]
    return tuple(sorted(new.rank(found) for found in product(*spans)))
