"""Whom a copy talks to where the process that it copies sends to another rank or receives from it.

A rank is known by its places along the dimensions of the job, which its process groups show. The copy's peer is as far from the copy,
along each of them, as the original's peer is from the original: the same tensor-parallel rank of the next pipeline stage, or the next
rank of a ring, which ends where it began. Where the dimensions lead to no rank, or to several, places within the group count instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.emulation.distinct import GroupsAlong, mesh_dimensions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.emulation.record import Exchange, Group, Process


class PeersOfCopies:
    """The peers of all copies of one process."""

    def __init__(self, process: Process) -> None:
        self._original = process.rank
        self._sizes: list[int] = []
        self._places: list[tuple[int, ...]] = [()] * process.world
        self._found: dict[tuple[int, ...], int] = {}
        if process.copies and any(exchange.kind.is_transfer for exchange in process.exchanges):
            self._tell_apart(mesh_dimensions(process))

    def of(self, copy: int, exchange: Exchange, own: Group, mapped: Group) -> int:
        """The rank that the copy sends to or receives from in an exchange of the original's, or the root of its collective; -1 where there
        is none in the group. own: the group in which the original talks; mapped: the one in which the copy does."""
        peer = exchange.peer
        if peer not in own.ranks:
            return -1
        if copy == self._original or not exchange.kind.is_transfer:
            return mapped.ranks[own.ranks.index(peer)]
        found = self._found.get(self._moved(copy, peer), -1)
        return found if found in mapped.ranks else _within(copy, self._original, peer, own.ranks, mapped.ranks)

    def _tell_apart(self, along: Sequence[GroupsAlong]) -> None:
        """Take dimensions until no two ranks are at the same places: those that follow only join dimensions that were there before."""
        for dimension in along:
            place = {rank: i for group in dimension for i, rank in enumerate(group.ranks)}
            self._sizes.append(max(len(group.ranks) for group in dimension))
            self._places = [(*before, place.get(rank, 0)) for rank, before in enumerate(self._places)]
            if len(set(self._places)) == len(self._places):
                self._found = {places: rank for rank, places in enumerate(self._places)}
                return

    def _moved(self, copy: int, peer: int) -> tuple[int, ...]:
        """The places that are as far from the copy's as the peer's are from the original's."""
        three = zip(self._places[copy], self._places[peer], self._places[self._original], self._sizes, strict=False)
        return tuple((here + there - original) % size for here, there, original, size in three)


def _within(copy: int, original: int, peer: int, own: Sequence[int], mapped: Sequence[int]) -> int:
    if original not in own or copy not in mapped:
        return mapped[own.index(peer)]
    return mapped[(mapped.index(copy) + own.index(peer) - own.index(original)) % len(mapped)]
