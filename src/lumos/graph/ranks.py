"""Ranks joined: collectives and point-to-point transfers become rendezvous, so that waiting comes out of the simulation.

Which task of one rank meets which of another is read, best first, from (communicator or group, sequence number), else
from the order of like collectives within the group, aligned so that a row missing on one rank does not shift all later
matches. Clocks of different hosts are then aligned by the ends of shared collectives, which all members leave at once.
A joined task's duration is its transfer: from the latest arrival over the ranks to its own end. Where a member of the
group was not recorded its arrival cannot be known, and the task keeps its measured duration, marked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lumos.diagnostics import Diagnostic
from lumos.graph.alignment import align
from lumos.graph.lists import end_to_end
from lumos.graph.table import Collectives, Graph, Occupancy, Step
from lumos.trace.table import ABSENT, Int32, Int64
from lumos.vocabulary import CollectiveKind

#: Kinds whose members all leave together, so that their ends show how far clocks are apart.
TOGETHER = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.BARRIER,
)
#: The two sides of a message.
SIDES = (CollectiveKind.SEND, CollectiveKind.RECEIVE)
#: Ranks of one host share a clock: they leave a collective within a few microseconds of each other (1 to 7 in the public
#: DLRM job). A clock that differs by no more than this, or than its own differences scatter, is kept (ns).
SAME_CLOCK = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """Rendezvous of one kind of evidence: task[i, j] of the j-th of `ranks` (positions) meet for every i."""

    ranks: Int32
    task: Int32
    together: bool  # ends may be compared across ranks
    confidence: float


def join(graph: Graph, world: int | None) -> Graph:
    """Join the ranks of a graph that `concatenate` put side by side. `world`: ranks in the whole job, None unknown."""
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
    paired = np.isin(kinds, SIDES) & (facts.peer >= 0)
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
    """Indices of the collectives of each group; those of unknown group are taken to be the whole job's."""
    for group in np.unique(facts.group[wanted]):
        yield np.flatnonzero(wanted & (facts.group == group))


def _size(facts: Collectives, index: Int64, world: int | None, given: int) -> int:
    """Ranks that must meet: the group's size, else its member list's, else the job's."""
    known = ABSENT if facts.size is None else int(facts.size[index].max())
    if known > 0:
        return known
    group = int(facts.group[index[0]])
    listed = re.search(r"\[(.*)\]", facts.groups[group]) if group >= 0 else None
    if listed:
        return len(listed.group(1).split(","))
    return world if world is not None else given


def _match_group(graph: Graph, facts: Collectives, kinds: Sequence[CollectiveKind], lanes: list[Int64]) -> tuple[list[Matches], Int64]:
    """Rendezvous of one group whose members' collectives are `lanes`, each in order; and what found no full set."""
    numbered = all((facts.sequence[lane] >= 0).all() and len(np.unique(facts.sequence[lane])) == len(lane) for lane in lanes)
    labels = [
        facts.sequence[lane].tolist() if numbered else [(kinds[i], int(facts.nbytes[i]) if kinds[i].is_even else 0) for i in lane]
        for lane in lanes
    ]
    end = _measured(graph)[1][facts.task]
    columns = [np.arange(len(lanes[0]))]
    for other, lane in zip(labels[1:], lanes[1:], strict=True):
        columns.append(align(labels[0], other, end[lanes[0]], end[lane]))
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
    """Rows of numbered collectives that all ranks call by one kind and, where the kind wants it, one size."""
    kind, nbytes = facts.kind[chosen], facts.nbytes[chosen]
    even = np.array([facts.kinds[k].is_even for k in kind[:, 0]], bool)
    one_kind: NDArray[np.bool_] = (kind == kind[:, :1]).all(axis=1)
    one_size: NDArray[np.bool_] = ~even | (nbytes == nbytes[:, :1]).all(axis=1)
    return one_kind & one_size


def _mismatches(graph: Graph, facts: Collectives) -> list[Diagnostic]:
    """Collectives of one group and number that ranks call by different kinds or sizes: they would never complete."""
    numbered = np.flatnonzero((facts.sequence >= 0) & (facts.peer == ABSENT))
    ranks = graph.rank_of_task[facts.task[numbered]]
    said: dict[tuple[int, int], dict[tuple[CollectiveKind, int], list[int]]] = {}
    for i, rank in zip(numbered, ranks, strict=True):
        kind = facts.kinds[facts.kind[i]]
        call = (kind, int(facts.nbytes[i]) if kind.is_even else ABSENT)
        said.setdefault((int(facts.group[i]), int(facts.sequence[i])), {}).setdefault(call, []).append(int(rank))
    found = []
    for (group, sequence), calls in said.items():
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
    """Sends with their receives: the k-th of a rank to a peer meets the k-th that the peer receives from it."""
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
    """Matches whose members were under way at one time, and the tasks of the others.

    What meets must overlap. A set matched by order that does not was matched wrongly (rows are missing, or a window cuts
    the ranks differently). Sequence numbers are believed all the same: if they cannot meet, the job is at fault.
    """
    start, end = _measured(graph)
    kept, apart = [], [np.empty(0, np.int32)]
    for match in matches:
        meets = (start[match.task].max(axis=1) < end[match.task].min(axis=1)) | (match.confidence == 1.0)
        if meets.any():
            kept.append(replace(match, task=match.task[meets]))
        apart.append(match.task[~meets].ravel())
    return kept, np.concatenate(apart).astype(np.int32)


def _measured(graph: Graph) -> tuple[Int64, Int64]:
    """Measured start and end; every graph built from traces has them."""
    assert graph.measured_start is not None and graph.measured_end is not None
    return graph.measured_start, graph.measured_end


def _align_clocks(graph: Graph, matches: list[Matches]) -> tuple[Graph, Int64]:
    """Shift each rank's clock so that the ends of shared collectives agree; returns the shifts (ns, by position).

    A rank's offset to another is the median difference of their ends over all that they share; ranks are reached through
    groups one after the other. An offset within SAME_CLOCK, or within the median scatter of those differences, is none.
    """
    end = _measured(graph)[1]
    offset = np.zeros(len(graph.ranks), np.int64)
    known = np.zeros(len(graph.ranks), bool)
    todo = [m for m in matches if m.together and len(m.task)]
    if todo:
        known[todo[0].ranks[0]] = True
    while todo:
        ready = next((m for m in todo if known[m.ranks].any()), None)
        if ready is None:  # a part of the job that shares no group with the rest keeps its clock
            known[todo[0].ranks[0]] = True
            continue
        todo.remove(ready)
        ends = end[ready.task] - offset[ready.ranks]
        anchor = np.median(ends[:, known[ready.ranks]], axis=1)
        for j, rank in enumerate(ready.ranks):
            if not known[rank]:
                apart = ends[:, j] - anchor
                shift = int(np.median(apart))
                scatter = float(np.median(np.abs(apart - shift)))
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
    """Make the matches rendezvous, each member lasting from the latest arrival to its own end.

    Where clocks leave a member no time at all it lasts as long as its like usually do (median over the same matches).
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
        occupancy=_held(graph.occupancy, duration),
    )


def _held(occupancy: Occupancy | None, duration: Int64) -> Occupancy | None:
    """No kernel holds SMs for longer than it now lasts."""
    if occupancy is None:
        return None
    return replace(occupancy, hold=np.minimum(occupancy.hold, duration[occupancy.task]))


def _mark_lone(graph: Graph, world: int | None) -> Graph:
    """A graph without rendezvous: all its collectives keep their measured durations."""
    if graph.collectives is None or (world == 1):
        return graph
    size = graph.collectives.size
    alone = np.zeros(len(graph.collectives.task), bool) if size is None else size == 1
    return _mark_unknown(graph, graph.collectives.task[~alone])


def _mark_unknown(graph: Graph, task: Int32) -> Graph:
    """Mark tasks whose waiting cannot be told from their transfer, and say what share of the steps they are."""
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
