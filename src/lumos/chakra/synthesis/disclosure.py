"""How well the set that gave a sample its structure can be told among all sets that were learned from.

The one who tells knows these sets, and knows how samples are made. He compares runs of consecutive nodes (type, CPU or device, distances
of dependencies) and runs of consecutive communications (type, how many ranks) and names the set that has most in common with the sample.
By chance he is right once in as many times as there are sets.

A sample is made from the set that is nearest to its facts. So one who knows these facts, which a sample is asked for and shows in its ranks
and communicators, and all sets, names it without looking at what else the sample holds; only among sets with the same facts is there
more to learn.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.chakra.build import in_program_order
from lumos.chakra.synthesis.likeness import STRUCTURE, structure_runs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.chakra.workload import Workload


class Disclosure(NamedTuple):
    """told: how probable it is that the source of a sample is named. chance: the same by guessing. structure: the share of the sample's
    runs of nodes that the source has too. by_facts: how probable it is that one names the source who knows nothing of the sample but its
    facts."""

    told: float
    chance: float
    structure: float
    by_facts: float


def disclosure(sources: Sequence[Workload], sample: Workload, source: int, facts: Sequence[Mapping[str, int]]) -> Disclosure:
    """What a sample tells about its source, one of the sets that were learned from. facts: of these sets."""
    views = [_views(each) for each in sources]
    drawn = _views(sample)
    scores = np.array([sum(_common(own, other) for own, other in zip(view, drawn, strict=True)) for view in views])
    best = np.flatnonzero(np.isclose(scores, scores.max()))
    told = 1 / len(best) if source in best else 0.0
    nodes, known = drawn[0], views[source][0]
    return Disclosure(told, 1 / len(sources), len(nodes & known) / max(len(nodes), 1), 1 / list(facts).count(facts[source]))


def _views(workload: Workload) -> tuple[set[tuple[object, ...]], set[tuple[object, ...]]]:
    """The runs of nodes, and those of communications, of all ranks."""
    return structure_runs(in_program_order(workload)), _exchanges(workload)


def _exchanges(workload: Workload) -> set[tuple[object, ...]]:
    """The runs of STRUCTURE communications of every rank, or all of a rank that has fewer."""
    facts = workload.communication
    sizes = np.array([*map(len, workload.groups), 2])
    rows = list(zip(facts.type.tolist(), sizes[facts.group].tolist(), workload.type[facts.node].tolist(), strict=True))
    out: set[tuple[object, ...]] = set()
    for low, high in pairwise(np.searchsorted(facts.node, workload.rank_offset).tolist()):
        out.update(tuple(rows[i : min(i + STRUCTURE, high)]) for i in range(low, max(high - STRUCTURE, low) + 1))
    return out


def _common(one: set[tuple[object, ...]], other: set[tuple[object, ...]]) -> float:
    """The share of runs of either set that both have."""
    return len(one & other) / max(len(one | other), 1)
