"""Sets sampled from a model: like the source, or as it might be with other ranks, layers and speeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from lumos.chakra.build import graph_of
from lumos.chakra.lower import lower
from lumos.chakra.synthesize.model import RUN, Model, Program, Structure, run_hashes
from lumos.chakra.synthesize.repeats import regions
from lumos.chakra.workload import Communication, Workload
from lumos.errors import UsageError
from lumos.graph.edges import distinct
from lumos.graph.lists import Lists, grouped, offsets
from lumos.graph.table import Graph, Step
from lumos.simulate import simulate
from lumos.trace.chakra_wire import NodeType
from lumos.trace.table import ABSENT, Int64

#: What `--scale` changes.
SCALES = ("compute", "host", "communication", "size")
#: Sizes move by up to this share, each size by its own.
SIZE_SHIFT = 0.03
#: How often runs that a source has are looked for and lengthened.
ATTEMPTS = 12
#: Durations move by up to this share beside their quantile, so that operators seen once do not keep theirs.
JITTER = 0.02


def sample(
    model: Model, seed: int = 0, *, ranks: int | None = None, layers: int | None = None, scale: Mapping[str, float] | None = None
) -> Graph:
    """A graph from the model. The same seed gives the same graph.

    ranks: a multiple of the source's ranks; what spans all of the source's ranks then spans all. layers: how often the
    repeating part of every rank repeats. scale: by what factor compute, host, communication times, and sizes change.
    UsageError where the model cannot give that.
    """
    unknown = sorted(set(scale or ()) - set(SCALES))
    if unknown or any(factor <= 0 for factor in (scale or {}).values()):
        raise UsageError(f"--scale {unknown[0] if unknown else ''}: give one of {', '.join(SCALES)} and a factor above 0")
    rng = np.random.default_rng(seed)
    structure = model.structures[int(rng.integers(len(model.structures)))]
    if layers is not None:
        structure = _with_layers(structure, layers)
    world = len(structure.of_rank)
    if ranks is not None and (ranks < world or ranks % world):
        raise UsageError(f"--ranks {ranks}: the source has {world} ranks; give a multiple of it")
    replicas = (ranks or world) // world
    workload = _workload(model, structure, replicas, rng, scale or {})
    graph = _without_runs(replace(graph_of(workload), event=np.arange(len(workload), dtype=np.int32)), model)
    timeline = simulate(graph)
    marked = _steps([structure.programs[p] for p in structure.of_rank] * replicas, workload.rank_offset, timeline.start)
    none = np.full(len(graph), ABSENT, np.int32)
    return replace(graph, event=none, measured_start=timeline.start, measured_end=timeline.end, steps=marked)


def _without_runs(graph: Graph, model: Model) -> Graph:
    """The graph with no run of short durations that a source has: one of the four becomes some nanoseconds longer."""
    known = np.frombuffer(model.short_runs, "<u4")
    plain = replace(graph, measured_start=None, measured_end=None)
    for by in range(1, ATTEMPTS):
        workload = lower(plain)
        where, hashes = run_hashes(workload)
        met = where[np.isin(hashes, known)]
        if not len(met):
            break
        assert workload.event is not None
        longer = plain.duration.copy()
        place = met[:, None] + np.arange(RUN)
        longest = place[np.arange(len(met)), workload.duration[place].argmax(axis=1)]
        task = workload.event[longest]
        longer[task[task >= 0]] += by
        plain = replace(plain, duration=longer)
    return plain


def _steps(programs: list[Program], offset: Int64, start: Int64) -> tuple[Step, ...]:
    """The training steps where they lie in the sample."""
    return tuple(
        Step(rank, f"step {number}", int(start[low + first]), int(start[low + last]) + 1)
        for rank, (program, low) in enumerate(zip(programs, offset.tolist(), strict=False))
        for number, (first, last) in enumerate(program.steps)
    )


def _workload(model: Model, structure: Structure, replicas: int, rng: np.random.Generator, scale: Mapping[str, float]) -> Workload:
    programs = [structure.programs[p] for p in structure.of_rank] * replicas
    world = len(structure.of_rank)
    offset = offsets([len(p.symbol) for p in programs])
    symbol = np.concatenate([np.array(p.symbol, np.int64) for p in programs])
    groups, group_of, grown = _groups(structure, replicas)
    facts, back = _communication(model, programs, offset, world, group_of, rng, scale.get("size", 1.0))
    duration = _durations(model, symbol, rng, scale)
    if replicas > 1:
        _grow(duration, facts, groups, grown, replicas)
    dep_offset, dep = _dependencies(programs, offset)
    labels, of_symbol = _labels(model, rng)
    column = {name: np.array([getattr(s, name) for s in model.symbols])[symbol] for name in ("type", "on_cpu", "kind")}
    none = np.full(len(symbol), ABSENT, np.int64)
    return Workload(
        ranks=tuple(range(len(programs))),
        rank_offset=offset,
        type=column["type"].astype(np.uint8),
        on_cpu=column["on_cpu"].astype(bool),
        kind=column["kind"].astype(np.uint8),
        name=of_symbol[symbol].astype(np.int32),
        names=labels,
        queue=np.concatenate([np.array(p.queue, np.int32) for p in programs]),
        start=back,
        duration=duration,
        release=np.concatenate([np.array(p.release, np.int64) for p in programs]),
        operations=none,
        bytes=none,
        dep_offset=dep_offset,
        dep=dep,
        communication=facts,
        groups=groups,
    )


def _labels(model: Model, rng: np.random.Generator) -> tuple[tuple[str, ...], Int64]:
    """Names that say nothing: numbers in an order of their own; and each symbol's."""
    labels = sorted({s.label for s in model.symbols})
    number = dict(zip(labels, rng.permutation(len(labels)).tolist(), strict=True))
    return tuple(f"op{i}" for i in range(len(labels))), np.array([number[s.label] for s in model.symbols])


def _durations(model: Model, symbol: Int64, rng: np.random.Generator, scale: Mapping[str, float]) -> Int64:
    """A duration for every node: each symbol's nodes take one value from each equal share of its distribution."""
    out = np.zeros(len(symbol), np.float64)
    bounds, order = grouped(symbol, len(model.symbols))
    for i, s in enumerate(model.symbols):
        nodes = order[bounds[i] : bounds[i + 1]]
        if not len(nodes):
            continue
        probability = (rng.permutation(len(nodes)) + rng.random(len(nodes))) / len(nodes)
        points = np.array(s.quantiles, np.float64)
        what = "communication" if s.type != NodeType.COMP else "host" if s.on_cpu else "compute"
        shift = 1 + JITTER * (2 * rng.random(len(nodes)) - 1)
        out[nodes] = np.interp(probability, np.linspace(0, 1, len(points)), points) * shift * scale.get(what, 1.0)
    return np.rint(out).astype(np.int64)


def _dependencies(programs: list[Program], offset: Int64) -> Lists:
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
    model: Model,
    programs: list[Program],
    offset: Int64,
    world: int,
    group_of: list[list[int]],
    rng: np.random.Generator,
    scale: float,
) -> tuple[Communication, Int64]:
    """The facts of all ranks, and starts that only keep the order of every rank's nodes."""
    rows = []
    factor: dict[int, float] = {}
    tags: dict[tuple[int, int], dict[int, list[int]]] = {}
    for rank, program in enumerate(programs):
        replica, local = divmod(rank, world)
        for node, kind, size, group, peer, tag, was in program.comm:
            by = factor.setdefault(size, 1 + SIZE_SHIFT * (2 * rng.random() - 1))
            moved = max(round(size * by * scale / 4) * 4, 4)
            other = replica * world + local + peer if group < 0 else ABSENT
            sends = model.symbols[program.symbol[node]].type == NodeType.SEND
            if group < 0:
                pair = (rank, other) if sends else (other, rank)
                tag = _tag(tags.setdefault(pair, {}), tag, sends)
            rows.append((int(offset[rank]) + node, kind, moved, group_of[replica][group] if group >= 0 else ABSENT, other, tag, was))
    table = np.array(rows, np.int64).reshape(len(rows), 7)
    facts = Communication(
        node=table[:, 0],
        type=table[:, 1].astype(np.int32),
        size=table[:, 2],
        group=table[:, 3].astype(np.int32),
        peer=table[:, 4].astype(np.int32),
        tag=table[:, 5].astype(np.int32),
        kind=table[:, 6].astype(np.int32),
        kinds=model.kinds,
    )
    return facts, np.concatenate([np.arange(len(p.symbol)) for p in programs]).astype(np.int64)


def _tag(used: dict[int, list[int]], tag: int, sends: bool) -> int:
    """A tag of its own for each repetition of a message: its k-th send and its k-th receive agree."""
    counts = used.setdefault(tag, [0, 0])
    counts[sends] += 1
    return tag + 100_000 * (counts[sends] - 1)


def _groups(structure: Structure, replicas: int) -> tuple[tuple[tuple[int, ...], ...], list[list[int]], set[int]]:
    """The groups of all replicas; each replica's number of each of the source's; those that grew.

    A group that reaches from the first tenth of the ranks to the last is one over everything, as data parallelism is.
    """
    world = len(structure.of_rank)
    out: list[tuple[int, ...]] = []
    number: list[list[int]] = [[] for _ in range(replicas)]
    grown = set()
    for group in structure.groups:
        step = min((b - a for a, b in pairwise(group)), default=world)
        if replicas > 1 and group[-1] + step - group[0] >= world:
            grown.add(len(out))
            for replica in range(replicas):
                number[replica].append(len(out))
            out.append(tuple(r + world * i for i in range(replicas) for r in group))
            continue
        for replica in range(replicas):
            number[replica].append(len(out))
            out.append(tuple(r + world * replica for r in group))
    return tuple(out), number, grown


def _grow(duration: Int64, facts: Communication, groups: tuple[tuple[int, ...], ...], grown: set[int], replicas: int) -> None:
    """Collectives of groups that grew last longer, as a ring does: (n - 1) / n of the bytes pass each link."""
    for i, group in enumerate(facts.group.tolist()):
        if group in grown:
            n = len(groups[group])
            before = n // replicas
            duration[facts.node[i]] = round(int(duration[facts.node[i]]) * ((n - 1) / n) / ((before - 1) / before))


def _with_layers(structure: Structure, layers: int) -> Structure:
    """The structure with its repeating parts repeated `layers` times. UsageError where no rank has any."""
    if layers < 1:
        raise UsageError(f"--layers {layers}: at least one")
    changed = [_program_with_layers(p, layers) for p in structure.programs]
    if all(p is None for p in changed):
        raise UsageError("--layers: no part of what the ranks run repeats three times or more; the source has no layers to count")
    programs = tuple(new or old for new, old in zip(changed, structure.programs, strict=True))
    return Structure(programs, structure.of_rank, structure.groups)


def _program_with_layers(program: Program, layers: int) -> Program | None:
    """The program with every region of its layers `layers` units long; None where nothing repeats.

    With enough communication, layers are told by it: what lies between differs by noise. Else by the symbols.
    """
    by_comm = len(program.comm) >= 6
    if by_comm:
        keys: list[tuple[int, ...]] = [(c[1], c[2], c[3], c[4], c[6]) for c in program.comm]
        cuts = [0, *(c[0] + 1 for c in program.comm)]
    else:
        keys = [(s,) for s in program.symbol]
        cuts = list(range(len(program.symbol) + 1))
    index: dict[tuple[int, ...], int] = {}
    found = regions(np.array([index.setdefault(k, len(index)) for k in keys], np.int64))
    if not found:
        return None
    order: list[int] = []
    at = 0
    for region in found:
        begin, end = cuts[region.start], cuts[region.start + region.period * region.times]
        order += range(at, begin)
        for unit in range(layers):
            first = region.start + region.period * (unit % region.times)
            order += range(cuts[first], cuts[first + region.period])
        at = end
    order += range(at, len(program.symbol))
    rows = {c[0]: c for c in program.comm}
    return Program(
        symbol=tuple(program.symbol[i] for i in order),
        queue=tuple(program.queue[i] for i in order),
        release=tuple(program.release[i] for i in order),
        deps=tuple(program.deps[i] for i in order),
        comm=tuple((place, *rows[i][1:]) for place, i in enumerate(order) if i in rows),
    )
