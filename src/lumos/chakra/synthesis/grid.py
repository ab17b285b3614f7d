"""The ranks of a set as a grid of tensor, data and pipeline parallelism, and its structure on a grid of another size.

Ranks count through one axis after the other, the innermost first. Which axis is which follows from the communicators and the messages:
messages go along the pipeline alone, and the members of a communicator are all that share their places on the axes that it does not span.
Ranks at the same place modulo the old size run the same program.
"""

from __future__ import annotations

from itertools import pairwise, permutations, product
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from lumos.chakra.synthesis.model import SetStructure
from lumos.errors import UsageError
from lumos.trace.table import ABSENT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TENSOR, DATA, PIPELINE = "tp", "dp", "pp"
#: The axes from the innermost to the outermost, as most frameworks order them.
AXES = (TENSOR, DATA, PIPELINE)


class Grid(NamedTuple):
    """axes: from the innermost. size: how many ranks lie along each."""

    axes: tuple[str, ...]
    size: tuple[int, ...]

    def place(self, rank: int) -> tuple[int, ...]:
        """Where a rank lies on each axis."""
        return tuple(int(at) for at in np.unravel_index(rank, self.size, "F"))

    def rank(self, coordinates: Sequence[int]) -> int:
        """The rank that lies there."""
        return int(np.ravel_multi_index(tuple(coordinates), self.size, order="F"))


def grid_of(structure: SetStructure, size: Mapping[str, int]) -> Grid:
    """The grid of a structure whose axes have these sizes, 1 where none is given. UsageError where its communication fits no such grid."""
    world = len(structure.programs)
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
    messages = ((rank, row[4]) for rank, program in enumerate(structure.programs) for row in program.comm if row[3] < 0)
    places = ((grid.place(rank), grid.place(rank + distance)) for rank, distance in set(messages))
    return all(here[:stages] + here[stages + 1 :] == there[:stages] + there[stages + 1 :] for here, there in places)


def _spans(grid: Grid, ranks: Sequence[int]) -> list[tuple[int, ...]]:
    """On each axis the places of some ranks."""
    return [tuple(sorted(set(axis))) for axis in zip(*map(grid.place, ranks), strict=True)]


def with_axes(structure: SetStructure, grid: Grid, size: Mapping[str, int]) -> SetStructure:
    """The structure with other sizes of the axes but the pipeline's, whose stages differ in what they run."""
    whole = {group: [len(span) == old > 1 for span, old in zip(_spans(grid, group), grid.size, strict=True)] for group in structure.groups}
    new = Grid(grid.axes, tuple(size.get(axis, 1) for axis in grid.axes))
    return placed_anew(structure, grid, new, grid.axes.index(PIPELINE), whole)


def with_copies(structure: SetStructure, times: int) -> SetStructure:
    """The structure of a job with so many times the ranks. A communicator that covers all ranks, counting the distance between its members,
    spans all copies, as data parallelism does; each other one is repeated."""
    world = len(structure.programs)
    whole = {
        group: (False, group[-1] + min((b - a for a, b in pairwise(group)), default=world) - group[0] >= world)
        for group in structure.groups
    }
    one, all_ = (Grid(("rank", "copy"), (world, n)) for n in (1, times))
    return placed_anew(structure, one, all_, 0, whole)


def placed_anew(structure: SetStructure, grid: Grid, new: Grid, kept: int, whole: Mapping[tuple[int, ...], Sequence[bool]]) -> SetStructure:
    """The structure on another grid, whose axis number `kept`, along which messages go, is as it was. whole: for each communicator, which
    of the other axes it spans."""
    if new == grid:
        return structure
    groups: dict[tuple[int, tuple[int, ...]], int] = {}  # communicators of the same ranks stay apart
    programs = []
    for rank in range(prod(new.size)):
        coordinates = new.place(rank)
        source = grid.rank([at % old for at, old in zip(coordinates, grid.size, strict=True)])
        program = structure.programs[source]
        number = {ABSENT: ABSENT}
        for group in {row[3] for row in program.comm} - {ABSENT}:
            old = structure.groups[group]
            ranges = [range(size) if spanned else (at,) for size, spanned, at in zip(new.size, whole[old], coordinates, strict=True)]
            spans = [*ranges[:kept], _spans(grid, old)[kept], *ranges[kept + 1 :]]
            number[group] = groups.setdefault((group, tuple(sorted(map(new.rank, product(*spans))))), len(groups))
        comm = []
        for *facts, group, distance, tag, kind in program.comm:
            there = (*coordinates[:kept], grid.place(source + distance)[kept], *coordinates[kept + 1 :]) if group == ABSENT else coordinates
            comm.append((*facts, number[group], new.rank(there) - rank, tag, kind))
        programs.append(msgspec.structs.replace(program, comm=tuple(comm)))
    return SetStructure(tuple(programs), tuple(members for _, members in groups))
