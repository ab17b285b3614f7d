"""Gradients that a family of sets exchanges in buckets of whole layers.

A framework fills a bucket with the gradients of as many layers as its limit of bytes holds, so no power of the facts follows the size of a
transfer; the bytes of one layer do. An operator fills buckets where in every set that runs it the transfers of a rank, but for one at the
end (the embedding's), hold whole numbers of layers, equal ones and what is left over; where the bytes of a layer follow powers of the facts
other than the number of layers; and where one limit explains how many layers a bucket holds, in which the sets differ. Where a sample has
more buckets than the set that gave its structure, those that come from one bucket follow one another at its place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from lumos.chakra.synthesis.trends import FOLLOWS, OperatorKey, Trend, factor, trends, varied
from lumos.graph.lists import equal_rows
from lumos.trace.chakra.schema import NodeType
from lumos.trace.table import ABSENT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.chakra.workload import Workload
    from lumos.trace.table import Int64

LAYERS, STAGES = "layers", "pp"
#: What is added to the name of an operator for its transfers of whole layers.
OF_LAYERS = " of layers"
#: By which share of a layer a bucket may differ from a whole number of layers.
OFF_WHOLE = 0.01
#: From which part of a layer on a bucket takes the whole layer: it stays below its limit, comes nearest to it, or reaches it.
ROUNDINGS = (0.0, 0.5, 1.0)


class Buckets(msgspec.Struct, frozen=True):
    """How an operator fills its buckets. limit: bytes. rounding: of ROUNDINGS. layer: the bytes of one layer in each set, 0 where it has no
    buckets. trend: how these follow the facts. label: of the operator in the model."""

    limit: float
    rounding: float
    layer: tuple[float, ...]
    trend: Trend
    label: int = ABSENT

    def held(self, layer: float, layers: int) -> list[int]:
        """How many layers each bucket holds of so many layers of `layer` bytes."""
        whole = min(max(int(self.limit / layer + self.rounding), 1), layers)
        return [whole] * (layers // whole) + [layers % whole] * bool(layers % whole)


def separated(workloads: Sequence[Workload], facts: Sequence[Mapping[str, int]]) -> tuple[list[Workload], dict[OperatorKey, Buckets]]:
    """The workloads, with the transfers of whole layers named apart from the others of their operator; and what their buckets hold."""
    if not facts or any(LAYERS not in fact or len(w.steps) > len(w.ranks) for fact, w in zip(facts, workloads, strict=True)):
        return list(workloads), {}
    exchanges = [_exchanges(w) for w in workloads]
    out, filled = list(workloads), {}
    for name in sorted({name for of_set in exchanges for name in of_set}):
        rows = [of_set.get(name, []) for of_set in exchanges]
        layers = [fact[LAYERS] // fact.get(STAGES, 1) for fact in facts]
        held = [_held(w.communication.size, of_set, layer) for w, of_set, layer in zip(workloads, rows, layers, strict=True)]
        known = _explained(held, facts) if all(buckets or not of_set for buckets, of_set in zip(held, rows, strict=True)) else None
        if known is not None:
            filled[name + OF_LAYERS, False, int(NodeType.COLL)] = known
            counts = [len(buckets.layers) if buckets else 0 for buckets in held]
            out = [_renamed(w, name, of_set, count) for w, of_set, count in zip(out, rows, counts, strict=True)]
    return out, filled


class _Held(NamedTuple):
    """layers: how many layers each bucket of a set holds. layer: the bytes of one."""

    layers: tuple[int, ...]
    layer: float


def _exchanges(workload: Workload) -> dict[str, list[Int64]]:
    """By operator the rows of the devices' collectives, in order, of every rank that runs it."""
    facts, rank = workload.communication, workload.rank_of()
    rows = np.flatnonzero((workload.type[facts.node] == NodeType.COLL) & ~workload.on_cpu[facts.node])
    out: dict[str, list[Int64]] = {}
    for own in equal_rows(workload.name[facts.node[rows]], rank[facts.node[rows]]):
        out.setdefault(workload.names[workload.name[facts.node[rows[own[0]]]]], []).append(rows[own])
    return out


def _held(size: Int64, of_ranks: Sequence[Int64], layers: int) -> _Held | None:
    """What the buckets of a set hold, the same on all of its ranks; None where the transfers are no buckets."""
    kinds = {_whole_layers(sizes, layers) for sizes in {tuple(size[rows].tolist()) for rows in of_ranks}}
    return kinds.pop() if len(kinds) == 1 else None


def _whole_layers(sizes: tuple[int, ...], layers: int) -> _Held | None:
    """The layers of each transfer, the last left out where it is of another kind."""
    for count in (len(sizes), len(sizes) - 1):
        total = sum(sizes[:count])
        whole = [round(size * layers / total) for size in sizes[:count]] if total else []
        exact = all(n > 0 and abs(size * layers / total - n) <= OFF_WHOLE for size, n in zip(sizes, whole, strict=False))
        if whole and exact and sum(whole) == layers and set(whole[:-1]) <= {whole[0]} and whole[-1] <= whole[0]:
            return _Held(tuple(whole), total / layers) if sizes[-1] != sizes[0] or count == len(sizes) else None
    return None


def _explained(held: Sequence[_Held | None], facts: Sequence[Mapping[str, int]]) -> Buckets | None:
    """The limit and the trend that explain the buckets of all sets which run an operator; None where nothing does."""
    sets = [i for i, of_set in enumerate(held) if of_set is not None]
    known = [of_set for of_set in held if of_set is not None]
    if len({of_set.layers[0] for of_set in known}) < 2:
        return None
    trend = _trend({i: of_set.layer for i, of_set in zip(sets, known, strict=True)}, facts)
    for rounding in ROUNDINGS if trend is not None else ():
        low = max(((n - rounding) * layer for (n, *_), layer in known if n > 1), default=0.0)
        high = min(((n + 1 - rounding) * layer for (n, *more), layer in known if more), default=0.0)
        if 0 < low < high and trend is not None:
            layers = tuple(of_set.layer if of_set else 0.0 for of_set in held)
            return Buckets(float(np.sqrt(low * high)), rounding, layers, trend)
    return None


def _trend(layer: Mapping[int, float], facts: Sequence[Mapping[str, int]]) -> Trend | None:
    """The trend by which the bytes of a layer follow the facts that vary; None where they do not, or follow the number of layers too."""
    keys, operator = varied(facts), ("", False, 0)
    trend = trends([{operator: layer[i]} if i in layer else {} for i in range(len(facts))], facts)[operator]
    at_one = [np.log(value) - np.log(factor(trend, keys, facts[i], facts[min(layer)])) for i, value in layer.items()]
    of_layers = dict(zip(keys, trend[1:], strict=True)).get(LAYERS, 0.0)
    return None if of_layers or max(at_one) - min(at_one) > FOLLOWS else trend


def _renamed(workload: Workload, name: str, of_ranks: Sequence[Int64], count: int) -> Workload:
    """The workload whose first `count` transfers of an operator, on each rank, have a name of their own."""
    column = workload.name.copy()
    for rows in of_ranks:
        column[workload.communication.node[rows[:count]]] = len(workload.names)
    return replace(workload, names=(*workload.names, name + OF_LAYERS), name=column)
