"""Several recorded ranks as one, which runs what each of them ran.

The threads that run forward passes become one thread, and so do those that run backward passes; streams of one number become one stream.
Every other thread or stream stays beside. What a rank alone has (constants of dependencies, marks of steps, the delay of its start) is that
of the first of the ranks. Collectives among them alone go.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.loop.steps import members
from lumos.graph.lists import Lists, end_to_end
from lumos.graph.table import Graph, Waits
from lumos.vocabulary import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.graph.table import Processor
    from lumos.segment.segment import Segmentation
    from lumos.trace.table import Int64


def ranks_joined(layout: MeasuredLayout, groups: Sequence[Sequence[int]]) -> MeasuredLayout:
    """The layout in which the ranks of every group are one. groups: positions of ranks; every rank is in one of them.

    The pieces are those of the recording, and every new rank runs those of the first of its group: which others it runs, and in which
    order, is for the caller to say. Rows of the other ranks' traces are not known of their tasks any more.
    """
    s, firsts = layout.segmentation, [group[0] for group in groups]
    meetings, alone = _met(s.graph, groups)
    owners = members(_graph(s, groups, meetings))
    graph = owners.graph
    named = [step.name for step in s.owners.steps]
    number = {(step.rank, step.name): i for i, step in enumerate(owners.steps)}
    new_rank = {old: new for new, group in enumerate(groups) for old in group}

    def step_of(rank: int, step: int) -> int:
        return number.get((graph.ranks[rank], named[step]), -1) if step >= 0 else -1

    pieces = tuple(replace(p, rank=new_rank[p.rank], step=step_of(new_rank[p.rank], p.step)) for p in s.pieces)
    segmentation = replace(
        s,
        owners=owners,
        pieces=pieces,
        units=tuple(s.units[first] for first in firsts),
        unit_labels=tuple(s.unit_labels[first] for first in firsts),
    )
    return replace(
        layout,
        segmentation=segmentation,
        ranks=tuple(layout.ranks[first] for first in firsts),
        recorded=tuple(layout.recorded[first] if layout.recorded else first for first in firsts),
        dropped=layout.dropped | alone,
    )


def _met(graph: Graph, groups: Sequence[Sequence[int]]) -> tuple[Lists, frozenset[int]]:
    """The tasks that still transfer together, and those of collectives that need not be: of the ranks that become one, the first takes part
    for all of them, and where that leaves it alone, there is nothing to exchange (as the norm of all stages' gradients)."""
    new_rank = np.zeros(len(graph.ranks), np.int64)
    for new, group in enumerate(groups):
        new_rank[list(group)] = new
    position = graph.position_of_task
    kept: list[list[int]] = []
    gone: set[int] = set()
    for low, high in pairwise(graph.rendezvous_offset.tolist()):
        tasks = sorted(graph.rendezvous_task[low:high].tolist(), key=lambda task: int(position[task]))
        one_each = {int(new_rank[position[task]]): task for task in reversed(tasks)}
        if len(one_each) > 1:
            kept.append(sorted(one_each.values()))
            gone |= set(tasks) - set(one_each.values())
        else:
            gone |= set(tasks)
    return end_to_end(kept), frozenset(gone)


def _graph(s: Segmentation, groups: Sequence[Sequence[int]], meetings: Lists) -> Graph:
    """The graph of the ranks that are several recorded ones each. meetings: the tasks that transfer together."""
    graph, firsts = s.graph, [group[0] for group in groups]
    numbers = [graph.ranks[first] for first in firsts]
    processors, processor = _processors(s, groups)
    of_first = np.isin(graph.position_of_task, firsts)
    released = of_first[graph.release_task]
    waits = graph.waits
    target = np.append(processor, -1)
    return replace(
        graph,
        ranks=tuple(numbers),
        processors=processors,
        processor=processor[graph.processor].astype(np.int32),
        event=np.where(of_first, graph.event, -1).astype(np.int32),
        lag=graph.lag[firsts],
        gap_range=None if graph.gap_range is None else graph.gap_range[firsts],
        queue_depth=None if graph.queue_depth is None else graph.queue_depth[firsts],
        rendezvous_offset=meetings.offset,
        rendezvous_task=meetings.flat.astype(np.int32),
        release_task=graph.release_task[released],
        release_time=graph.release_time[released],
        waits=None if waits is None else Waits(waits.task, target[waits.target].astype(waits.target.dtype)),
        measured_start=_at_the_first(graph, groups),
        one_off=None,
        steps=tuple(step for step in graph.steps if step.rank in numbers),
    )


def _at_the_first(graph: Graph, groups: Sequence[Sequence[int]]) -> Int64 | None:
    """When the tasks would have begun if every rank's steps were at the times of its first's, so that tasks stay in their steps."""
    if graph.measured_start is None or not graph.steps:
        return graph.measured_start
    out, position = graph.measured_start.copy(), graph.position_of_task
    for group in groups:
        marks = {step.name: step.start for step in graph.steps if step.rank == graph.ranks[group[0]]}
        for rank in group[1:]:
            own = [step for step in graph.steps if step.rank == graph.ranks[rank] and step.name in marks]
            if not own:
                continue
            mine = position == rank
            here, there = [step.start for step in own], [marks[step.name] for step in own]
            ends = own[-1].end - here[-1] or 1
            here, there = [here[0] - ends, *here, own[-1].end], [there[0] - ends, *there, there[-1] + ends]
            out[mine] = np.rint(np.interp(out[mine], here, there)).astype(np.int64)
    return out


def _processors(s: Segmentation, groups: Sequence[Sequence[int]]) -> tuple[tuple[Processor, ...], Int64]:
    """The processors of the joined ranks, and the new one of each old one."""
    graph = s.graph
    place = {rank: i for i, rank in enumerate(graph.ranks)}
    roles = _roles(s)
    known: dict[tuple[int, str], int] = {}
    out: list[Processor] = []
    number = np.zeros(len(graph.processors), np.int64)
    for group in groups:
        first = graph.ranks[group[0]]
        device = next((p.device for p in graph.processors if p.rank == first and p.is_stream), -1)
        for position in group:
            for i, each in enumerate(graph.processors):
                if place[each.rank] != position:
                    continue
                key = first, roles.get(i, f"beside {i}")
                if key not in known:
                    known[key] = len(out)
                    out.append(replace(each, rank=first, device=device if each.is_stream else each.device))
                number[i] = known[key]
    return tuple(out), number


def _roles(s: Segmentation) -> dict[int, str]:
    """What a processor does for its rank, of those that are joined: the number of its stream, or the passes that it runs."""
    graph = s.graph
    out: dict[int, str] = {}
    for rank in graph.ranks:
        for wanted in (Phase.BACKWARD, Phase.FORWARD):
            found: Counter[int] = Counter()
            own = [i for i, p in enumerate(graph.processors) if p.rank == rank and not p.is_stream]
            chosen = np.flatnonzero((s.phase == wanted) & np.isin(graph.processor, own))
            for processor in np.unique(graph.processor[chosen]).tolist():
                found[processor] = int(graph.duration[chosen[graph.processor[chosen] == processor]].sum())
            if found:
                out[found.most_common(1)[0][0]] = "forward" if wanted == Phase.FORWARD else "backward"
    out.update({i: f"stream {p.stream}" for i, p in enumerate(graph.processors) if p.is_stream})
    return out
