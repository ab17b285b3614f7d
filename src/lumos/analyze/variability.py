"""How much a rank's steps differ from one another."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lumos.analyze.steps import Members, spans
from lumos.simulate.timeline import Timeline


class Variability(NamedTuple):
    """The steps of one rank, ns. `variation` is the standard deviation over the mean; None for a single step."""

    rank: int
    steps: int
    mean_ns: float
    min_ns: int
    max_ns: int
    variation: float | None


def variability(timeline: Timeline, owners: Members) -> tuple[Variability, ...]:
    """Every rank that has steps, in order."""
    start, end = spans(timeline, owners)
    length, step_rank = end - start, owners.step_rank()
    out = []
    for position in np.unique(step_rank):
        own = length[step_rank == position]
        spread = float(own.std(ddof=1) / own.mean()) if len(own) > 1 and own.any() else None
        rank = owners.graph.ranks[int(position)]
        out.append(Variability(rank, len(own), float(own.mean()), int(own.min()), int(own.max()), spread))
    return tuple(out)
