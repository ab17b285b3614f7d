"""Sample sets from a model: similar to the source, or as it might be with more ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumos.chakra.build import graph_of
from lumos.chakra.synthesis.every_rank import MOST_NODES
from lumos.chakra.synthesis.grid import with_copies
from lumos.chakra.synthesis.trends import REFERENCE, transfer_times
from lumos.chakra.workload import Amounts, Communication, Workload, unknown
from lumos.errors import UsageError
from lumos.graph.lists import distinct, grouped, offsets
from lumos.graph.places import MARK
from lumos.graph.table import Graph, Step
from lumos.simulation import simulate
from lumos.trace.chakra.schema import NodeType
from lumos.trace.table import ABSENT, Int64, unique

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from lumos.chakra.synthesis.model import SetModel, SetProgram, SetStructure

#: Each size changes by a random share of up to this much.
SIZE_SHIFT = 0.03
#: Each duration changes by a random share of up to this much, so that an operator seen only once does not keep its duration.
JITTER = 0.02


class Growth(NamedTuple):
    """By how much the durations and the sizes of each symbol differ from those of the model, float64[symbols]. grown: of each group with
    more members than in the source, how many it had there."""

    time: NDArray[np.float64]
    size: NDArray[np.float64]
    grown: Mapping[int, int] = {}


class Drawn(NamedTuple):
    """A set that was sampled. amounts: what its nodes compute and move. labels: for each of its names the label in the model. Of a sample
    of a family, facts: what it is a set of; source: the number, among the sets that were learned from, of that which gave its structure."""

    graph: Graph
    amounts: Amounts
    labels: tuple[int, ...]
    facts: dict[str, int] | None = None
    source: int = ABSENT


def sample(model: SetModel, seed: int = 0, *, ranks: int | None = None) -> Drawn:
    """A set from the model. The same seed gives the same set.

    ranks: a multiple of the source's ranks; groups that span all ranks of the source then span all ranks. Raises UsageError
    where the model cannot give that.
    """
    rng = generator(seed)
    structure = model.structures[int(rng.integers(len(model.structures)))]
    world = len(structure.programs)
    if ranks is not None and (ranks < world or ranks % world):
        raise UsageError(f"--ranks {ranks}: the source has {world} ranks; give a multiple of it")
    times = (ranks or world) // world
    _require_few_nodes(structure, times)
    structure, none = with_copies(structure, times), np.ones(len(model.symbols))
    grown = {i: len(group) // times for i, group in enumerate(structure.groups) if group[-1] // world > group[0] // world}
    return graph_of_structure(model, structure, rng, Growth(none, none, grown))


def generator(seed: int) -> np.random.Generator:
    """The random numbers of a seed. UsageError where it is negative."""
    if seed < 0:
        raise UsageError(f"--seed {seed}: give a number of 0 or more")
    return np.random.default_rng(seed)


def _require_few_nodes(structure: SetStructure, times: int = 1) -> None:
    """Raise UsageError where a structure, repeated so often, has too many nodes to be sampled."""
    nodes = times * sum(len(program.symbol) for program in structure.programs)
    if nodes > MOST_NODES:
        raise UsageError(
            f"the set would have {nodes:,} nodes, more than the {MOST_NODES:,} that are sampled; give fewer --ranks, or other facts"
        )


def graph_of_structure(model: SetModel, structure: SetStructure, rng: np.random.Generator, growth: Growth) -> Drawn:
    """A set of a structure with durations and sizes drawn from the model. GraphError where it has no schedule."""
    _require_few_nodes(structure)
    programs = structure.programs
    workload, labels = _workload(model, programs, structure.groups, rng, growth)
    graph = graph_of(workload)
    timeline = simulate(graph)
    start = timeline.start
    marked = tuple(
        Step(rank, f"{MARK}#{number}", int(start[low + first]), int(start[low + last]) + 1)
        for rank, (program, low) in enumerate(zip(programs, workload.rank_offset.tolist(), strict=False))
        for number, (first, last) in enumerate(program.steps)
    )
    drawn = replace(graph, measured_start=start, measured_end=timeline.end, steps=marked)
    return Drawn(drawn, replace(unknown(len(drawn)), operations=workload.operations, bytes=workload.bytes), labels)


def _workload(
    model: SetModel, programs: Sequence[SetProgram], groups: tuple[tuple[int, ...], ...], rng: np.random.Generator, growth: Growth
) -> tuple[Workload, tuple[int, ...]]:
    """The workload of the programs of all ranks, and the label in the model of each of its names.

    Its starts are the places of nodes in their ranks, which say no more than the order.
    """
    offset = offsets([len(p.symbol) for p in programs])
    symbol = np.concatenate([np.array(p.symbol, np.int64) for p in programs])
    edges = [
        (low + max(node - back, 0), low + node)
        for low, program in zip(offset.tolist(), programs, strict=False)
        for node, deps in enumerate(program.deps)
        for back in deps
    ]
    before, after = np.array(edges, np.int64).reshape(-1, 2).T
    dep_offset, dep = distinct(before[before < after], after[before < after], len(symbol))
    labels = sorted({s.label for s in model.symbols})

    def column(name: str, dtype: type) -> Any:
        return np.array([getattr(s, name) for s in model.symbols])[symbol].astype(dtype)

    out = Workload(
        ranks=tuple(range(len(programs))),
        rank_offset=offset,
        type=column("type", np.uint8),
        on_cpu=column("on_cpu", bool),
        kind=column("kind", np.uint8),
        name=np.searchsorted(labels, [s.label for s in model.symbols]).astype(np.int32)[symbol],
        names=tuple(f"op{i}" for i in range(len(labels))),
        queue=np.concatenate([np.array(p.queue, np.int64) for p in programs]),
        start=np.concatenate([np.arange(len(p.symbol)) for p in programs]).astype(np.int64),
        duration=np.zeros(len(symbol), np.int64),
        release=np.concatenate([np.array(p.release, np.int64) for p in programs]),
        operations=np.zeros(len(symbol), np.int64),
        bytes=np.zeros(len(symbol), np.int64),
        dep_offset=dep_offset,
        dep=dep,
        communication=_communication(model, programs, offset, rng, growth.size),
        groups=groups,
    )
    like, time = _transfers(model, programs, symbol, out, growth)
    duration = np.rint(_durations(model, like, rng, growth) * time).astype(np.int64)
    order = rng.permutation(len(labels))  # so that the places of names reveal nothing
    amounts = (np.where((rate := column(name, float)) > 0, np.rint(rate * duration), ABSENT) for name in ("operations", "bytes"))
    operations, moved = (amount.astype(np.int64) for amount in amounts)
    shuffled = replace(out, name=order[out.name].astype(np.int32), duration=duration, operations=operations, bytes=moved)
    return shuffled, tuple(labels[i] for i in np.argsort(order))


def _durations(model: SetModel, symbol: Int64, rng: np.random.Generator, growth: Growth) -> NDArray[np.float64]:
    """A duration for every node, ns: the n nodes of a symbol get one value from each n-th part of its distribution."""
    out = np.zeros(len(symbol), np.float64)
    bounds, order = grouped(symbol, len(model.symbols))
    for i, s in enumerate(model.symbols):
        nodes = order[bounds[i] : bounds[i + 1]]
        if len(nodes):
            probability = (rng.permutation(len(nodes)) + rng.random(len(nodes))) / len(nodes)
            shift = 1 + JITTER * (2 * rng.random(len(nodes)) - 1)
            out[nodes] = np.interp(probability, np.linspace(0, 1, len(s.quantiles)), s.quantiles) * shift * growth.time[i]
    return out


def _transfers(
    model: SetModel, programs: Sequence[SetProgram], symbol: Int64, workload: Workload, growth: Growth
) -> tuple[Int64, NDArray[np.float64]]:
    """From which symbol each node takes its durations, and by how much it differs from them: a transfer whose time is known by its size
    and ranks from that of its operator which takes about as long; a collective of a group that grew as in a ring, where (n - 1) / n of the
    bytes pass each link."""
    like, time = symbol.copy(), np.ones(len(symbol))
    facts, ranks = workload.communication, workload.members()
    symbol = symbol[facts.node]
    size = np.array([row[2] for program in programs for row in program.comm], np.float64) * growth.size[symbol]
    for i in (i for i in unique(symbol).tolist() if model.symbols[i].transfer):
        own = model.symbols[i]
        these = facts.node[symbol == i]
        takes = np.maximum(transfer_times(own.transfer, size[symbol == i], ranks[symbol == i].astype(np.float64)), 1)
        known = np.array([j for j, other in enumerate(model.symbols) if other.transfer == own.transfer and other.label == own.label])
        about = np.array([model.symbols[j].about for j in known])
        like[these] = known[np.abs(np.log(about / takes[:, None])).argmin(axis=1)]
        time[these] = takes / REFERENCE
    for group, before in growth.grown.items():
        now = len(workload.groups[group])
        time[facts.node[facts.group == group]] *= ((now - 1) / now) / ((before - 1) / before)
    return like, time


def _communication(
    model: SetModel, programs: Sequence[SetProgram], offset: Int64, rng: np.random.Generator, scale: NDArray[np.float64]
) -> Communication:
    """The communication of all ranks, with its sizes changed at random, and by how much those of its symbol are scaled."""
    rows = []
    factor: dict[int, float] = {}
    of_all: dict[tuple[object, ...], float] = {}  # what one transfer is scaled by on all of its ranks, whose symbols may differ
    tags: dict[tuple[int, int, int], list[int]] = {}  # how many receives and sends of a tag there were
    for rank, program in enumerate(programs):
        for node, comm_type, size, group, peer, tag, kind in program.comm:
            by = factor.setdefault(size, 1 + SIZE_SHIFT * (2 * rng.random() - 1))
            own = program.symbol[node]
            meeting: tuple[object, ...] = (group, kind, size)
            if group < 0:
                peer += rank
                sends = model.symbols[own].type == NodeType.SEND
                pair = (rank, peer) if sends else (peer, rank)
                counts = tags.setdefault((*pair, tag), [0, 0])
                tag += 100_000 * counts[sends]  # each repetition of a message has one of its own
                counts[sends] += 1
                meeting = (pair, size)
            changed = max(round(size * by * of_all.setdefault(meeting, float(scale[own])) / 4) * 4, 4)
            rows.append((int(offset[rank]) + node, comm_type, changed, group, peer if group < 0 else ABSENT, tag, kind))
    return Communication.of_rows(rows, model.kinds)
