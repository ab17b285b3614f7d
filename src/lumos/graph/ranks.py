"""The ranks of a job joined: collectives and point-to-point transfers become rendezvous, so that waiting is simulated.

Which task of one rank meets which task of another is decided by (communicator or group, sequence number) where the trace
has them, else by the order of collectives of equal kind and size within the group, aligned so that a row missing on one
rank does not shift all later matches. The clocks of different hosts are then aligned by the ends of shared collectives,
which all members leave at once. A joined task's duration is its transfer: from the latest arrival over the ranks to its
own end. Where a member of the group was not recorded its arrival is unknown: the task keeps its measured duration and is
listed in `Graph.waiting_unknown`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.diagnostics import Diagnostic
from lumos.graph.alignment import align_collectives
from lumos.graph.lists import end_to_end
from lumos.trace.table import ABSENT, Int32, Int64
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from lumos.graph.table import Collectives, Graph, Occupancy, Step

#: Kinds that all members leave at the same time, so that the differences of their measured ends are those of the clocks.
TOGETHER = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.BARRIER,
)
#: The two sides of a message.
_SIDES = (CollectiveKind.SEND, CollectiveKind.RECEIVE)
#: Ranks of one host share a clock: they leave a collective within a few microseconds of each other (1 to 7 in the public
#: DLRM job). A clock is not moved where it differs by no more than this, or by no more than its differences scatter (ns).
SAME_CLOCK = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Rendezvous of the same ranks, found in the same way. Row i of task, int32[rendezvous, ranks], is one rendezvous: its j-th
    task is of rank ranks[j] (a position in `Graph.ranks`)."""

    ranks: Int32
    task: Int32
    together: bool  # of one of the kinds TOGETHER
    confidence: float


def join(graph: Graph, world: int | None) -> Graph:
    """Join the ranks of a graph that `concatenate` made. `world`: the number of ranks in the whole job, None if unknown."""
    facts = graph.collectives
    if facts is None or len(graph.ranks) < 2:
        return _mark_lone(graph, world)
    matches, partial = _match(graph, facts, world)
    if not matches:
        return _mark_lone(replace(graph, diagnostics=(*graph.diagnostics, *_mismatches(graph, facts))), world)
    graph, offsets = _align_clocks(graph, matches)
    matches, apart = _overlapping(graph, matches)
    partial = np.concatenate((partial, apart))
    if not matches:
        return _mark_unknown(graph, partial)
    graph = _meet(graph, matches)
    confidence = min(m.confidence for m in matches)
    joined = sum(m.task.size for m in matches)
    found = [
        Diagnostic(
            "ranks-joined",
            f"{joined} of {len(facts.task)} collective and point-to-point tasks of {len(graph.ranks)} ranks meet their peers,"
            f" by {'sequence number' if confidence == 1 else 'order within the group'} (confidence {confidence:.2f})",
        )
    ]
    moved = {graph.ranks[i]: int(o) for i, o in enumerate(offsets) if o}
    if moved:
        listed = ", ".join(f"rank {r} {o / 1e3:+.1f} us" for r, o in list(moved.items())[:8])
        found.append(Diagnostic("clocks-aligned", f"clocks differ between ranks and were aligned by the ends of collectives: {listed}"))
    found += _mismatches(graph, facts)
    return _mark_unknown(replace(graph, diagnostics=(*graph.diagnostics, *found)), partial)


def _match(graph: Graph, facts: Collectives, world: int | None) -> tuple[list[Matches], Int32]:
    """All rendezvous with every member present, and the tasks that lack some member."""
    position = {r: i for i, r in enumerate(graph.ranks)}
    of_task = np.array([position[p.rank] for p in graph.processors], np.int32)[graph.processor[facts.task]]
    start = _measured(graph)[0][facts.task]
    matches: list[Matches] = []
    lone: list[Int32] = []
    kinds = [facts.kinds[k] for k in facts.kind]
    paired = np.isin(kinds, _SIDES) & (facts.peer >= 0)
    for index in _groups(facts, ~paired):
        order = index[np.argsort(start[index], kind="stable")]
        lanes = [order[of_task[order] == r] for r in range(len(graph.ranks))]
        present = [r for r, lane in enumerate(lanes) if len(lane)]
        if len(present) < _size(facts, index, world, len(graph.ranks)):
            lone.append(facts.task[index])
            continue
        found, left = _match_group(graph, facts, kinds, [lanes[r] for r in present])
        matches += [replace(m, ranks=np.array(present, np.int32)) for m in found]
        lone.append(facts.task[left])
    found, left = _match_pairs(graph, facts, kinds, of_task, start, np.flatnonzero(paired))
    return matches + found, np.concatenate([*lone, facts.task[left]]).astype(np.int32)


def _groups(facts: Collectives, wanted: NDArray[np.bool_]) -> Iterator[Int64]:
    """Indices of the collectives of each group. Those of unknown group are treated as one group."""
    for group in np.unique(facts.group[wanted]):
        yield np.flatnonzero(wanted & (facts.group == group))


def _size(facts: Collectives, index: Int64, world: int | None, given: int) -> int:
    """How many ranks must meet: the recorded size of the group, else the length of its member list, else the size of the job."""
    known = ABSENT if facts.size is None else int(facts.size[index].max())
    if known > 0:
        return known
    group = int(facts.group[index[0]])
    listed = re.search(r"\[(.*)\]", facts.groups[group]) if group >= 0 else None
    if listed:
        return len(listed.group(1).split(","))
    return world if world is not None else given


def _match_group(graph: Graph, facts: Collectives, kinds: Sequence[CollectiveKind], lanes: list[Int64]) -> tuple[list[Matches], Int64]:
    """The rendezvous of one group, and the collectives that are in none because a member's is missing.

    lanes: for each member, the indices of its collectives in order.
    """
    numbered = all((facts.sequence[lane] >= 0).all() and len(np.unique(facts.sequence[lane])) == len(lane) for lane in lanes)
    labels = [
        facts.sequence[lane].tolist() if numbered else [(kinds[i], int(facts.nbytes[i]) if kinds[i].is_even else 0) for i in lane]
        for lane in lanes
    ]
    end = _measured(graph)[1][facts.task]
    columns = [np.arange(len(lanes[0]))]
    for other, lane in zip(labels[1:], lanes[1:], strict=True):
        columns.append(align_collectives(labels[0], other, end[lanes[0]], end[lane]))
    partner = np.stack(columns, axis=1)  # row: entry of the first lane; -1 where a lane has no partner
    full = (partner >= 0).all(axis=1)
    chosen = (
        np.stack([lane[partner[full, j]] for j, lane in enumerate(lanes)], axis=1) if full.any() else np.empty((0, len(lanes)), np.int64)
    )
    if numbered:
        chosen = chosen[_agree(facts, chosen)]
    left = np.setdiff1d(np.concatenate(lanes), chosen)
    exact = all(len(lane) == len(lanes[0]) for lane in lanes) and not len(left)
    confidence = 1.0 if numbered else 0.9 if exact else 0.7
    together = np.isin([kinds[i] for i in chosen[:, 0]], TOGETHER) if len(chosen) else np.empty(0, bool)
    found = [
        Matches(np.empty(0, np.int32), facts.task[chosen[together == t]].astype(np.int32), t, confidence)
        for t in (True, False)
        if len(chosen) and (together == t).any()
    ]
    return found, left


def _agree(facts: Collectives, chosen: Int64) -> NDArray[np.bool_]:
    """Rows in which all ranks give the collective the same kind and, where the kind requires it, the same size."""
    kind, nbytes = facts.kind[chosen], facts.nbytes[chosen]
    even = np.array([facts.kinds[k].is_even for k in kind[:, 0]], bool)
    one_kind: NDArray[np.bool_] = (kind == kind[:, :1]).all(axis=1)
    one_size: NDArray[np.bool_] = ~even | (nbytes == nbytes[:, :1]).all(axis=1)
    return one_kind & one_size


def _mismatches(graph: Graph, facts: Collectives) -> list[Diagnostic]:
    """Collectives that have one group and sequence number but different kinds or sizes on different ranks: they cannot complete."""
    numbered = np.flatnonzero((facts.sequence >= 0) & (facts.peer == ABSENT))
    ranks = graph.rank_of_task[facts.task[numbered]]
    ranks_by_call: dict[tuple[int, int], dict[tuple[CollectiveKind, int], list[int]]] = {}
    for i, rank in zip(numbered, ranks, strict=True):
        kind = facts.kinds[facts.kind[i]]
        call = (kind, int(facts.nbytes[i]) if kind.is_even else ABSENT)
        ranks_by_call.setdefault((int(facts.group[i]), int(facts.sequence[i])), {}).setdefault(call, []).append(int(rank))
    found = []
    for (group, sequence), calls in ranks_by_call.items():
        if len(calls) > 1:
            words = "; ".join(
                f"{kind}{'' if nbytes == ABSENT else f' of {nbytes:,} bytes'} on rank {', '.join(map(str, sorted(who)[:8]))}"
                for (kind, nbytes), who in calls.items()
            )
            name = facts.groups[group] if group >= 0 else "unknown"
            message = f"group {name}, sequence number {sequence}: {words}; they cannot meet and keep their measured durations"
            found.append(Diagnostic("collective-mismatch", message))
    return found


def _match_pairs(
    graph: Graph, facts: Collectives, kinds: Sequence[CollectiveKind], of_task: Int32, start: Int64, index: Int64
) -> tuple[list[Matches], Int64]:
    """Sends with their receives: the k-th send of a rank to a peer meets the k-th receive of the peer from that rank."""
    position = {r: i for i, r in enumerate(graph.ranks)}
    queues: dict[tuple[int, int, int], tuple[list[int], list[int]]] = {}
    for i in index[np.argsort(start[index], kind="stable")]:
        own, peer = int(of_task[i]), position.get(int(facts.peer[i]), ABSENT)
        source, target = (own, peer) if kinds[i] is CollectiveKind.SEND else (peer, own)
        queues.setdefault((int(facts.group[i]), source, target), ([], []))[kinds[i] is CollectiveKind.RECEIVE].append(int(i))
    found: list[Matches] = []
    paired: list[int] = []
    for (_, source, target), (sent, received) in queues.items():
        count = min(len(sent), len(received))
        if source == ABSENT or target == ABSENT or not count:
            continue
        rows = np.array([sent[:count], received[:count]]).T
        confidence = 0.9 if len(sent) == len(received) else 0.7
        found.append(Matches(np.array([source, target], np.int32), facts.task[rows].astype(np.int32), False, confidence))
        paired += rows.ravel().tolist()
    return found, np.setdiff1d(index, paired)


def _overlapping(graph: Graph, matches: list[Matches]) -> tuple[list[Matches], Int32]:
    """The matches whose tasks overlap in time, and the tasks of the other matches.

    Tasks that meet must overlap. Where tasks matched by order do not, the match is wrong (rows are missing, or the ranks'
    windows differ). Matches by sequence number are not dropped: if such tasks do not overlap, the job itself is at fault.
    """
    start, end = _measured(graph)
    overlapping, apart = [], [np.empty(0, np.int32)]
    for match in matches:
        meets = (start[match.task].max(axis=1) < end[match.task].min(axis=1)) | (match.confidence == 1.0)
        if meets.any():
            overlapping.append(replace(match, task=match.task[meets]))
        apart.append(match.task[~meets].ravel())
    return overlapping, np.concatenate(apart).astype(np.int32)


def _measured(graph: Graph) -> tuple[Int64, Int64]:
    """Measured start and end; every graph built from traces has them."""
    assert graph.measured_start is not None and graph.measured_end is not None
    return graph.measured_start, graph.measured_end


def _align_clocks(graph: Graph, matches: list[Matches]) -> tuple[Graph, Int64]:
    """Shift each rank's clock so that the ends of shared collectives agree; returns the shifts (ns, by position).

    A rank's offset to another is the median difference of the ends of all collectives that they share. The first rank's clock
    is the reference, and the others are aligned group by group. An offset within SAME_CLOCK, or within the median scatter of
    those differences, counts as zero.
    """
    end = _measured(graph)[1]
    offset = np.zeros(len(graph.ranks), np.int64)
    known = np.zeros(len(graph.ranks), bool)
    todo = [m for m in matches if m.together and len(m.task)]
    if todo:
        known[todo[0].ranks[0]] = True
    while todo:
        ready = next((m for m in todo if known[m.ranks].any()), None)
        if ready is None:  # these ranks share no group with those before: one of them becomes their reference
            known[todo[0].ranks[0]] = True
            continue
        todo.remove(ready)
        aligned_end = end[ready.task] - offset[ready.ranks]
        anchor = np.median(aligned_end[:, known[ready.ranks]], axis=1)
        for j, rank in enumerate(ready.ranks):
            if not known[rank]:
                difference = aligned_end[:, j] - anchor
                shift = int(np.median(difference))
                scatter = float(np.median(np.abs(difference - shift)))
                offset[rank] = shift if abs(shift) > max(SAME_CLOCK, scatter) else 0
                known[rank] = True
    if not offset.any():
        return graph, offset
    by_processor = np.array([graph.ranks.index(p.rank) for p in graph.processors])
    shift = offset[by_processor[graph.processor]]
    start, finish = _measured(graph)
    return (
        replace(
            graph,
            measured_start=start - shift,
            measured_end=finish - shift,
            release_time=graph.release_time - shift[graph.release_task],
            steps=tuple(_moved(s, int(offset[graph.ranks.index(s.rank)])) for s in graph.steps),
        ),
        offset,
    )


def _moved(step: Step, by: int) -> Step:
    return replace(step, start=step.start - by, end=step.end - by)


def _meet(graph: Graph, matches: list[Matches]) -> Graph:
    """Make the matches rendezvous. Each task lasts from the latest arrival to its own end.

    Where that is not positive, because clocks differ, it lasts the median of the other tasks of the same `Matches`.
    """
    start, end = _measured(graph)
    duration = graph.duration.copy()
    sets: list[Int32] = []
    for match in matches:
        transfer = end[match.task] - start[match.task].max(axis=1, keepdims=True)
        sound = transfer > 0
        usual = int(np.median(transfer[sound])) if sound.any() else 0
        duration[match.task] = np.where(sound, transfer, usual)
        sets.extend(match.task)
    together = end_to_end(sets)
    return replace(
        graph,
        duration=duration,
        rendezvous_offset=together.offset,
        rendezvous_task=together.flat.astype(np.int32),
        occupancy=_shortened(graph.occupancy, duration),
    )


def _shortened(occupancy: Occupancy | None, duration: Int64) -> Occupancy | None:
    """The occupancy in which no kernel holds SMs for longer than its new duration."""
    if occupancy is None:
        return None
    return replace(occupancy, hold=np.minimum(occupancy.hold, duration[occupancy.task]))


def _mark_lone(graph: Graph, world: int | None) -> Graph:
    """A graph without rendezvous: all its collectives keep their measured durations, and are marked unless their group is one rank."""
    if graph.collectives is None or (world == 1):
        return graph
    size = graph.collectives.size
    alone = np.zeros(len(graph.collectives.task), bool) if size is None else size == 1
    return _mark_unknown(graph, graph.collectives.task[~alone])


def _mark_unknown(graph: Graph, task: Int32) -> Graph:
    """Mark tasks whose waiting and transfer cannot be separated, and report what share of the steps they are."""
    if not len(task):
        return graph
    start, end = _measured(graph)
    share = float((end[task] - start[task]).sum()) / max(1, sum(s.end - s.start for s in graph.steps))
    finding = Diagnostic(
        "waiting-unknown",
        f"{len(task)} collective tasks keep their measured duration, waiting included, because not all of their ranks were given;"
        f" together they last {share:.1%} of the steps",
    )
    return replace(graph, waiting_unknown=np.sort(task).astype(np.int32), diagnostics=(*graph.diagnostics, finding))
