"""Sample sets from a model: similar to the source, or as it might be with more ranks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.chakra.build import graph_of
from lumos.chakra.synthesis.every_rank import MOST_NODES
from lumos.chakra.synthesis.transfers import members_of, transfer_times
from lumos.chakra.work.amounts import Amounts, unknown
from lumos.chakra.workload import Communication, Workload
from lumos.errors import UsageError
from lumos.graph.edges import distinct
from lumos.graph.lists import Lists, grouped, offsets
from lumos.graph.steps import MARK
from lumos.graph.table import Graph, Step
from lumos.simulation import simulate
from lumos.trace.chakra.schema import NodeType
from lumos.trace.table import ABSENT, Int64

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.chakra.synthesis.model import SetModel, SetProgram, SetStructure

#: Each size changes by a random share of up to this much.
SIZE_SHIFT = 0.03
#: Each duration changes by a random share of up to this much, so that an operator seen only once does not keep its duration.
JITTER = 0.02


def sample(model: SetModel, seed: int = 0, *, ranks: int | None = None) -> Drawn:
    """A set from the model. The same seed gives the same set.

    ranks: a multiple of the source's ranks; groups that span all ranks of the source then span all ranks. Raises UsageError
    where the model cannot give that.
    """
    rng = generator(seed)
    structure = model.structures[int(rng.integers(len(model.structures)))]
    world = len(structure.of_rank)
    if ranks is not None and (ranks < world or ranks % world):
        raise UsageError(f"--ranks {ranks}: the source has {world} ranks; give a multiple of it")
    replicas = (ranks or world) // world
    return graph_of_structure(model, structure, rng, replicas=replicas)


def generator(seed: int) -> np.random.Generator:
    """The random numbers of a seed. UsageError where it is negative."""
    if seed < 0:
        raise UsageError(f"--seed {seed}: give a number of 0 or more")
    return np.random.default_rng(seed)


class Growth(NamedTuple):
    """By how much the durations and the sizes of each symbol differ from those of the model, float64[symbols]. by_size: whether what
    transfers take follows from their sizes and ranks."""

    time: NDArray[np.float64]
    size: NDArray[np.float64]
    by_size: bool = False


class Drawn(NamedTuple):
    """A set that was sampled. amounts: what its nodes compute and move. labels: for each of its names the label in the model. Of a sample
    of a family, facts: what it is a set of; source: the number, among the sets that were learned from, of that which gave its structure."""

    graph: Graph
    amounts: Amounts
    labels: tuple[int, ...]
    facts: dict[str, int] | None = None
    source: int = ABSENT


def graph_of_structure(
    model: SetModel,
    structure: SetStructure,
    rng: np.random.Generator,
    *,
    replicas: int = 1,
    growth: Growth | None = None,
) -> Drawn:
    """A set of a structure with durations and sizes drawn from the model. GraphError where it has no schedule."""
    nodes = replicas * sum(len(structure.programs[p].symbol) for p in structure.of_rank)
    if nodes > MOST_NODES:
        raise UsageError(
            f"the set would have {nodes:,} nodes, more than the {MOST_NODES:,} that are sampled; give fewer --ranks, or other facts"
        )
    none = np.ones(len(model.symbols))
    workload, labels = _workload(model, structure, replicas, rng, growth or Growth(none, none))
    graph = graph_of(workload)
    timeline = simulate(graph)
    marked = _steps([structure.programs[p] for p in structure.of_rank] * replicas, workload.rank_offset, timeline.start)
    drawn = replace(graph, measured_start=timeline.start, measured_end=timeline.end, steps=marked)
    return Drawn(drawn, replace(unknown(len(drawn)), operations=workload.operations, bytes=workload.bytes), labels)


def _steps(programs: list[SetProgram], offset: Int64, start: Int64) -> tuple[Step, ...]:
    """The marks of the training steps in the time of the sample."""
    return tuple(
        Step(rank, f"{MARK}#{number}", int(start[low + first]), int(start[low + last]) + 1)
        for rank, (program, low) in enumerate(zip(programs, offset.tolist(), strict=False))
        for number, (first, last) in enumerate(program.steps)
    )


def _workload(
    model: SetModel, structure: SetStructure, replicas: int, rng: np.random.Generator, growth: Growth
) -> tuple[Workload, tuple[int, ...]]:
    """The workload of a structure, and the label in the model of each of its names."""
    programs = [structure.programs[p] for p in structure.of_rank] * replicas
    world = len(structure.of_rank)
    offset = offsets([len(p.symbol) for p in programs])
    symbol = np.concatenate([np.array(p.symbol, np.int64) for p in programs])
    groups, group_of, grown = _groups(structure, replicas)
    facts, order = _communication(model, programs, offset, world, group_of, rng, growth.size)
    drawn = _durations(model, symbol, rng, growth)
    drawn[facts.node] *= _transfer_times(model, programs, symbol[facts.node], members_of(groups, facts.group), growth)
    duration = np.rint(drawn).astype(np.int64)
    if replicas > 1:
        _grow(duration, facts, groups, grown, replicas)
    dep_offset, dep = _dependencies(programs, offset)
    labels, of_symbol = _labels(model, rng)
    names = tuple(f"op{i}" for i in range(len(labels)))
    column = {name: np.array([getattr(s, name) for s in model.symbols])[symbol] for name in ("type", "on_cpu", "kind")}
    rates = (np.array([getattr(s, name) for s in model.symbols])[symbol] for name in ("operations", "bytes"))
    operations, moved = (np.where(rate > 0, np.rint(rate * duration), ABSENT).astype(np.int64) for rate in rates)
    out = Workload(
        ranks=tuple(range(len(programs))),
        rank_offset=offset,
        type=column["type"].astype(np.uint8),
        on_cpu=column["on_cpu"].astype(bool),
        kind=column["kind"].astype(np.uint8),
        name=of_symbol[symbol].astype(np.int32),
        names=names,
        queue=np.concatenate([np.array(p.queue, np.int64) for p in programs]),
        start=order,
        duration=duration,
        release=np.concatenate([np.array(p.release, np.int64) for p in programs]),
        operations=operations,
        bytes=moved,
        dep_offset=dep_offset,
        dep=dep,
        communication=facts,
        groups=groups,
    )
    return out, labels


def _labels(model: SetModel, rng: np.random.Generator) -> tuple[tuple[int, ...], Int64]:
    """The model's labels in random order, so that their places in it reveal nothing; and the place of each symbol's label."""
    labels = sorted({s.label for s in model.symbols})
    number = dict(zip(labels, rng.permutation(len(labels)).tolist(), strict=True))
    return tuple(sorted(labels, key=lambda label: number[label])), np.array([number[s.label] for s in model.symbols])


def _durations(model: SetModel, symbol: Int64, rng: np.random.Generator, growth: Growth) -> NDArray[np.float64]:
    """A duration for every node, ns: the n nodes of a symbol get one value from each n-th part of its distribution."""
    out = np.zeros(len(symbol), np.float64)
    bounds, order = grouped(symbol, len(model.symbols))
    for i, s in enumerate(model.symbols):
        nodes = order[bounds[i] : bounds[i + 1]]
        if not len(nodes):
            continue
        probability = (rng.permutation(len(nodes)) + rng.random(len(nodes))) / len(nodes)
        points = np.array(s.quantiles, np.float64)
        shift = 1 + JITTER * (2 * rng.random(len(nodes)) - 1)
        out[nodes] = np.interp(probability, np.linspace(0, 1, len(points)), points) * shift * growth.time[i]
    return out


def _transfer_times(model: SetModel, programs: list[SetProgram], symbol: Int64, ranks: Int64, growth: Growth) -> NDArray[np.float64]:
    """What each communication takes for its size and number of ranks, ns; 1 where the durations of its symbol say it themselves."""
    size = np.array([row[2] for program in programs for row in program.comm], np.float64) * growth.size[symbol]
    time = np.ones(len(symbol))
    for i in np.unique(symbol):
        these = symbol == i
        if growth.by_size and model.symbols[i].transfer:
            time[these] = transfer_times(model.symbols[i].transfer, size[these], ranks[these].astype(np.float64))
    return time


def _dependencies(programs: list[SetProgram], offset: Int64) -> Lists:
    pred, task = [], []
    for low, program in zip(offset.tolist(), programs, strict=False):
        for node, deps in enumerate(program.deps):
            for back in deps:
                pred.append(low + max(node - back, 0))
                task.append(low + node)
    before, after = np.array(pred, np.int64), np.array(task, np.int64)
    real = before < after
    return distinct(before[real], after[real], int(offset[-1]))


def _communication(
    model: SetModel,
    programs: list[SetProgram],
    offset: Int64,
    world: int,
    group_of: list[list[int]],
    rng: np.random.Generator,
    scale: NDArray[np.float64],
) -> tuple[Communication, Int64]:
    """The communication of all ranks; and as start of every node its position in its rank, which says no more than the order."""
    rows = []
    factor: dict[int, float] = {}
    of_all: dict[tuple[object, ...], float] = {}  # what one transfer is scaled by on all of its ranks, whose symbols may differ
    tags: dict[tuple[int, int], dict[int, list[int]]] = {}
    for rank, program in enumerate(programs):
        replica, local = divmod(rank, world)
        for node, comm_type, size, group, peer, tag, kind in program.comm:
            by = factor.setdefault(size, 1 + SIZE_SHIFT * (2 * rng.random() - 1))
            other = replica * world + local + peer if group < 0 else ABSENT
            sends = model.symbols[program.symbol[node]].type == NodeType.SEND
            pair = (rank, other) if sends else (other, rank)
            if group < 0:
                tag = _tag(tags.setdefault(pair, {}), tag, sends)
            own_group = group_of[replica][group] if group >= 0 else ABSENT
            meeting = (pair, size) if group < 0 else (own_group, kind, size)
            changed = max(round(size * by * of_all.setdefault(meeting, float(scale[program.symbol[node]])) / 4) * 4, 4)
            rows.append((int(offset[rank]) + node, comm_type, changed, own_group, other, tag, kind))
    facts = Communication.of_rows(rows, model.kinds)
    return facts, np.concatenate([np.arange(len(p.symbol)) for p in programs]).astype(np.int64)


def _tag(used: dict[int, list[int]], tag: int, sends: bool) -> int:
    """A tag for each repetition of a message; the k-th send and the k-th receive get the same one."""
    counts = used.setdefault(tag, [0, 0])
    counts[sends] += 1
    return tag + 100_000 * (counts[sends] - 1)


def _groups(structure: SetStructure, replicas: int) -> tuple[tuple[tuple[int, ...], ...], list[list[int]], set[int]]:
    """The groups of all replicas; for each replica the number of each of the source's groups; the groups that grew.

    A group that covers all ranks of the source, counting the distance between its members, grows to span all replicas, as
    data parallelism does.
    """
    world = len(structure.of_rank)
    out: list[tuple[int, ...]] = []
    number: list[list[int]] = [[] for _ in range(replicas)]
    grown = set()
    for group in structure.groups:
        step = min((b - a for a, b in pairwise(group)), default=world)
        grows = replicas > 1 and group[-1] + step - group[0] >= world
        if grows:
            grown.add(len(out))
        copies = [tuple(r + world * replica for r in group) for replica in range(replicas)]
        for replica, own in enumerate(number):
            own.append(len(out) + (0 if grows else replica))
        out += [tuple(r for copy in copies for r in copy)] if grows else copies
    return tuple(out), number, grown


def _grow(duration: Int64, facts: Communication, groups: tuple[tuple[int, ...], ...], grown: set[int], replicas: int) -> None:
    """Lengthen the collectives of groups that grew as in a ring, where (n - 1) / n of the bytes pass each link."""
    for i, group in enumerate(facts.group.tolist()):
        if group in grown:
            n = len(groups[group])
            before = n // replicas
            duration[facts.node[i]] = round(int(duration[facts.node[i]]) * ((n - 1) / n) / ((before - 1) / before))
