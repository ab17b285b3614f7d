"""All ranks of an emulated job, as one graph.

Only distinct processes are run; each says which other ranks do the same work. A copy gets the tasks of the process that it copies,
with the groups that it is itself a member of: of the groups that were made together, the one that holds the copy stands for the one that
holds the original, and its peers are its own too. So collectives and messages of all ranks meet, and a rank that waits for another does
so in the simulation.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.emulation.accelerators import ON_CPUS
from lumos.emulation.device.launch import width
from lumos.emulation.distinct import peer_of_copy
from lumos.errors import GraphError, LumosError
from lumos.graph.lists import Edges, Lists, end_to_end, offsets
from lumos.graph.table import Collectives, Dependency, Graph, Processor
from lumos.trace.table import ABSENT, Int64
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.blocks.price import Pricer
    from lumos.emulation.device.program import DeviceProgram
    from lumos.emulation.record import Exchange, Group

#: A job may have so many tasks: some 100 bytes each.
_MOST_TASKS = 40_000_000
#: The streams of a device: the default one has this number, as in a profiler's rows, and others follow from the second on.
DEFAULT_STREAM, FIRST_STREAM = 7, 13


class Fact(NamedTuple):
    """What one rank's exchange is: its task in the graph, and its group and peer as that rank has them."""

    task: int
    rank: int
    exchange: Exchange
    group: Group
    peer: int


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """The graph of all ranks. of: the process of each rank, by its index in `programs`. first: the first task of each rank,
    int64[ranks + 1]. facts: the exchanges of each rank, by task of its program."""

    graph: Graph
    programs: tuple[DeviceProgram, ...]
    of: tuple[int, ...]
    first: Int64
    facts: tuple[dict[int, Fact], ...]


def all_ranks(programs: Sequence[DeviceProgram], pricer: Pricer) -> Ranks:
    """The job of the processes and their copies. Raises LumosError where the job is too large, or ranks make different exchanges."""
    of = _of(programs)
    sizes = np.array([len(programs[i].tasks) for i in of], np.int64)
    first = offsets(sizes)
    if int(first[-1]) > _MOST_TASKS:
        raise LumosError(
            f"an emulated job of {len(of)} ranks has {int(first[-1]):,} tasks, more than {_MOST_TASKS:,}: emulate fewer ranks or steps"
        )
    columns = [_Columns(program, pricer) for program in programs]
    members = [_Members(program) for program in programs]
    facts = tuple(_facts(programs[i], members[i], rank, int(first[rank])) for rank, i in enumerate(of))
    processors, shift = _processors(programs, of, pricer)
    names: dict[str, int] = {}
    name_of = [np.array([names.setdefault(task.name, len(names)) for task in p.tasks], np.int32) for p in programs]
    edges = Edges()
    for rank, source in enumerate(of):
        for kind, before, after in columns[source].edges:
            edges.add(before + first[rank], after + first[rank], kind)
    before = edges.predecessors(int(first[-1]))
    numbers = _Numbers(facts)
    rendezvous = _rendezvous(facts, numbers, [programs[i].process.lines for i in of])
    lag = np.zeros((len(of), len(Dependency)), np.int64)
    lag[:, Dependency.LAUNCH] = round(1e9 * (pricer.cluster.accelerator.launch_latency_s or 0.0))
    graph = Graph(
        ranks=tuple(range(len(of))), processors=processors, names=tuple(names), duration=np.concatenate([columns[i].duration for i in of]),
        processor=np.concatenate([columns[i].lane + shift[rank] for rank, i in enumerate(of)]).astype(np.int32),
        kind=np.concatenate([columns[i].kind for i in of]), name=np.concatenate([name_of[i] for i in of]),
        event=np.full(int(first[-1]), -1, np.int32), pred_offset=before.offset, pred=before.task, pred_kind=before.kind, lag=lag,
        rendezvous_offset=rendezvous.offset, rendezvous_task=rendezvous.flat.astype(np.int32),
        collectives=_collectives(facts, numbers), diagnostics=tuple(pricer.diagnostics),
    )  # fmt: skip
    return Ranks(graph, tuple(programs), tuple(of), first, facts)


def stream_numbers(program: DeviceProgram) -> list[int]:
    """The number of each stream of a program, as its rows show it."""
    return [DEFAULT_STREAM if name == 0 else FIRST_STREAM + 4 * i for i, name in enumerate(program.stream_names)]


def _of(programs: Sequence[DeviceProgram]) -> list[int]:
    """Which program each rank runs."""
    of = {rank: i for i, program in enumerate(programs) for rank in (program.process.rank, *program.process.copies)}
    return [of[rank] for rank in range(max(p.process.world for p in programs))]


class _Columns:
    """The tasks of one program as columns, and its edges by kind. lane: threads first, then streams."""

    def __init__(self, program: DeviceProgram, pricer: Pricer) -> None:
        tasks, threads = program.tasks, len(program.by_thread)
        works = [task.work for task in tasks if task.work is not None]
        prices = iter(pricer(works))
        self.duration = np.array([task.ns if task.work is None else next(prices).times.best for task in tasks], np.int64)
        self.lane = np.array([task.lane + threads * task.on_device for task in tasks], np.int64)
        self.kind = np.array([task.kind for task in tasks], np.uint8)
        by_kind: dict[Dependency, list[tuple[int, int]]] = defaultdict(list)
        for before, after, kind in program.edges:
            by_kind[kind].append((before, after))
        self.edges = [(kind, *np.array(pairs, np.int64).T) for kind, pairs in by_kind.items()]


def _processors(programs: Sequence[DeviceProgram], of: Sequence[int], pricer: Pricer) -> tuple[tuple[Processor, ...], list[int]]:
    """The threads and streams of every rank, and where those of each rank begin."""
    out: list[Processor] = []
    shift = []
    devices = pricer.cluster.node.devices
    for rank, i in enumerate(of):
        shift.append(len(out))
        out += [Processor(rank, False, f"thread {name}") for name in programs[i].process.threads]
        numbers = stream_numbers(programs[i])
        if programs[i].process.accelerator == ON_CPUS:
            out += [Processor(rank, False, f"thread of exchanges {number}") for number in numbers]
        else:
            out += [Processor(rank, True, f"stream {number}", device=rank % devices, stream=number) for number in numbers]
    return tuple(out), shift


class _Members:
    """The groups of a program by their members, since to look through a list of all ranks for each rank takes too long for many."""

    def __init__(self, program: DeviceProgram) -> None:
        self.original = program.process.rank
        self.groups = {group.name: group for group in program.process.groups}
        self.holding: dict[tuple[int, int], dict[str, Group]] = defaultdict(dict)
        for group in program.process.groups:
            for rank in group.ranks:
                self.holding[group.made, rank][group.name] = group

    def mapped(self, group: Group, copy: int) -> Group:
        """The group that holds the copy where `group` holds the original."""
        of_copy = self.holding[group.made, copy]
        if group.name in of_copy or group.name not in self.holding[group.made, self.original]:
            return group
        return next(iter(of_copy.values()))


def _facts(program: DeviceProgram, members: _Members, rank: int, first: int) -> dict[int, Fact]:
    """The exchanges of a rank, by the task of its program."""
    mapped = {name: members.mapped(group, rank) for name, group in members.groups.items()}
    out = {}
    for number, task in enumerate(program.tasks):
        if task.exchange >= 0:
            exchange = program.process.exchanges[task.exchange]
            group = mapped[exchange.group]
            peer = peer_of_copy(rank, members.original, exchange, members.groups[exchange.group], group)
            out[number] = Fact(first + number, rank, exchange, group, peer)
    return out


class _Numbers:
    """A number for each group, equal for groups that are equal: of their ranks and, to meet, of their name too."""

    def __init__(self, facts: Sequence[dict[int, Fact]]) -> None:
        groups = {id(fact.group): fact.group for own in facts for fact in own.values()}
        texts: dict[str, int] = {}
        meetings: dict[tuple[str, int], int] = {}
        self.of_ranks = {key: texts.setdefault(str(group.ranks), len(texts)) for key, group in groups.items()}
        self.to_meet = {key: meetings.setdefault((group.name, self.of_ranks[key]), len(meetings)) for key, group in groups.items()}
        self.texts = tuple(texts)


def _rendezvous(facts: Sequence[dict[int, Fact]], numbers: _Numbers, lines: Sequence[list[str]]) -> Lists:
    """The tasks that meet: of one group and number; of messages the k-th from one rank to another. lines: of the script, of each rank.

    Raises LumosError where those that meet are not of one kind and size."""
    sets: dict[tuple[object, ...], list[Fact]] = defaultdict(list)
    for own in facts:
        counted: dict[tuple[object, ...], int] = defaultdict(int)
        for fact in own.values():
            sets[_meeting(fact, numbers.to_meet[id(fact.group)], counted)].append(fact)
    for members in sets.values():
        others = {id(fact.exchange): fact for fact in reversed(members)}  # copies have the exchange of their original
        other = next((fact for fact in others.values() if len(others) > 1 and not _go_together(members[0].exchange, fact.exchange)), None)
        if other is not None:
            said = " but ".join(_said(fact, lines[fact.rank]) for fact in (members[0], other))
            raise LumosError(f"the ranks of a group make different exchanges: {said}: let all make the same, of one size and in one order")
    return end_to_end([[fact.task for fact in members] for members in sets.values() if len(members) > 1])


#: Names of exchanges of one tensor, of which all ranks bring as much.
_WHOLE = {"allreduce_", "allreduce", "broadcast_", "_allgather_base_", "_reduce_scatter_base_", "allgather_into_tensor_coalesced_"}


def _go_together(one: Exchange, other: Exchange) -> bool:
    """Whether two exchanges that meet may be one: of lists and of parts, sizes may differ."""
    if one.kind.is_transfer:
        return _bytes(one) == _bytes(other)
    return one.kind is other.kind and (one.host or one.name != other.name or one.name not in _WHOLE or _bytes(one) == _bytes(other))


def _bytes(exchange: Exchange) -> int:
    """The bytes of what a rank brings to an exchange, or gets by a transfer."""
    return max(exchange.input_elements, exchange.kind.is_transfer * exchange.output_elements) * width(exchange.dtype)


def _said(fact: Fact, lines: Sequence[str]) -> str:
    where = f" at {lines[fact.exchange.line]}" if fact.exchange.line >= 0 else ""
    return f"rank {fact.rank} makes {fact.exchange.name.strip('_')} of {_bytes(fact.exchange):,} bytes{where}"


def wait_for_ever(job: Ranks, error: GraphError) -> LumosError:
    """The error of a job whose ranks wait for each other, by the lines of the script."""
    found = {fact.rank: fact for own in job.facts for fact in reversed(own.values()) if fact.task in error.tasks}
    said = " and ".join(_said(found[rank], job.programs[job.of[rank]].process.lines) for rank in sorted(found)[:2])
    remedy = "let one of the two send first, or batch_isend_irecv do both"
    return LumosError(f"the ranks wait for each other for ever: {said}: {remedy}" if said else str(error))


def _meeting(fact: Fact, group: int, counted: dict[tuple[object, ...], int]) -> tuple[object, ...]:
    """What is equal for the tasks that meet. group: its number. counted: how many of a rank came before, for each way of meeting."""
    ranks: tuple[object, ...] = (group,)
    if fact.exchange.kind in (CollectiveKind.SEND, CollectiveKind.RECEIVE):
        ends = (fact.rank, fact.peer) if fact.exchange.kind is CollectiveKind.SEND else (fact.peer, fact.rank)
        ranks = (*ranks, *ends)
    counted[ranks] += 1
    return (*ranks, counted[ranks])


def _collectives(facts: Sequence[dict[int, Fact]], numbers: _Numbers) -> Collectives | None:
    """The facts of all exchanges."""
    rows = [fact for own in facts for fact in own.values()]
    if not rows:
        return None
    kinds: dict[CollectiveKind, int] = {}
    side = (CollectiveKind.SEND, CollectiveKind.RECEIVE)
    return Collectives(
        task=np.array([f.task for f in rows], np.int32),
        kind=np.array([kinds.setdefault(f.exchange.kind, len(kinds)) for f in rows], np.int32),
        nbytes=np.array([_bytes(f.exchange) for f in rows], np.int64),
        group=np.array([numbers.of_ranks[id(f.group)] for f in rows], np.int32),
        sequence=np.array([f.exchange.sequence for f in rows], np.int64),
        peer=np.array([f.peer if f.exchange.kind in side else ABSENT for f in rows], np.int32),
        kinds=tuple(kinds), groups=numbers.texts, size=np.array([len(f.group.ranks) for f in rows], np.int32),
    )  # fmt: skip
