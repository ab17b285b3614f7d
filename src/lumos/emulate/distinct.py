"""Which ranks of a job do work of their own, and which do the same as another.

Rank 0 runs first. The process groups that it made are the dimensions in which ranks differ. For each dimension one other rank runs:
where it does what rank 0 does, all ranks along that dimension are copies of one; where it does not, they all run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumos.emulate.record import Argument, Group, Process, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

#: A dimension: the groups along it, which share no rank.
GroupsAlong = list[Group]


def mesh_dimensions(process: Process) -> list[GroupsAlong]:
    """The dimensions of a job with several ranks, from the groups that a rank knows; the group of all ranks alone where the others do
    not reach every rank."""
    families: dict[int, GroupsAlong] = {}
    for group in process.groups:
        families.setdefault(group.made, []).append(group)
    smaller = [each for each in families.values() if 1 < len(each[0].ranks) < process.world]
    everyone = Group("", "", list(range(process.world)), -1)
    if len(set(_copies(process.world, smaller))) == 1:
        return smaller
    return [*smaller, [everyone]]


def neighbour(dimension: GroupsAlong, rank: int = 0) -> int | None:
    """The next rank along a dimension; None where `rank` is in none of its groups."""
    group = next((each for each in dimension if rank in each.ranks), None)
    return None if group is None else group.ranks[(group.ranks.index(rank) + 1) % len(group.ranks)]


def to_run(changing: Sequence[GroupsAlong]) -> list[int]:
    """The ranks that must run: those reached from rank 0 along the dimensions that change the work."""
    found, waiting = {0}, [0]
    while waiting:
        rank = waiting.pop()
        for dimension in changing:
            for other in next((each.ranks for each in dimension if rank in each.ranks), []):
                if other not in found:
                    found.add(other)
                    waiting.append(other)
    return sorted(found)


def copies(world: int, run: Iterable[int], unchanging: Sequence[GroupsAlong]) -> dict[int, list[int]]:
    """For each rank that ran, the others that do the same. Ranks that no dimension leads to are copies of rank 0."""
    part = _copies(world, unchanging)
    leader = {part[rank]: rank for rank in sorted(run, reverse=True)}
    found: dict[int, list[int]] = {rank: [] for rank in run}
    for rank in range(world):
        if rank not in found:
            found[leader.get(part[rank], 0)].append(rank)
    return found


def _copies(world: int, unchanging: Sequence[GroupsAlong]) -> list[int]:
    """For each rank the least rank that it is joined with by groups along these dimensions."""
    least = list(range(world))

    def find(rank: int) -> int:
        while least[rank] != rank:
            rank = least[rank]
        return rank

    for dimension in unchanging:
        for group in dimension:
            for rank in group.ranks:
                one, other = find(group.ranks[0]), find(rank)
                least[max(one, other)] = min(one, other)
    return [find(rank) for rank in range(world)]


def same_work(one: Process, other: Process) -> bool:
    """Whether two ranks ask the same of their devices, in the same order: operators with their shapes, calls, and exchanges with their
    sizes within groups of the same dimension."""
    compared: tuple[Callable[[Process], Any], ...] = (_operators, _calls, _exchanges)
    return all(each(one) == each(other) for each in compared)


def _operators(process: Process) -> list[tuple[Any, ...]]:
    return [(each.name, each.thread, each.stream, _shapes(each.inputs)) for each in process.operators]


def _calls(process: Process) -> list[tuple[Any, ...]]:
    return [(each.kind, each.stream, each.event, each.exchange) for each in process.calls]


def _exchanges(process: Process) -> list[tuple[Any, ...]]:
    made = {group.name: group.made for group in process.groups}
    return [(each.kind, made.get(each.group), each.input_elements, each.output_elements, each.dtype) for each in process.exchanges]


def _shapes(arguments: Sequence[Argument]) -> tuple[Any, ...]:
    found: list[Any] = []
    for each in arguments:
        if isinstance(each, Tensor):
            found.append((each.shape, each.dtype))
        elif isinstance(each, list):
            found.append(_shapes(each))
    return tuple(found)
