"""Which tasks of one rank meet which tasks of the others.

Collectives meet by (group, sequence number) where the trace has numbers, else by the order of those of equal kind and size within the
group, aligned so that a row missing on one rank does not shift all later matches. Messages meet one by one: the k-th that a rank sends to
a peer meets the k-th that the peer receives from it. Where the steps are marked with numbers that the ranks share, both orders are
those within a step, so that ranks whose recordings begin at different steps are matched right, whatever their clocks say.

A task whose group lacks a rank in the recording meets the ranks that are there. A task that carries messages for several ranks meets
all of them at once, which holds only where they were all under way together (`graph.joined.ranks` checks that).
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.places import number_of
from lumos.graph.table import Dependency
from lumos.trace.table import ABSENT, Int32, Int64, excluding, unique
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from numpy.typing import NDArray

    from lumos.graph.table import Collectives, Graph

#: Kinds that all members leave at the same time, so that the differences of their measured ends are those of the clocks.
TOGETHER = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.BARRIER,
)

#: The ends of one collective on two ranks of one host differ by less than this (ns). Where labels repeat, the ends decide
#: which entries belong together.
ENDS_TOGETHER = 200_000
#: Share of the shorter sequence that must have a partner by its end before partners by end are preferred to those by order.
_MOST = 0.8


class How(StrEnum):
    """How the tasks of a rendezvous were found; the value says it in a message."""

    NUMBER = "sequence number"
    ORDER = "order within the group"
    MESSAGES = "order of sends and receives"


class Alone(StrEnum):
    """Why a task meets no other; the value says it in a message."""

    NOT_GIVEN = "not all of their ranks were given"
    NO_PARTNER = "the other ranks' rows show no partner for them"
    NO_PEER = "the trace does not say which ranks they connect"
    APART = "their partners were not under way at the same time"
    SEVERAL = "each exchanges with several ranks that were not under way together"


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Rendezvous of the same ranks, found in the same way. Row i of task, int32[rendezvous, ranks], is one rendezvous: its j-th
    task is of rank ranks[j] (a position in `Graph.ranks`). together: of one of the kinds TOGETHER. complete: whether no rank of the
    group is absent from the recording."""

    ranks: Int32
    task: Int32
    together: bool
    how: How
    confidence: float
    complete: bool


class Matching(NamedTuple):
    """All rendezvous, and the tasks in none by the reason."""

    matches: list[Matches]
    alone: list[tuple[Alone, Int32]]


def match(graph: Graph, facts: Collectives, world: int | None) -> Matching:
    """Match the tasks of `facts` over the ranks of the graph. world: the number of ranks in the whole job, None if unknown."""
    positions = np.arange(len(facts.task))
    rank, (start, end) = graph.position_of_task[facts.task], measured_times(graph)
    issued = _Issued(rank, start[facts.task], end[facts.task], _steps(graph, facts))
    out = Matching([], [])
    sided = np.array([kind.is_transfer for kind in facts.kinds], bool)[facts.kind]
    carries = np.zeros(len(positions), bool)
    carries[[m[0] for m in facts.messages]] = True
    unknown = sided & ~carries & (facts.group == ABSENT)
    out.alone.append((Alone.NO_PEER, facts.task[unknown]))
    for index in _groups(facts, ~carries & ~unknown):
        order = index[np.argsort(issued.start[index], kind="stable")]
        lanes = {r: order[rank[order] == r] for r in unique(rank[order]).tolist()}
        size = _size(facts, index, world, len(graph.ranks))
        if len(lanes) > 1:
            _match_group(facts, issued, lanes, len(lanes) >= size, out)
        elif size > 1:
            given = _members_given(facts, index, world, graph.ranks)
            out.alone.append((Alone.NO_PARTNER if given else Alone.NOT_GIVEN, facts.task[index]))
    _match_messages(graph, facts, issued, out)
    return out


def measured_times(graph: Graph) -> tuple[Int64, Int64]:
    """Measured start and end; every graph built from traces has them."""
    assert graph.measured_start is not None and graph.measured_end is not None
    return graph.measured_start, graph.measured_end


class _Issued(NamedTuple):
    """Of each row of the facts: position of its rank, measured start and end (ns), number of its step (ABSENT where unknown)."""

    rank: Int32
    start: Int64
    end: Int64
    step: Int64


def _steps(graph: Graph, facts: Collectives) -> Int64:
    """The number of the marked step in which each task was launched; ABSENT for all where not all ranks share some number."""
    start, _ = measured_times(graph)
    launch = np.flatnonzero(graph.pred_kind == Dependency.LAUNCH)
    issued = start.copy()
    issued[np.searchsorted(graph.pred_offset, launch, "right") - 1] = start[graph.pred[launch]]
    time, rank = issued[facts.task], graph.rank_of_task[facts.task]
    out = np.full(len(time), ABSENT, np.int64)
    numbers: list[set[int]] = []
    for r in graph.ranks:
        marks = sorted((s.start, number) for s in graph.steps if s.rank == r and (number := number_of(s.name)) is not None)
        numbers.append({number for _, number in marks})
        if marks:
            of_mark = np.array([marks[0][1] - 1, *(n for _, n in marks)], np.int64)
            own = rank == r
            out[own] = of_mark[np.searchsorted([begin for begin, _ in marks], time[own], "right")]
    if not set.intersection(*numbers):
        out[:] = ABSENT
    return out


def _groups(facts: Collectives, wanted: NDArray[np.bool_]) -> Iterator[Int64]:
    """Indices of the collectives of each group. Those of unknown group are treated as one group."""
    for group in unique(facts.group[wanted]):
        yield np.flatnonzero(wanted & (facts.group == group))


def _size(facts: Collectives, index: Int64, world: int | None, given: int) -> int:
    """How many ranks must meet: the recorded size of the group, else the length of its member list, else the size of the job."""
    known = ABSENT if facts.size is None else int(facts.size[index].max())
    if known > 0:
        return known
    members = facts.members(int(index[0]))
    return len(members) if members else world if world is not None else given


def _members_given(facts: Collectives, index: Int64, world: int | None, ranks: Sequence[int]) -> bool:
    """Whether all ranks of a group were given, as far as is known."""
    members = facts.members(int(index[0]))
    return set(members) <= set(ranks) if members else world in (None, len(ranks))


def _match_group(facts: Collectives, issued: _Issued, by_rank: dict[int, Int64], complete: bool, out: Matching) -> None:
    """Add the rendezvous of one group. by_rank: for each member, the indices of its collectives in order."""
    lanes = list(by_rank.values())
    kinds = [facts.kinds[k] for k in facts.kind]
    numbered = all((facts.sequence[lane] >= 0).all() and len(unique(facts.sequence[lane])) == len(lane) for lane in lanes)
    columns = [np.arange(len(lanes[0]))]
    if numbered:  # ranks may begin collectives of several streams in another order
        columns += [_by_number(facts.sequence[lanes[0]], facts.sequence[lane]) for lane in lanes[1:]]
    else:
        labels = [[(kinds[i], int(facts.nbytes[i]) if kinds[i].is_even else 0, int(issued.step[i])) for i in lane] for lane in lanes]
        for other, lane in zip(labels[1:], lanes[1:], strict=True):
            columns.append(align_collectives(labels[0], other, issued.end[lanes[0]], issued.end[lane]))
    partner = np.stack(columns, axis=1)  # row: entry of the first lane; -1 where a lane has no partner
    full = (partner >= 0).all(axis=1)
    chosen = np.stack([lane[partner[full, j]] for j, lane in enumerate(lanes)], axis=1)
    if numbered:
        chosen = chosen[_agree(facts, chosen)]
    left = excluding(np.concatenate(lanes), chosen)
    out.alone.append((Alone.NO_PARTNER, facts.task[left]))
    exact = all(len(lane) == len(lanes[0]) for lane in lanes) and not len(left)
    how, confidence = (How.NUMBER, 1.0) if numbered else (How.ORDER, 0.9 if exact else 0.7)
    together = np.isin([kinds[i] for i in chosen[:, 0]], TOGETHER) if len(chosen) else np.empty(0, bool)
    ranks = np.array(list(by_rank), np.int32)
    for t in (True, False):
        if (together == t).any():
            out.matches.append(Matches(ranks, facts.task[chosen[together == t]].astype(np.int32), t, how, confidence, complete))


def _by_number(reference: Int64, other: Int64) -> Int64:
    """For each number of `reference` the place of the same number in `other`, -1 without it: int64[len(reference)]."""
    order = np.argsort(other)
    at = order[np.minimum(np.searchsorted(other[order], reference), len(other) - 1)]
    return np.where(other[at] == reference, at, -1)


def align_collectives(reference: Sequence[Hashable], other: Sequence[Hashable], reference_end: Int64, other_end: Int64) -> Int64:
    """For each entry of `reference` its partner in `other`, -1 without one: int64[len(reference)], ascending where >= 0.

    Equal sequences match one to one. Otherwise, entries of equal label that end at the same time match, if the share MOST
    does (the clocks then agree); else the longest runs of equal labels match.
    """
    if list(reference) == list(other):
        return np.arange(len(reference))
    by_end = _by_end(reference, other, reference_end, other_end)
    if (by_end >= 0).sum() >= _MOST * min(len(reference), len(other)):
        return by_end
    partner = np.full(len(reference), -1, np.int64)
    for block in SequenceMatcher(None, reference, other, autojunk=False).get_matching_blocks():
        partner[block.a : block.a + block.size] = np.arange(block.b, block.b + block.size)
    return partner


def _by_end(reference: Sequence[Hashable], other: Sequence[Hashable], reference_end: Int64, other_end: Int64) -> Int64:
    """Partners by nearest end, in order, among entries of equal label."""
    partner = np.full(len(reference), -1, np.int64)
    if not len(other):
        return partner
    taken = -1
    order = np.argsort(other_end, kind="stable")
    at = np.searchsorted(other_end[order], reference_end)
    for i, position in enumerate(at):
        near = [int(order[k]) for k in (position - 1, position) if 0 <= k < len(order)]
        near = [j for j in near if j > taken and other[j] == reference[i] and abs(other_end[j] - reference_end[i]) <= ENDS_TOGETHER]
        if near:
            taken = min(near, key=lambda j: abs(int(other_end[j] - reference_end[i])))
            partner[i] = taken
    return partner


def _agree(facts: Collectives, chosen: Int64) -> NDArray[np.bool_]:
    """Rows in which all ranks give the collective the same kind and, where the kind requires it, the same size."""
    kind, nbytes = facts.kind[chosen], facts.nbytes[chosen]
    even = np.array([facts.kinds[k].is_even for k in kind[:, 0]], bool)
    one_kind: NDArray[np.bool_] = (kind == kind[:, :1]).all(axis=1)
    one_size: NDArray[np.bool_] = ~even | (nbytes == nbytes[:, :1]).all(axis=1)
    return one_kind & one_size


def _match_messages(graph: Graph, facts: Collectives, issued: _Issued, out: Matching) -> None:
    """Add the rendezvous of sends and receives."""
    linked, unpaired = _paired(graph, facts, issued)
    sets: dict[tuple[tuple[int, ...], bool, float], list[list[int]]] = {}
    for members, confidence in _components(linked):
        ranks = tuple(int(issued.rank[i]) for i in members)
        if len(set(ranks)) < len(ranks):
            out.alone.append((Alone.SEVERAL, facts.task[members]))
        elif len(members) > 1:
            order = np.argsort(ranks)
            complete = not unpaired.intersection(members)
            key = (tuple(np.array(ranks)[order].tolist()), complete, confidence)
            sets.setdefault(key, []).append(np.array(members)[order].tolist())
    for (ranks, complete, confidence), rows in sets.items():
        task = facts.task[np.array(rows)].astype(np.int32)
        out.matches.append(Matches(np.array(ranks, np.int32), task, False, How.MESSAGES, confidence, complete))
    met = {i for one, other, _ in linked for i in (one, other)}
    without = sorted({m[0] for m in facts.messages} - met)
    absent = np.array([not {m[2] for m in facts.messages if m[0] == i} <= set(graph.ranks) for i in without], bool)
    for reason, chosen in ((Alone.NOT_GIVEN, absent), (Alone.NO_PARTNER, ~absent)):
        out.alone.append((reason, facts.task[np.array(without, np.int64)[chosen]]))


def _paired(graph: Graph, facts: Collectives, issued: _Issued) -> tuple[list[tuple[int, int, float]], set[int]]:
    """The rows of the facts that a message links, with the confidence, and the rows with a message that has no partner."""
    position = {r: i for i, r in enumerate(graph.ranks)}
    queues: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}
    order = sorted(range(len(facts.messages)), key=lambda k: (issued.start[facts.messages[k][0]], k))
    for k in order:
        row, sends, peer, group, _ = facts.messages[k]
        own, other = int(issued.rank[row]), position.get(peer, ABSENT)
        source, target = (own, other) if sends else (other, own)
        queues.setdefault((group, source, target, int(issued.step[row])), ([], []))[not sends].append(row)
    linked: list[tuple[int, int, float]] = []
    unpaired: set[int] = set()
    for sent, received in queues.values():
        confidence = 0.9 if len(sent) == len(received) else 0.7
        linked += [(one, other, confidence) for one, other in zip(sent, received, strict=False)]
        count = min(len(sent), len(received))
        unpaired.update(sent[count:], received[count:])
    return linked, unpaired


def _components(linked: Sequence[tuple[int, int, float]]) -> Iterator[tuple[list[int], float]]:
    """The rows of the facts that messages link to each other, directly or not, and the least confidence of those links."""
    root = {i: i for one, other, _ in linked for i in (one, other)}

    def find(i: int) -> int:
        while root[i] != i:
            root[i] = root[root[i]]
            i = root[i]
        return i

    for one, other, _ in linked:
        root[find(one)] = find(other)
    members: dict[int, list[int]] = {}
    for i in sorted(root):
        members.setdefault(find(i), []).append(i)
    least: dict[int, float] = {}
    for one, _, confidence in linked:
        at = find(one)
        least[at] = min(least.get(at, 1.0), confidence)
    for at, rows in members.items():
        yield rows, least[at] if len(rows) == 2 else min(least[at], 0.7)
