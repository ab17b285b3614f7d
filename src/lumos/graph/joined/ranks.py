"""The ranks of a job joined: collectives and point-to-point transfers become rendezvous, so that waiting is simulated.

`graph.joined.matching` says which tasks meet, and the clocks of different hosts are aligned by them. A joined task's
duration is its transfer: from the latest arrival over the ranks to its own end. Where a rank of its group was not recorded, that rank
may have arrived later still: the duration is then a bound, and the task is listed in `Graph.waiting_unknown`. So is a task that meets
no other, which keeps its measured duration.

All members of a collective leave it at once, so the differences of its measured ends are those of the clocks. Ranks that share no such
collective are aligned by the ends of their messages, but only where they recorded steps of the same number at times that do not
overlap: a small message may be sent long before it is received, and then its ends say nothing about the clocks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.diagnostics import Diagnostic
from lumos.graph.joined.matching import Alone, How, match, measured_times
from lumos.graph.lists import end_to_end
from lumos.trace.table import ABSENT, Int32, Int64, unique

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.graph.joined.matching import Matches
    from lumos.graph.table import Collectives, Graph, Occupancy
    from lumos.vocabulary import CollectiveKind

#: How many ranks or offsets a message lists.
_LISTED = 8


def join(graph: Graph, world: int | None) -> Graph:
    """Join the ranks of a graph that `concatenate` made. `world`: the number of ranks in the whole job, None if unknown."""
    facts = graph.collectives
    if facts is None:
        return graph
    if len(graph.ranks) < 2:
        return _mark_unknown(_without_messages(graph), [], _alone_on_one_rank(facts, world))
    matches, alone = match(graph, facts, world)
    graph, offsets = align_clocks(graph, matches)
    matches, apart = _overlapping(graph, matches)
    graph = _meet(_without_messages(graph), matches)
    notes = [*_joined(graph, facts, matches), *_moved(graph, offsets), *_mismatches(graph, facts)]
    alone += [(Alone.SEVERAL if len(m.ranks) > 2 and m.how is How.MESSAGES else Alone.APART, m.task.ravel()) for m in apart]
    return _mark_unknown(replace(graph, diagnostics=(*graph.diagnostics, *notes)), matches, alone)


def _without_messages(graph: Graph) -> Graph:
    """The graph without the facts that only the matching needs."""
    assert graph.collectives is not None
    return replace(graph, collectives=replace(graph.collectives, messages=()))


def _alone_on_one_rank(facts: Collectives, world: int | None) -> list[tuple[Alone, Int32]]:
    """The collectives of a job of which one rank was given, except those whose group is that rank."""
    if world == 1:
        return []
    return [(Alone.NOT_GIVEN, facts.task if facts.size is None else facts.task[facts.size != 1])]


def _joined(graph: Graph, facts: Collectives, matches: Sequence[Matches]) -> list[Diagnostic]:
    """The diagnostic that says how many tasks meet, and how they were matched."""
    if not matches:
        return []
    ways: dict[tuple[How, float], int] = {}
    for m in matches:
        ways[m.how, m.confidence] = ways.get((m.how, m.confidence), 0) + m.task.size
    best = sorted(ways, key=lambda way: (-way[1], way[0]))
    listed = "; ".join(f"{f'{ways[way]} ' if len(ways) > 1 else ''}by {way[0]} (confidence {way[1]:.2f})" for way in best)
    total = f"{sum(ways.values())} of {len(facts.task)} collective and point-to-point tasks of {len(graph.ranks)} ranks"
    return [Diagnostic("ranks-joined", f"{total} meet their peers, {listed}")]


def _moved(graph: Graph, offsets: Int64) -> list[Diagnostic]:
    """The diagnostic that says which clocks were moved."""
    moved = {graph.ranks[i]: int(o) for i, o in enumerate(offsets) if o}
    if not moved:
        return []
    listed = ", ".join(f"rank {r} {o / 1e3:+.1f} us" for r, o in list(moved.items())[:_LISTED])
    return [Diagnostic("clocks-aligned", f"clocks differ between ranks and were aligned by the ends of collectives: {listed}")]


def _mismatches(graph: Graph, facts: Collectives) -> list[Diagnostic]:
    """Collectives that have one group and sequence number but different kinds or sizes on different ranks: they cannot complete."""
    numbered = np.flatnonzero((facts.sequence >= 0) & (facts.peer == ABSENT))
    ranks = graph.rank_of_task[facts.task[numbered]]
    ranks_by_call: dict[tuple[int, int], dict[tuple[CollectiveKind, int], list[int]]] = {}
    for i, rank in zip(numbered, ranks, strict=True):
        kind = facts.kinds[facts.kind[i]]
        call = (kind, int(facts.nbytes[i]) if kind.is_even else ABSENT)
        ranks_by_call.setdefault((int(facts.group[i]), int(facts.sequence[i])), {}).setdefault(call, []).append(int(rank))
    notes = []
    for (group, sequence), calls in ranks_by_call.items():
        if len(calls) > 1:
            words = "; ".join(
                f"{kind}{'' if nbytes == ABSENT else f' of {nbytes:,} bytes'} on rank {', '.join(map(str, sorted(who)[:8]))}"
                for (kind, nbytes), who in calls.items()
            )
            name = facts.groups[group] if group >= 0 else "unknown"
            message = f"group {name}, sequence number {sequence}: {words}; they cannot meet and keep their measured durations"
            notes.append(Diagnostic("collective-mismatch", message))
    return notes


def _overlapping(graph: Graph, matches: Sequence[Matches]) -> tuple[list[Matches], list[Matches]]:
    """The matches whose tasks overlap in time, and the others.

    Tasks that meet must overlap. Where tasks matched by order do not, the match is wrong (rows are missing, or the ranks'
    windows differ). Matches by sequence number are not dropped: if such tasks do not overlap, the job itself is at fault.
    """
    start, end = measured_times(graph)
    parts: tuple[list[Matches], list[Matches]] = [], []
    for m in matches:
        meets = (start[m.task].max(axis=1) < end[m.task].min(axis=1)) | (m.how is How.NUMBER)
        for part, chosen in zip(parts, (meets, ~meets), strict=True):
            if chosen.any():
                part.append(replace(m, task=m.task[chosen]))
    return parts


def _meet(graph: Graph, matches: Sequence[Matches]) -> Graph:
    """Make the matches rendezvous. Each task lasts from the latest arrival to its own end.

    Where that is not positive, because clocks differ, it lasts the median of the other tasks of the same `Matches`. Tasks that meet take
    no time where not even the last to arrive takes any, which no recording shows: a changed job no longer needs such an exchange.
    """
    if not matches:
        return graph
    start, end = measured_times(graph)
    duration = graph.duration.copy()
    sets: list[Int32] = []
    for m in matches:
        transfer = end[m.task] - start[m.task].max(axis=1, keepdims=True)
        sound = transfer > 0
        usual = int(np.median(transfer[sound])) if sound.any() else 0
        takes_time = sound.any(axis=1, keepdims=True)
        duration[m.task] = np.where(sound, transfer, np.where(takes_time, usual, 0))
        sets.extend(m.task)
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


def _mark_unknown(graph: Graph, matches: Sequence[Matches], alone: Sequence[tuple[Alone, Int32]]) -> Graph:
    """Mark tasks whose waiting and transfer cannot be separated, or only in part, and report what share of the steps they are."""
    by_reason = {reason: np.concatenate([task for why, task in alone if why is reason] or [_NONE]) for reason in Alone}
    bound = np.concatenate([m.task.ravel() for m in matches if not m.complete] or [_NONE])
    parts = [
        f"{len(task)} collective tasks keep their measured duration, waiting included, because {reason}"
        for reason, task in by_reason.items()
        if len(task)
    ]
    if len(bound):
        parts.append(
            f"{len(bound)} collective tasks meet only those of their ranks that show them; what is left of their duration may still be"
            " waiting for the others"
        )
    if not parts:
        return graph
    task = unique(*by_reason.values(), bound).astype(np.int32)
    start, end = measured_times(graph)
    share = float((end[task] - start[task]).sum()) / max(1, sum(s.end - s.start for s in graph.steps))
    finding = Diagnostic("waiting-unknown", f"{'; '.join(parts)}; together they last {share:.1%} of the steps")
    return replace(graph, waiting_unknown=task, diagnostics=(*graph.diagnostics, finding))


_NONE = np.empty(0, np.int32)


#: Ranks of one host share a clock: they leave a collective within a few microseconds of each other (1 to 7 in the public
#: DLRM job). A clock is not moved where it differs by no more than this, or by no more than its differences scatter (ns).
SAME_CLOCK = 10_000


def align_clocks(graph: Graph, matches: Sequence[Matches]) -> tuple[Graph, Int64]:
    """Shift each rank's clock so that the ends of shared collectives agree; returns the shifts (ns, by position).

    A rank's offset to another is the median difference of the ends of all collectives that they share. The first rank's clock
    is the reference, and the others are aligned group by group. An offset within SAME_CLOCK, or within the median scatter of
    those differences, counts as zero.
    """
    end = measured_times(graph)[1]
    offset = np.zeros(len(graph.ranks), np.int64)
    known = np.zeros(len(graph.ranks), bool)
    todo = [m for m in matches if m.together and len(m.task)]
    todo += [m for m in matches if not m.together and len(m.task) and _steps_lie_apart(graph, m)]
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
    return (_shifted(graph, offset), offset) if offset.any() else (graph, offset)


def _steps_lie_apart(graph: Graph, match: Matches) -> bool:
    """Whether ranks that meet recorded a step of one name at times that do not overlap."""
    ranks = [graph.ranks[i] for i in match.ranks]
    spans = [{s.name: s for s in graph.steps if s.rank == rank} for rank in ranks]
    shared = set.intersection(*(set(of_rank) for of_rank in spans))
    return any(max(of_rank[name].start for of_rank in spans) >= min(of_rank[name].end for of_rank in spans) for name in shared)


def _shifted(graph: Graph, offset: Int64) -> Graph:
    """The graph with every rank's measured times earlier by its offset."""
    shift, by = offset[graph.position_of_task], dict(zip(graph.ranks, offset.tolist(), strict=True))
    start, finish = measured_times(graph)
    return replace(
        graph,
        measured_start=start - shift,
        measured_end=finish - shift,
        release_time=graph.release_time - shift[graph.release_task],
        steps=tuple(replace(s, start=s.start - by[s.rank], end=s.end - by[s.rank]) for s in graph.steps),
    )
