"""Cut the gradients of a structure into the buckets that its sample would have."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from lumos.chakra.synthesis.layers import launched_from, reordered
from lumos.chakra.synthesis.model import SetModel, SetProgram, SetStructure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.chakra.synthesis.buckets import Buckets


def refilled(model: SetModel, structure: SetStructure, buckets: Buckets, source: int, layer: float, layers: int) -> SetStructure:
    """The structure, of the set `source`, with buckets for so many layers a rank of `layer` bytes each.

    Sizes stay those of layers of the source. A rank exchanges each bucket where the source has exchanged as large a part of the layers.
    """
    held = buckets.held(layer, layers)
    programs = (_refilled(model, program, buckets.label, [n * buckets.layer[source] for n in held]) for program in structure.programs)
    return SetStructure(tuple(programs), structure.of_rank, structure.groups)


def _refilled(model: SetModel, program: SetProgram, label: int, sizes: Sequence[float]) -> SetProgram:
    launched = launched_from(model, program, {label})
    rows = [row for row in program.comm if row[0] in launched]
    if not rows:
        return program
    wanted, there = _parts(sizes), _parts([row[2] for row in rows])
    place = [next(i for i, part in enumerate(there) if part >= of - 1e-6) for of in wanted]
    times = {row[0]: place.count(i) for i, row in enumerate(rows)}
    again = {launched[node]: node for node in times}
    order: list[int] = []
    for node in range(len(program.symbol)):
        if node in again:
            order += [*range(node, again[node] + 1)] * times[again[node]]
        elif node not in times:
            order.append(node)
    found = reordered(model, program, order)
    left = iter(sizes)
    moved = {row[0] for row in found.comm if model.symbols[found.symbol[row[0]]].label == label}
    comm = tuple((*row[:2], round(next(left)), *row[3:]) if row[0] in moved else row for row in found.comm)
    return msgspec.structs.replace(found, comm=comm)


def _parts(sizes: Sequence[float]) -> list[float]:
    """Which part of all bytes has been exchanged after each transfer."""
    total = sum(sizes)
    return [done / total for done in accumulate(sizes)]
