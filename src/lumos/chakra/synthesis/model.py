"""A generative model of Chakra workloads: learned from one or many sets, sampled with a seed.

The model separates structure and values. The structure of a set is a program per rank: a sequence of symbols, each with the distances back
to the nodes that it depends on. A symbol is an operator, or a kind of communication, with durations of one order of magnitude; its name is
a number. Of the durations the model holds only the empirical quantiles of each symbol over all ranks and sets: operator times are spikes
with long tails, which no small mixture describes. Long nodes decide the length of a step, so their symbols are narrow (a quarter octave, an
eighth for the longest). Short nodes have one symbol per operator.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from lumos.chakra.build import in_program_order
from lumos.chakra.synthesis.buckets import Buckets, separated
from lumos.chakra.synthesis.trends import REFERENCE, Trend, Weights, factor, fitted, means, middle, node_operators, transfer_times, trends
from lumos.graph.lists import grouped
from lumos.trace.table import ABSENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from lumos.chakra.synthesis.trends import OperatorKey
    from lumos.chakra.workload import Workload
    from lumos.trace.table import Int32, Int64

#: Points of a quantile table.
POINTS = 33
#: Durations below SHORT ns have one symbol per operator; those above the share LONG of the set's time the narrowest symbols.
SHORT, LONG = 16_000, 0.01
#: Transfers of a family have symbols by what they take for their sizes and ranks, so many an octave.
SYMBOLS_AN_OCTAVE = 16


class Symbol(msgspec.Struct, frozen=True):
    """An operator at one order of magnitude. quantiles: ns at equal steps of probability. operations, bytes: how much it computes and moves
    a ns of its time, 0 where the sets do not say. time, size: the trends by which the durations and sizes of its operator follow the facts
    that vary in the family. transfer: the weights of its time; its durations are then those
    of a transfer of REFERENCE ns, learned from ones that take `about` so many ns. Each is () where the model is of no family."""

    type: int
    on_cpu: bool
    kind: int
    label: int
    quantiles: tuple[int, ...]
    operations: float = 0.0
    bytes: float = 0.0
    time: Trend = ()
    size: Trend = ()
    transfer: Weights = ()
    about: float = 0.0


class SetProgram(msgspec.Struct, frozen=True):
    """What a rank runs. symbol, queue, release (ABSENT none): one per node. deps: per node how many nodes back each of its
    dependencies is.

    comm: (node, type, size, group, peer as a distance in ranks, tag, kind) of each communication node. steps: the first
    and the last node of every training step.
    """

    symbol: tuple[int, ...]
    queue: tuple[int, ...]
    release: tuple[int, ...]
    deps: tuple[tuple[int, ...], ...]
    comm: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[int, int], ...] = ()


class SetStructure(msgspec.Struct, frozen=True):
    """The structure of one set. programs: what each rank runs."""

    programs: tuple[SetProgram, ...]
    groups: tuple[tuple[int, ...], ...]


class SetModel(msgspec.Struct, frozen=True):
    """What was learned. kinds: the kinds of communication, as in `Communication.kinds`. facts: what is known of the
    set of each structure where they are of one family; the quantiles are then those of a set with the middle of all facts. buckets: of the
    operators that exchange whole layers in buckets."""

    symbols: tuple[Symbol, ...]
    structures: tuple[SetStructure, ...]
    kinds: tuple[str, ...]
    facts: tuple[dict[str, int], ...] = ()
    buckets: tuple[Buckets, ...] = ()


def learn(workloads: Sequence[Workload], facts: Sequence[Mapping[str, int]] = ()) -> SetModel:
    """The model of one or many workloads. facts: of each workload, with the same keys, where they are of one family; durations are then
    pooled without what follows from the facts."""
    symbols: dict[tuple[int, ...], int] = {}
    labels: dict[str, int] = {}
    pools: list[list[Int64]] = []
    kinds: dict[str, int] = {}
    structures = []
    workloads, filled = separated(workloads, facts)
    times = trends([means(w, np.arange(len(w)), w.duration) for w in workloads], facts) if facts else {}
    sizes = trends([means(w, w.communication.node, w.communication.size) for w in workloads], facts) if facts else {}
    sizes |= {operator: buckets.trend for operator, buckets in filled.items()}
    transfers = fitted(workloads) if facts else {}
    for i, given in enumerate(workloads):
        workload = in_program_order(given)
        fitted_ns = _fitted_times(workload, transfers)
        symbol = _symbols(_at_the_middle(workload, times, fitted_ns, facts, i) if facts else workload, fitted_ns, symbols, labels, pools)
        structures.append(_structure(workload, symbol, kinds))
    names = list(labels)
    table = []
    for (kind, cpu, task, label, _, _, about), pool in zip(symbols, pools, strict=True):
        operator = names[label], bool(cpu), kind
        lasted, operations, moved = np.concatenate(pool, axis=1)
        rates = _rate(operations, lasted), _rate(moved, lasted)
        time, size, transfer = (found_of.get(operator, ()) for found_of in (times, sizes, transfers))
        spread = _quantiles(lasted), *rates
        table.append(Symbol(kind, bool(cpu), task, label, *spread, time, size, transfer, 2 ** (about / SYMBOLS_AN_OCTAVE)))
    return SetModel(
        tuple(table),
        tuple(structures),
        tuple(kinds),
        tuple(map(dict, facts)),
        tuple(msgspec.structs.replace(buckets_of, label=labels[name]) for (name, *_), buckets_of in filled.items()),
    )


def _at_the_middle(
    workload: Workload,
    times: Mapping[OperatorKey, Trend],
    fitted_ns: NDArray[np.float64],
    facts: Sequence[Mapping[str, int]],
    number: int,
) -> Workload:
    """The workload with the durations that it would have with the middle of all facts, instead of those of its own set, and its transfers
    with those that they would have if each took REFERENCE ns for its size and ranks."""
    to = middle(facts)
    nodes = node_operators(workload, np.arange(len(workload)))
    by = {operator: factor(times[operator], tuple(to), to, facts[number]) if operator in times else 1.0 for operator in set(nodes)}
    change = np.array([by[operator] for operator in nodes])
    change = np.where(fitted_ns > 0, REFERENCE / np.maximum(fitted_ns, 1), change)
    amounts = np.stack((workload.duration, workload.operations, workload.bytes))
    duration, operations, moved = np.where(amounts >= 0, np.rint(amounts * change), ABSENT).astype(np.int64)
    return replace(workload, duration=duration, operations=operations, bytes=moved)


def _fitted_times(workload: Workload, transfers: Mapping[OperatorKey, Weights]) -> NDArray[np.float64]:
    """What every node that is a transfer of known weights takes by these, ns; 0 for others."""
    out, facts = np.zeros(len(workload)), workload.communication
    columns = (facts.node.tolist(), node_operators(workload, facts.node), facts.size, workload.members())
    for node, operator, size, ranks in zip(*columns, strict=True):
        if operator in transfers:
            out[node] = transfer_times(transfers[operator], np.array([size]), np.array([ranks]))[0]
    return out


def _symbols(
    workload: Workload,
    fitted_ns: NDArray[np.float64],
    symbols: dict[tuple[int, ...], int],
    labels: dict[str, int],
    pools: list[list[Int64]],
) -> Int32:
    """The symbol of every node. Adds new symbols, labels and pools, and what each symbol has to its pool."""
    label = np.array([labels.setdefault(name, len(labels)) for name in workload.names] or [0])[workload.name]
    long = LONG * float((workload.start + workload.duration).max())
    log = np.log2(np.maximum(workload.duration, 1))
    magnitude = np.where(workload.duration < SHORT, 0, np.where(workload.duration < long, 1 + np.floor(4 * log), 1000 + np.floor(8 * log)))
    size = np.zeros(len(workload))
    size[workload.communication.node] = 1 + np.floor(np.log2(np.maximum(workload.communication.size, 1)))
    about = np.rint(SYMBOLS_AN_OCTAVE * np.log2(np.maximum(fitted_ns, 1)))
    columns = np.stack([workload.type, workload.on_cpu, workload.kind, label, magnitude, size, about], axis=1).astype(np.int64)
    keys, which = np.unique(columns, axis=0, return_inverse=True)
    which = which.reshape(-1)
    number = np.empty(len(keys), np.int32)
    amounts = np.stack((workload.duration, workload.operations, workload.bytes))
    bounds, order = grouped(which, len(keys))
    for i, key in enumerate(map(tuple, keys.tolist())):
        number[i] = symbols.setdefault(key, len(symbols))
        if number[i] == len(pools):
            pools.append([])
        pools[number[i]].append(amounts[:, order[bounds[i] : bounds[i + 1]]])
    return number[which]


def _rate(amount: Int64, duration: Int64) -> float:
    """How much of something there is a ns; 0 where that is not known of every node."""
    return float(amount.sum() / duration.sum()) if (amount >= 0).all() and duration.sum() else 0.0


def _quantiles(pool: Int64) -> tuple[int, ...]:
    """The quantiles of a pool, scaled so that they have the mean of the pool."""
    points = np.quantile(pool, np.linspace(0, 1, POINTS))
    mean = np.trapezoid(points) / (POINTS - 1) if hasattr(np, "trapezoid") else np.mean((points[1:] + points[:-1]) / 2)
    if mean > 0:
        points *= pool.mean() / mean
    return tuple(np.rint(points).astype(np.int64).tolist())


def _structure(workload: Workload, symbol: Int32, kinds: dict[str, int]) -> SetStructure:
    programs = []
    facts = workload.communication
    number = np.array([kinds.setdefault(kind, len(kinds)) for kind in facts.kinds] or [0])
    for rank, (low, high) in enumerate(pairwise(workload.rank_offset.tolist())):
        first, last = (int(i) for i in np.searchsorted(facts.node, (low, high)))
        peer = np.where(facts.peer >= 0, facts.peer - rank, 0)
        columns = (facts.node - low, facts.type, facts.size, facts.group, peer, facts.tag, number[facts.kind])
        bounds = workload.dep_offset[low : high + 1].tolist()
        back = (np.repeat(np.arange(low, high), np.diff(bounds)) - workload.dep[bounds[0] : bounds[-1]]).tolist()
        programs.append(
            SetProgram(
                symbol=tuple(symbol[low:high].tolist()),
                queue=tuple(workload.queue[low:high].tolist()),
                release=tuple(workload.release[low:high].tolist()),
                deps=tuple(tuple(back[a - bounds[0] : b - bounds[0]]) for a, b in pairwise(bounds)),
                comm=tuple(zip(*(column[first:last].tolist() for column in columns), strict=True)),
                steps=tuple(_steps(workload, rank, low, high)),
            )
        )
    return SetStructure(tuple(programs), workload.groups)


def _steps(workload: Workload, rank: int, low: int, high: int) -> Iterator[tuple[int, int]]:
    """The first and the last host node of every step of a rank (any node where it has no host nodes), from 0 in each rank."""
    start = workload.start[low:high]
    counted = workload.on_cpu[low:high] if workload.on_cpu[low:high].any() else np.ones(high - low, bool)
    for step in workload.steps:
        if step.rank == workload.ranks[rank]:
            inside = np.flatnonzero(counted & (start >= step.start) & (start < step.end))
            if len(inside):
                yield int(inside[0]), int(inside[-1])
