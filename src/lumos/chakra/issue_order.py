"""Dependencies that keep the ranks of a set from waiting for one another for ever, and no more than those.

ASTRA-sim runs one communication at a time on each rank, and matches the collectives of a group by the order in which ranks issue them. So
those of one group are chained on every rank in the order of the replay. Communication of different groups is chained only where ranks could
hold one another up: for a ring of waiting ranks their groups must close a ring too. Draw a line from every rank to each group that it is
in, where the two ends of a message are a group: groups on no ring of these lines need no common order. Sends alone never wait, so only
those in a ring with a collective are chained.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.chakra.lower import reduced
from lumos.graph.edges import distinct
from lumos.graph.lists import list_of
from lumos.trace.chakra.schema import NodeType
from lumos.trace.table import ABSENT, Int64

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.chakra.workload import Workload


def ordered(workload: Workload) -> Workload:
    """The workload with the dependencies added that give every rank a common order of communication where it needs one."""
    facts = workload.communication
    rank = workload.rank_of()[facts.node].astype(np.int64)
    group, members = _groups(workload, rank)
    chain = _chains(members, len(workload.groups))[group] if len(group) else group
    rows = np.flatnonzero((workload.type[facts.node] != NodeType.RECV) & (chain != ABSENT))
    rows = rows[np.lexsort((facts.node[rows], chain[rows], rank[rows]))]
    follows = np.flatnonzero((rank[rows][1:] == rank[rows][:-1]) & (chain[rows][1:] == chain[rows][:-1])) + 1
    node = facts.node[rows]
    dependent = list_of(workload.dep_offset)
    chained = distinct(np.concatenate((workload.dep, node[follows - 1])), np.concatenate((dependent, node[follows])), len(workload))
    offset, dep = reduced(chained)
    return replace(workload, dep_offset=offset, dep=dep)


def _groups(workload: Workload, rank: Int64) -> tuple[Int64, list[tuple[int, ...]]]:
    """The group of every communication, and the ranks of each group: those of the workload, then a pair for the ends of messages."""
    facts = workload.communication
    members = list(workload.groups)
    peer = facts.peer.astype(np.int64)
    transfers = facts.group < 0
    pairs = np.stack((np.minimum(rank, peer), np.maximum(rank, peer)), axis=1)[transfers]
    group = facts.group.astype(np.int64)
    if len(pairs):
        distinct_pairs, which = np.unique(pairs, axis=0, return_inverse=True)
        group[transfers] = len(members) + which.reshape(-1)
        members += [(a, b) for a, b in distinct_pairs.tolist()]
    return group, members


def _chains(members: Sequence[Sequence[int]], collective: int) -> Int64:
    """The number of the chain that each group belongs to, ABSENT for messages that need none. collective: how many groups run collectives.

    Ranks in one group only and groups of which one rank is left lie on no ring; taken away one after the other, they leave the
    rings and the lines between these. Groups that are still joined then share a chain.
    """
    near: dict[int, set[int]] = defaultdict(set)  # the groups of each rank, numbered from -1 down, and the ranks of each group
    for group, ranks in enumerate(members):
        for rank in ranks:
            near[rank].add(~group)
            near[~group].add(rank)
    loose = [node for node, others in near.items() if len(others) == 1]
    while loose:
        node = loose.pop()
        for other in near.pop(node, ()):
            near[other].discard(node)
            loose += [other] if len(near[other]) == 1 else []
    chain = np.full(len(members), ABSENT, np.int64)
    chain[:collective] = np.arange(collective)
    left = {node for node, others in near.items() if others}
    while left:
        stack, groups = [left.pop()], list[int]()
        while stack:
            node = stack.pop()
            groups += [~node] if node < 0 else []
            found = near[node] & left
            left -= found
            stack += found
        if min(groups) < collective:
            chain[groups] = min(groups)
    return chain
