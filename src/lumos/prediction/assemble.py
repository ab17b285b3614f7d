"""Turn a layout into a graph of the distinct ranks, in fine form (a task for each kernel) or coarse form (a task for each item).

Every rank has one CPU thread, which launches everything in the layout's order, and one stream per lane. A device task waits
for its launch and for tasks of its block; the first tasks of an item also wait for the last tasks of the items that it waits
for. The two sides of a transfer form a rendezvous.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.blocks.block import Block, Collapsed, Times, collapse
from lumos.blocks.work import RANK_STREAM_NAMES, Collective, RankStream, Work
from lumos.graph.lists import Edges, Lists, end_to_end, offsets, places
from lumos.graph.table import Collectives, Dependency, Graph, Kind, Processor
from lumos.trace.table import ABSENT, Int32, Int64
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.blocks.price import Pricer
    from lumos.prediction.layout import Item, Layout

#: Lane code of the CPU thread.
HOST = -1
#: 80 % interval of host times, as ratios. Server processors of 2019 to 2024 differ by about as much (PassMark, single thread),
#: and so does the Python work of frameworks around a kernel.
_HOST_INTERVAL = (0.6, 1.6)
#: Whether a lane of pipeline transfers sends or receives.
_SIDES: Mapping[RankStream, CollectiveKind] = {
    lane: CollectiveKind.SEND if "SEND" in lane.name else CollectiveKind.RECEIVE
    for lane in RankStream
    if lane >= RankStream.RECEIVE_FORWARD
}


@dataclass(frozen=True, slots=True, eq=False)
class Assembled:
    """A graph. low, high: the durations with every price at the low or the high end of its interval, int64[n] ns."""

    graph: Graph
    low: Int64
    high: Int64
    work: tuple[Work | None, ...]  # of each entry of the pool (None: host work, or a whole block)
    entry: Int64  # of each task: its entry in the pool
    items: tuple[Item, ...]  # of each task: the item that it is part of
    inside: Int64  # [n, 2]: exposed and overlapped communication inside the task of a whole block, ns; 0 in fine form


class _Task(NamedTuple):
    """A task of a block. lane: of its stream, or `HOST`. launch: the index of its launch in the block. inside: as `Assembled.inside`."""

    lane: int
    kind: Kind
    name: str
    times: Times
    launch: int = ABSENT
    work: Work | None = None
    inside: tuple[int, int] = (0, 0)


class _Template(NamedTuple):
    """A block as tasks, the first of which is the host's. edges: (task, predecessor), DATA. first_tasks wait for the blocks before; the
    block has ended with its last_tasks."""

    tasks: list[_Task]
    edges: list[tuple[int, int]]
    first_tasks: list[int]
    last_tasks: list[int]


def assemble(layout: Layout, pricer: Pricer, coarse: bool = False) -> Assembled:
    """The graph of the layout's distinct ranks, with prices from `pricer`."""
    layout = _with_step_factor(layout, pricer.coefficients.step)
    prices = _prices(layout, pricer)
    stages = layout.stages if coarse else [_repeated(items) for items in layout.stages]
    keys = {(item.block, item.repeat) for stage in stages for item in stage}
    if coarse:
        collapsed = {b: collapse(layout.blocks[b], prices[b]) for b in {key[0] for key in keys}}
        templates = {key: _coarse(layout.blocks[key[0]], collapsed[key[0]], key[1]) for key in keys}
    else:
        templates = {key: _fine(layout.blocks[key[0]], prices[key[0]]) for key in keys}
    return _graph_of(stages, templates, pricer)


def _with_step_factor(layout: Layout, factor: float) -> Layout:
    """The layout with the host times of blocks that launch nothing, which are those of a whole step, multiplied by `factor`."""
    blocks = (block if block.ops else replace(block, before=round(block.before * factor)) for block in layout.blocks)
    return replace(layout, blocks=tuple(blocks))


def _prices(layout: Layout, pricer: Pricer) -> list[list[Times]]:
    every = [op.work for block in layout.blocks for op in block.ops]
    prices = iter(pricer(every))
    return [[next(prices).times for _ in block.ops] for block in layout.blocks]


def _repeated(items: Sequence[Item]) -> list[Item]:
    """Items that repeat as several, one after the other."""
    out: list[Item] = []
    last: list[int] = []  # the last new item of each old one
    for item in items:
        waits = tuple(last[w] for w in item.waits)
        for run in range(item.repeat):
            first = {"waits": waits} if run == 0 else {"waits": (len(out) - 1,), "host_waits": False}
            out.append(replace(item, repeat=1, **first))
        last.append(len(out) - 1)
    return out


def _fine(block: Block, times: Sequence[Times]) -> _Template:
    t = _Template([], [], [], [])
    if block.before or not block.ops:
        t.tasks.append(_Task(HOST, Kind.OPERATOR, f"{block.name}: host", _host(block.before)))
    task_of: list[int] = []
    for op, time in zip(block.ops, times, strict=True):
        t.tasks.append(_Task(HOST, Kind.LAUNCH, f"launch {op.name}", _host(op.host)))
        kind, task = Kind.COLLECTIVE if isinstance(op.work, Collective) else Kind.KERNEL, len(t.tasks)
        t.tasks.append(_Task(int(op.lane), kind, op.name, time, task - 1, op.work))
        task_of.append(task)
        t.edges.extend((task, task_of[a]) for a in op.after if block.ops[a].lane is not op.lane)
        if not op.after:
            t.first_tasks.append(task)
    t.last_tasks.extend(task_of[e] for e in block.last_ops)
    return t if t.last_tasks else t._replace(first_tasks=[0], last_tasks=[0])


def _coarse(block: Block, c: Collapsed, repeat: int) -> _Template:
    if not block.ops:
        return _Template([_Task(HOST, Kind.OPERATOR, f"{block.name}: host", _host(block.before))], [], [0], [0])
    c = in_sequence(c, repeat)
    lanes = {op.lane for op in block.ops}
    lane = next(iter(lanes)) if len(lanes) == 1 else RankStream.COMPUTE
    tasks = [_Task(HOST, Kind.LAUNCH, f"launch {block.name}", _host(c.lead))]
    if lane is RankStream.COMPUTE:
        tasks.append(_Task(int(lane), Kind.KERNEL, block.name, c.device, 0, None, (c.exposed, c.overlapped)))
    else:
        tasks.append(_Task(int(lane), Kind.COLLECTIVE, block.name, c.device, 0, block.ops[0].work))
    if c.host > c.lead:
        tasks.append(_Task(HOST, Kind.OPERATOR, f"{block.name}: host", _host(c.host - c.lead)))
    return _Template(tasks, [], [1], [1])


def _host(ns: int) -> Times:
    """Host time with its interval, which is wide: hosts differ far more than devices of one kind."""
    return Times(ns, round(ns * _HOST_INTERVAL[0]), round(ns * _HOST_INTERVAL[1]))


def in_sequence(c: Collapsed, count: int) -> Collapsed:
    """The block `count` times in series."""
    host_limited = c.host_limited + (count - 1) * max(c.host, c.device.best)
    return Collapsed(c.device.repeated(count), host_limited, c.host * count, c.compute * count, c.exposed * count, c.overlapped * count)


def _graph_of(stages: Sequence[Sequence[Item]], templates: dict[tuple[int, int], _Template], pricer: Pricer) -> Assembled:
    number = {key: i for i, key in enumerate(templates)}
    pool = _Pool(list(templates.values()))
    which = np.array([number[item.block, item.repeat] for stage in stages for item in stage], np.int64)
    size = pool.size[which]
    offset = offsets(size)
    total = int(offset[-1])
    source = places(pool.start[which], size)
    stage_of = np.repeat(np.repeat(np.arange(len(stages)), [len(s) for s in stages]), size)
    lane = pool.lane[source]
    processor, processors = _processors(stage_of, lane, pricer.cluster.node.devices)

    edges = Edges()
    _inner_edges(edges, pool, which, offset, source)
    _outer_edges(edges, stages, templates, offset)
    before = edges.predecessors(total)
    rendezvous = _rendezvous(stages, templates, offset)
    ranks = len(stages)
    lag = np.zeros((ranks, len(Dependency)), np.int64)
    latency = pricer.cluster.accelerator.launch_latency_s or 0.0
    lag[:, Dependency.LAUNCH] = round(latency * 1e9)
    times = pool.times[source]
    graph = Graph(
        ranks=tuple(range(ranks)),
        processors=processors,
        names=pool.names,
        duration=np.ascontiguousarray(times[:, 0]),
        processor=processor,
        kind=pool.kind[source],
        name=pool.name[source],
        event=np.full(total, -1, np.int32),
        pred_offset=before.offset,
        pred=before.task,
        pred_kind=before.kind,
        lag=lag,
        rendezvous_offset=rendezvous.offset,
        rendezvous_task=rendezvous.flat.astype(np.int32),
        collectives=_collectives(pool, source, stage_of, rendezvous),
        diagnostics=tuple(pricer.diagnostics),
    )
    items = tuple(item for stage in stages for item in stage for _ in templates[item.block, item.repeat].tasks)
    low, high = (np.ascontiguousarray(times[:, column]) for column in (1, 2))
    return Assembled(graph, low, high, tuple(pool.work), source, items, pool.inside[source])


class _Pool:
    """The tasks of all templates, as columns."""

    def __init__(self, templates: Sequence[_Template]) -> None:
        tasks = [task for t in templates for task in t.tasks]
        self.size = np.array([len(t.tasks) for t in templates], np.int64)
        self.start = offsets(self.size)[:-1]
        self.lane = np.array([task.lane for task in tasks], np.int64)
        self.kind = np.array([task.kind for task in tasks], np.uint8)
        self.times = np.array([task.times for task in tasks], np.int64).reshape(-1, 3)
        self.launched_by = np.array([task.launch for task in tasks], np.int64)
        names: dict[str, int] = {}
        self.name = np.array([names.setdefault(task.name, len(names)) for task in tasks], np.int32)
        self.names = tuple(names)
        self.inside = np.array([task.inside for task in tasks], np.int64).reshape(-1, 2)
        self.work = [task.work for task in tasks]
        self.edge_count = np.array([len(t.edges) for t in templates], np.int64)
        self.edge_start = offsets(self.edge_count)[:-1]
        self.edges = np.array([e for t in templates for e in t.edges], np.int64).reshape(-1, 2)


def _inner_edges(edges: Edges, pool: _Pool, which: Int64, offset: Int64, source: Int64) -> None:
    """Add the edges inside each instance, as its template has them."""
    launch = pool.launched_by[source]
    base = np.repeat(offset[:-1], pool.size[which])
    launched = np.flatnonzero(launch >= 0)
    count = pool.edge_count[which]
    rows = pool.edges[places(pool.edge_start[which], count)]
    at = np.repeat(offset[:-1], count)
    edges.add((base + launch)[launched], launched, Dependency.LAUNCH)
    edges.add(at + rows[:, 1], at + rows[:, 0], Dependency.DATA)


def _outer_edges(edges: Edges, stages: Sequence[Sequence[Item]], templates: dict[tuple[int, int], _Template], offset: Int64) -> None:
    """Add the edges between instances: from the last tasks of the one to the first tasks of the one that waits for it.

    Tasks of one lane need no edge, since a stream keeps its order.
    """
    data: list[tuple[int, int]] = []
    host: list[tuple[int, int]] = []
    begins = offset.tolist()
    base = 0
    for stage in stages:
        used = [templates[item.block, item.repeat] for item in stage]
        for i, item in enumerate(stage):
            t, here = used[i], begins[base + i]
            for w in item.waits:
                other, there = used[w], begins[base + w]
                for end in other.last_tasks:
                    lane = other.tasks[end].lane
                    data.extend((there + end, here + head) for head in t.first_tasks if t.tasks[head].lane != lane)
                    if item.host_waits and lane != HOST:
                        host.append((there + end, here))
        base += len(stage)
    for pairs, kind in ((data, Dependency.DATA), (host, Dependency.SYNC)):
        before, after = np.array(pairs, np.int64).reshape(-1, 2).T
        edges.add(before, after, kind)


def _processors(stage: Int64, lane: Int64, per_node: int) -> tuple[Int32, tuple[Processor, ...]]:
    width = len(RankStream) + 1
    code = stage * width + lane + 1
    used, processor = np.unique(code, return_inverse=True)
    out = []
    for c in used.tolist():
        rank, at = divmod(c, width)
        if at == 0:
            out.append(Processor(rank, False, "thread 1 (training)", lane=-1))
        else:
            out.append(Processor(rank, True, f"stream {at} ({RANK_STREAM_NAMES[at - 1]})", device=rank % per_node, stream=at))
    return processor.astype(np.int32), tuple(out)


def _rendezvous(stages: Sequence[Sequence[Item]], templates: dict[tuple[int, int], _Template], offset: Int64) -> Lists:
    sets: dict[str, list[int]] = {}
    base = 0
    for stage in stages:
        for i, item in enumerate(stage):
            if item.transfer:
                t = templates[item.block, item.repeat]
                sets.setdefault(item.transfer, []).append(int(offset[base + i]) + t.last_tasks[0])
        base += len(stage)
    return end_to_end([s for s in sets.values() if len(s) > 1])


def _collectives(pool: _Pool, source: Int64, stage: Int64, rendezvous: Lists) -> Collectives | None:
    """Facts of the collective tasks; in coarse form, of the first collective in the block.

    stage: rank of each task. rendezvous: the tasks that transfer together, which give the peers. Groups are named by lane and
    size.
    """
    has = np.array([isinstance(w, Collective) for w in pool.work], bool)
    task = np.flatnonzero(has[source])
    if len(task) == 0:
        return None
    kinds: dict[CollectiveKind, int] = {}
    groups: dict[str, int] = {}
    facts = np.full((len(pool.work), 4), ABSENT, np.int64)  # of each entry of the pool: kind, bytes, group, ranks
    for i, (entry, lane) in enumerate(zip(pool.work, pool.lane.tolist(), strict=True)):
        if isinstance(entry, Collective):
            kind = kinds.setdefault(_SIDES.get(RankStream(lane), entry.kind), len(kinds))
            group = groups.setdefault(f"{RANK_STREAM_NAMES[lane]} of {entry.ranks}", len(groups))
            facts[i] = kind, entry.input_bytes, group, entry.ranks
    kind, nbytes, group, size = facts[source[task]].T
    return Collectives(
        task=task.astype(np.int32),
        kind=kind.astype(np.int32),
        nbytes=nbytes.copy(),
        group=group.astype(np.int32),
        sequence=np.full(len(task), ABSENT, np.int64),
        peer=_peers(stage, pool.lane[source], rendezvous)[task],
        kinds=tuple(kinds),
        groups=tuple(groups),
        size=size.astype(np.int32),
    )


def _peers(stage: Int64, lane: Int64, rendezvous: Lists) -> Int32:
    """The rank on the other side of each transfer, int32[n]; ABSENT for all other tasks."""
    peer = np.full(len(stage), ABSENT, np.int32)
    first = rendezvous.offset[:-1][np.diff(rendezvous.offset) == 2]
    one, other = rendezvous.flat[first], rendezvous.flat[first + 1]
    peer[one], peer[other] = stage[other], stage[one]
    peer[~np.isin(lane, list(_SIDES))] = ABSENT
    return peer
