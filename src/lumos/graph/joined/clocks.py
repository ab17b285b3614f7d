"""The clocks of different hosts aligned by what the ranks did together.

All members of a collective leave it at once, so the differences of its measured ends are those of the clocks. Ranks that share no such
collective are aligned by the ends of their messages, but only where they recorded steps of the same number at times that do not
overlap: a small message may be sent long before it is received, and then its ends say nothing about the clocks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.joined.matching import measured_times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.graph.joined.matching import Matches
    from lumos.graph.table import Graph
    from lumos.trace.table import Int64

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
