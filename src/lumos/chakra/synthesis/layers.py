"""Give what the ranks run another number of layers: the part of a rank's program that repeats, repeated more or less often."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from lumos.chakra.synthesis.model import SetModel, SetProgram, SetStructure
from lumos.errors import UsageError
from lumos.trace.chakra.schema import NodeType

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from lumos.chakra.synthesis.buckets import Buckets
    from lumos.trace.table import Int64

    #: The repeating parts of a program: of each the nodes at which its units begin, and the node at which the last one ends.
    Passes = list[list[int]]

#: A pass whose first or last layer differs has up to so many layers' units less.
EDGE = 0.3
#: A unit must repeat at least so often to be a layer.
_LEAST = 3
#: A layer has so many nodes at least in each pass over it.
LAYER_NODES = 8


def with_more_layers(model: SetModel, structure: SetStructure, layers: int, before: int) -> SetStructure:
    """The structure of ranks that have so many layers instead of `before`. UsageError where no rank shows its layers."""
    if layers == before:
        return structure

    def times(units: int) -> int:
        """How often a part of `units` units repeats: so many more as there are layers, or in proportion where it is no part of each."""
        of_layer = round(units / before)
        whole = of_layer > 0 and abs(units / before - of_layer) <= EDGE
        return max(units + of_layer * (layers - before) if whole else round(units * layers / before), 1)

    passes = {program: _by_operator(model, program, before) for program in set(structure.programs)}
    if not any(passes.values()):
        raise UsageError("layers: no part of what the ranks run repeats three times or more; the source has no layers to count")
    changed = {program: _repeated(model, program, parts, times) if parts else program for program, parts in passes.items()}
    return SetStructure(tuple(changed[program] for program in structure.programs), structure.groups)


def _by_operator(model: SetModel, program: SetProgram, layers: int) -> Passes:
    """The passes over the layers by the operators of all nodes. A message leaves the layers of a rank, so each stands for itself. Transfers
    of several layers stand behind one of these only, so they are passed over."""
    symbols = [model.symbols[s] for s in program.symbol]
    keys: list[tuple[int, ...]] = [(s.label, s.on_cpu, s.type) for s in symbols]
    for node, *_ in program.comm:
        if symbols[node].type in (NodeType.SEND, NodeType.RECV):
            keys[node] = (node,)
    launched = launched_from(model, program, {buckets.label for buckets in model.buckets})
    passed_over = {node for last, first in launched.items() for node in range(first, last + 1)}
    kept = [node for node in range(len(keys)) if node not in passed_over]
    index: dict[tuple[int, ...], int] = {}
    regions = layer_regions(np.array([index.setdefault(keys[node], len(index)) for node in kept], np.int64), layers)
    cuts = [*kept, len(keys)]
    return [[cuts[region.start + region.period * unit] for unit in range(region.times + 1)] for region in regions]


def launched_from(model: SetModel, program: SetProgram, labels: Container[int]) -> dict[int, int]:
    """The nodes of a program with these labels, each with its launch where that stands right before it, else with itself."""
    symbols = [model.symbols[s] for s in program.symbol]
    nodes = (node for node, symbol in enumerate(symbols) if symbol.label in labels)
    return {node: node - (1 in program.deps[node] and symbols[node - 1].on_cpu) for node in nodes}


def _repeated(model: SetModel, program: SetProgram, passes: Passes, times: Callable[[int], int]) -> SetProgram:
    """The program with each of its repeating parts repeated times(its units)."""
    order: list[int] = []
    at = 0
    for bounds in passes:
        order += range(at, bounds[0])
        units = list(pairwise(bounds))
        for unit in range(times(len(units))):
            order += range(*units[unit % len(units)])
        at = bounds[-1]
    return reordered(model, program, [*order, *range(at, len(program.symbol))])


def reordered(model: SetModel, program: SetProgram, order: list[int]) -> SetProgram:
    """The program with these of its nodes in this order; each may be left out, or come again."""
    rows = {c[0]: c for c in program.comm}
    return SetProgram(
        symbol=tuple(program.symbol[i] for i in order),
        queue=tuple(program.queue[i] for i in order),
        release=tuple(program.release[i] for i in order),
        deps=_deps_of(program, model, order),
        comm=tuple((number, *rows[i][1:]) for number, i in enumerate(order) if i in rows),
    )


def _deps_of(program: SetProgram, model: SetModel, order: list[int]) -> tuple[tuple[int, ...], ...]:
    """The dependencies of nodes that are copied in this order, as distances back.

    A node depends on the copies of what it depended on, where these stand as far before it as the originals did. Where a part was left out
    or came again between them, the third copy of a layer depends on the third copy of what it awaits of another thread or stream, such
    as the gather of its parameters. What has no such copy, or more copies than the node itself has, stands for the last node before it
    on its thread or stream.
    """
    lane = [(model.symbols[s].on_cpu, queue) for s, queue in zip(program.symbol, program.queue, strict=True)]
    last: dict[tuple[bool, int], int] = {}
    times = Counter(order)
    copies: dict[int, list[int]] = {node: [] for node in times}
    out = []
    for number_of_copy, node in enumerate(order):
        number = len(copies[node])
        distances = set()
        for back in program.deps[node]:
            if back <= number_of_copy and order[number_of_copy - back] == node - back:
                distances.add(back)
                continue
            awaited = node - back
            if lane[awaited] != lane[node] and times[awaited] <= times[node] and number < len(copies.get(awaited, ())):
                distances.add(number_of_copy - copies[awaited][number])
            elif lane[awaited] in last:
                distances.add(number_of_copy - last[lane[awaited]])
        copies[node].append(number_of_copy)
        out.append(tuple(sorted(distances)))
        last[lane[node]] = number_of_copy
    return tuple(out)


class RepeatedRegion(NamedTuple):
    """`times` equal units of `period` entries, from the entry `start` of a sequence."""

    start: int
    period: int
    times: int


def layer_regions(labels: Int64, layers: int) -> list[RepeatedRegion]:
    """The stretches that may be passes over so many layers, in order; each has a unit of its own, the shortest that repeats.

    labels: one per node of a rank. Passes differ (a backward pass runs other nodes than a forward pass), and what repeats around them,
    such as microbatches, has longer units. What repeats within a layer is too short to be a pass. Outside of the passes, what repeats just
    as often as there are layers counts too, such as the gathers of their parameters.
    """
    taken = np.zeros(len(labels), bool)
    out = []
    for turn, period in enumerate((*range(1, len(labels) // _LEAST + 1), *range(1, LAYER_NODES))):
        outside = turn >= len(labels) // _LEAST
        for region in _of_period(labels, period):
            whole = slice(region.start, region.start + region.period * region.times)
            fits = region.times == layers if outside else region.period * region.times >= LAYER_NODES * layers
            if fits and not taken[whole].any():
                taken[whole] = True
                out.append(region)
    return sorted(out)


def _of_period(labels: Int64, period: int) -> list[RepeatedRegion]:
    """Maximal stretches that are periodic with this period, LEAST times or more."""
    same = np.concatenate(([False], labels[period:] == labels[:-period], [False]))
    stretches = np.flatnonzero(np.diff(same)).reshape(-1, 2).tolist()
    regions = (RepeatedRegion(begin, period, (end - begin + period) // period) for begin, end in stretches)
    return [region for region in regions if region.times >= _LEAST]


def refilled(model: SetModel, structure: SetStructure, buckets: Buckets, source: int, layer: float, layers: int) -> SetStructure:
    """The structure, of the set `source`, with buckets for so many layers a rank of `layer` bytes each.

    Sizes stay those of layers of the source. A rank exchanges each bucket where the source has exchanged as large a part of the layers.
    """
    sizes = [n * buckets.layer[source] for n in buckets.held(layer, layers)]
    programs = (_refilled(model, program, buckets.label, sizes) for program in structure.programs)
    return SetStructure(tuple(programs), structure.groups)


def _refilled(model: SetModel, program: SetProgram, label: int, sizes: Sequence[float]) -> SetProgram:
    launched = launched_from(model, program, {label})
    rows = [row for row in program.comm if row[0] in launched]
    if not rows:
        return program
    wanted, there = ([done / sum(parts) for done in accumulate(parts)] for parts in (sizes, [row[2] for row in rows]))
    after = [next(i for i, part in enumerate(there) if part >= of - 1e-6) for of in wanted]
    times = {row[0]: after.count(i) for i, row in enumerate(rows)}
    again = {launched[node]: node for node in times}
    order: list[int] = []
    for node in range(len(program.symbol)):
        if node in again:
            order += [*range(node, again[node] + 1)] * times[again[node]]
        elif node not in times:
            order.append(node)
    longer, left = reordered(model, program, order), iter(sizes)
    is_bucket = [model.symbols[symbol].label == label for symbol in longer.symbol]
    comm = tuple((*row[:2], round(next(left)), *row[3:]) if is_bucket[row[0]] else row for row in longer.comm)
    return msgspec.structs.replace(longer, comm=comm)
