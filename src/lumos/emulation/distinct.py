"""Which ranks of a job do work of their own, which do the same as another, and whom a copy talks to.

The process groups that rank 0 made are the dimensions in which ranks differ. Where the last rank, which is elsewhere along all of them,
does what rank 0 does, they all do. Else there are as many kinds of ranks as there are places along the dimensions that change the work, as
with the stages of a pipeline; a rank and its neighbour along each dimension tell which ones these are. They are taken between rank 0, which
often writes the log, and the last one, which has what is left of sizes that do not divide, so that these two may be of kinds of their own.
Ranks that do the same on parts of different sizes, as with a vocabulary that does not divide, are of one kind, but for those that ran.

A copy's peer is as far on in its group as the original's peer is in the original's: the same tensor-parallel rank of the next pipeline
stage, or the next rank of a ring.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from lumos.emulation.record import Argument, Group, Operator, Process, Tensor
from lumos.operators.table import OperatorKind, kind_of, own_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lumos.emulation.record import Exchange

#: What every rank does as often, whatever is left for it of sizes that do not divide: the layers of a model hold these.
_PRODUCTS = (OperatorKind.MULTIPLICATION, OperatorKind.CONVOLUTION)

#: A dimension: for each rank that is in one of its groups, the ranks of that group, in order.
MeshDimension = dict[int, list[int]]


def mesh_dimensions(process: Process) -> list[MeshDimension]:
    """The dimensions of a job with several ranks, from the groups that a rank knows. Where these do not reach every rank, as with a script
    that has the group of all ranks for its replicas, one more dimension joins the ranks at the same places along the others; where that
    does not reach every rank either, it joins all."""
    families: dict[int, MeshDimension] = defaultdict(dict)
    for group in process.groups:
        families[group.made] |= dict.fromkeys(group.ranks, group.ranks)
    smaller = [dimension for dimension in families.values() if 1 < len(next(iter(dimension.values()))) < process.world]
    everyone = list(range(process.world))
    elsewhere: dict[tuple[int | None, ...], list[int]] = {}
    for rank in everyone:
        elsewhere.setdefault(tuple(_place(dimension, rank) for dimension in smaller), []).append(rank)
    alike = {rank: ranks for ranks in elsewhere.values() for rank in ranks}
    choices = (smaller, [*smaller, alike], [*smaller, dict.fromkeys(everyone, everyone)])
    return next(dimensions for dimensions in choices if len(to_run(dimensions)) == process.world)


class RankWork(NamedTuple):
    """Ranks that ran, in order, and for each the others that do the same."""

    run: list[int]
    copies: dict[int, list[int]]


def distinct_work(
    world: int, along: Sequence[MeshDimension], ran: Callable[[Sequence[int]], Sequence[Process]], last_ran: bool
) -> RankWork:
    """Which of the job's ranks do work of their own. along: its dimensions. ran: runs ranks that have not run, and gives their records.
    last_ran: the last rank has run."""

    def alike(one: int, other: int, compared: Callable[[Process, Process], bool]) -> bool:
        return compared(*ran([one, other]))

    last = world - 1
    if last_ran and all(None not in both and both[0] != both[1] for both in ((_place(axis, 0), _place(axis, last)) for axis in along)):
        if alike(0, last, same_work):
            return RankWork([0], copies(world, [0], along))
        if alike(0, last, same_but_sizes):
            return RankWork([0, last], {0: list(range(1, last)), last: []})
    start = diagonal(along)
    beside = [neighbour(axis, start) for axis in along]
    ran([start, *(rank for rank in beside if rank is not None)])
    changing = [axis for axis, rank in zip(along, beside, strict=True) if rank is None or not alike(start, rank, same_but_sizes)]
    needed = to_run(changing, start)
    ran(needed)
    copies_of = copies(world, needed, [axis for axis in along if axis not in changing])
    for rank in sorted({0, *(rank for rank in beside if rank is not None), *([last] if last_ran else [])}):
        if rank not in copies_of:
            leader = next(original for original, others in copies_of.items() if rank in others)
            if not alike(rank, leader, same_work):
                copies_of[leader].remove(rank)
                copies_of[rank] = []
            elif rank == 0:  # it ran first, and stands for the ranks that do the same
                copies_of[rank] = sorted([leader, *(other for other in copies_of.pop(leader) if other)])
    return RankWork(sorted(copies_of), dict(sorted(copies_of.items())))


def _place(dimension: MeshDimension, rank: int) -> int | None:
    return dimension[rank].index(rank) if rank in dimension else None


def diagonal(along: Sequence[MeshDimension]) -> int:
    """The rank that is one on from rank 0 along every dimension."""
    rank = 0
    for dimension in along:
        group = dimension.get(rank, [rank])
        rank = group[(group.index(rank) + 1) % len(group)]
    return rank


def neighbour(dimension: MeshDimension, rank: int) -> int | None:
    """The next rank along a dimension that is not rank 0; None where there is none."""
    group = dimension.get(rank, [rank])
    position = group.index(rank)
    return next((other for other in (*group[position + 1 :], *group[:position]) if other), None)


def to_run(changing: Iterable[MeshDimension], start: int = 0) -> list[int]:
    """The ranks that are reached from one of them along some dimensions: those that must run, where these change the work."""
    reached, waiting = {start}, [start]
    while waiting:
        rank = waiting.pop()
        more = {other for dimension in changing for other in dimension.get(rank, ())} - reached
        reached |= more
        waiting += more
    return sorted(reached)


def copies(world: int, run: Iterable[int], unchanging: Sequence[MeshDimension]) -> dict[int, list[int]]:
    """For each rank that ran, the others that do the same. Ranks that no dimension leads to are copies of the first."""
    others: dict[int, list[int]] = {rank: [] for rank in sorted(run)}
    leader: dict[int, int] = {}
    for rank in others:
        leader |= {} if rank in leader else dict.fromkeys(to_run(unchanging, rank), rank)
    for rank in range(world):
        if rank not in others:
            others[leader.get(rank, min(others))].append(rank)
    return others


def same_work(one: Process, other: Process) -> bool:
    """Whether two ranks ask the same of their devices, in the same order: operators with their shapes, calls, and exchanges with their
    sizes within groups of the same dimension."""
    compared: tuple[Callable[[Process], Any], ...] = (_operators, _calls, _exchanges)
    return all(work_of(one) == work_of(other) for work_of in compared)


def same_but_sizes(one: Process, other: Process) -> bool:
    """Whether two ranks do the same on parts of different sizes, as the last one has what is left of a dimension that does not divide: the
    same kinds of operators, the same waits, and in one order the same multiplications and exchanges within groups of the same dimension."""
    kinds: tuple[Callable[[Process], Any], ...] = (
        # an optimizer leaves out parameters of which a rank has nothing
        lambda process: {e.name for e in (*process.operators, *_launched(process)) if e.leaf and not e.name.startswith("aten::_foreach")},
        _calls,
        _order,
    )
    return all(work_of(one) == work_of(other) for work_of in kinds)


def _operators(process: Process) -> list[tuple[Any, ...]]:
    return [(call.name, call.thread, call.stream, _shapes(call.inputs)) for call in (*process.operators, *_launched(process))]


def _launched(process: Process) -> list[Operator]:
    """The operators of CUDA graphs, as often as these are launched."""
    return [operator for call in process.calls if call.graph >= 0 for operator in process.graphs[call.graph]]


def _calls(process: Process) -> list[tuple[Any, ...]]:
    return [(call.kind, call.stream, call.event, call.exchange) for call in process.calls]


def _exchanges(process: Process) -> list[tuple[Any, ...]]:
    both = zip(_ways(process), process.exchanges, strict=True)
    return [(*way, exchange.input_elements, exchange.output_elements, exchange.dtype) for way, exchange in both]


def _ways(process: Process) -> list[tuple[Any, ...]]:
    """Of each exchange its kind, the dimension of its group, and how far on in the group a peer is."""
    groups = {group.name: group for group in process.groups}
    ways = []
    for exchange in process.exchanges:
        group = groups.get(exchange.group)
        ranks = [] if group is None else group.ranks
        far = (ranks.index(exchange.peer) - ranks.index(process.rank)) % len(ranks) if {exchange.peer, process.rank} <= set(ranks) else 0
        ways.append((exchange.kind, group and group.made, far * exchange.kind.is_transfer))
    return ways


def _order(process: Process) -> list[Any]:
    products = [operator for operator in process.operators if operator.leaf and kind_of(own_name(operator.name)) in _PRODUCTS]
    moments: list[tuple[int, Any]] = [(product.begin, product.name) for product in products]
    moments += [(exchange.begin, way) for exchange, way in zip(process.exchanges, _ways(process), strict=True)]
    return [what for _, what in sorted(moments, key=lambda moment: moment[0])]


def _shapes(arguments: Sequence[Argument]) -> tuple[Any, ...]:
    shapes: list[Any] = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            shapes.append((argument.shape, argument.dtype))
        elif isinstance(argument, list):
            shapes.append(_shapes(argument))
    return tuple(shapes)


def peer_of_copy(copy: int, original: int, exchange: Exchange, own: Group, mapped: Group) -> int:
    """The rank that a copy sends to or receives from in an exchange of the original's, or the root of its collective; -1 where there is
    none in the group. own: the group in which the original talks; mapped: the one in which the copy does."""
    if exchange.peer not in own.ranks:
        return -1
    position = own.ranks.index(exchange.peer)
    if exchange.kind.is_transfer and original in own.ranks and copy in mapped.ranks:
        position += mapped.ranks.index(copy) - own.ranks.index(original)
    return mapped.ranks[position % len(mapped.ranks)]
