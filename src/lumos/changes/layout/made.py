"""The threads, streams and steps of ranks that are made of recorded ones.

A rank that is a copy of a recorded one has what that has. In one that is made of several, the threads that run forward passes are one
thread, and so are those that run backward passes, and streams of one number are one stream; every other thread or stream stays beside them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.vocabulary import Phase

if TYPE_CHECKING:
    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.graph.table import Processor, Step
    from lumos.segment.segment import Segmentation
    from lumos.trace.table import Int64


@dataclass(frozen=True, slots=True, eq=False)
class MadeRanks:
    """What the ranks of a layout have. numbers: theirs. holder, processor, step: int64, by team and recorded rank, processor or step:
    the one of this layout that holds it, -1 for none; the last processor and the last step are what index -1 finds."""

    numbers: tuple[int, ...]
    processors: tuple[Processor, ...]
    steps: tuple[Step, ...]
    holder: Int64
    processor: Int64
    step: Int64


def made_ranks(layout: MeasuredLayout) -> MadeRanks:
    """The ranks of a layout: of the recorded numbers where they are those of the recording, and else of their positions."""
    s, made = layout.segmentation, layout.made
    graph, owners = s.graph, s.owners
    numbers = graph.ranks if layout.of_recorded_ranks else tuple(range(len(made)))
    teams = 1 + max((of.team for of in made), default=0)
    of_rank: dict[int, list[int]] = {}
    for i, p in enumerate(graph.processors):
        of_rank.setdefault(p.rank, []).append(i)
    roles = _roles(s, of_rank) if any(len(of.ranks) > 1 for of in made) else {}
    holder = np.full((teams, len(graph.ranks)), -1, np.int64)
    processor = np.full((teams, len(graph.processors) + 1), -1, np.int64)
    step = np.full((teams, len(owners.steps) + 1), -1, np.int64)
    processors: list[Processor] = []
    steps: list[Step] = []
    for position, (number, of) in enumerate(zip(numbers, made, strict=True)):
        first = of_rank.get(graph.ranks[of.ranks[0]], [])
        device = next((graph.processors[i].device for i in first if graph.processors[i].is_stream), -1)
        own: dict[str, int] = {}
        marks: dict[tuple[str, int], int] = {}
        for rank in of.ranks:
            holder[of.team, rank] = position
            alone = rank == of.ranks[0]
            for i in of_rank.get(graph.ranks[rank], []):
                p, role = graph.processors[i], roles.get(i, f"beside {i}")
                if role not in own:
                    own[role] = len(processors)
                    processors.append(replace(p, rank=number, device=device if p.is_stream and not alone else p.device))
                processor[of.team, i] = own[role]
            for key, i in _marks(owners.steps, graph.ranks[rank]).items():
                if alone:
                    marks[key] = len(steps)
                    steps.append(replace(owners.steps[i], rank=number))
                step[of.team, i] = marks.get(key, -1)
    return MadeRanks(numbers, tuple(processors), tuple(steps), holder, processor, step)


def _marks(steps: tuple[Step, ...], rank: int) -> dict[tuple[str, int], int]:
    """The steps of a rank by their name and how many of that name come before."""
    seen: Counter[str] = Counter()
    out = {}
    for i, step in enumerate(steps):
        if step.rank == rank:
            out[step.name, seen[step.name]] = i
            seen[step.name] += 1
    return out


def _roles(s: Segmentation, of_rank: dict[int, list[int]]) -> dict[int, str]:
    """What a processor does for its rank, of those that are joined: the number of its stream, or the passes that it runs."""
    graph = s.graph
    out = {i: f"stream {p.stream}" for i, p in enumerate(graph.processors) if p.is_stream}
    for phase, role in ((Phase.BACKWARD, "backward"), (Phase.FORWARD, "forward")):
        chosen = np.flatnonzero(s.phase == phase)
        spent = np.bincount(graph.processor[chosen], graph.duration[chosen], len(graph.processors))
        for own in of_rank.values():
            threads = [i for i in own if not graph.processors[i].is_stream]
            busiest = max(threads, key=lambda i: float(spent[i]), default=-1)
            if busiest >= 0 and spent[busiest]:
                out[busiest] = role
    return out
