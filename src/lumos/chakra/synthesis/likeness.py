"""What a synthetic set tells about the set that it was made from.

One who knows all sets that were learned from, and how samples are made, names the set whose runs of consecutive nodes and communications
have most in common with a sample; by chance he is right once in as many times as there are sets. A sample is made from the set that is
nearest to its facts, so one who knows these names it without looking further; only among sets with the same facts is there more to learn.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.chakra.build import in_program_order
from lumos.chakra.synthesis.trends import ranks_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.chakra.workload import Workload

    Runs = set[tuple[object, ...]]

#: How many consecutive nodes count as a piece of structure: more than a launch and its kernel, less than a layer.
STRUCTURE = 16


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
    known = [(_runs(each), _exchanges(each)) for each in sources]
    drawn = _runs(sample), _exchanges(sample)
    scores = np.array([sum(len(a & b) / max(len(a | b), 1) for a, b in zip(of_set, drawn, strict=True)) for of_set in known])
    best = np.flatnonzero(np.isclose(scores, scores.max()))
    told = 1 / len(best) if source in best else 0.0
    recurring = len(drawn[0] & known[source][0]) / max(len(drawn[0]), 1)
    return Disclosure(told, 1 / len(sources), recurring, 1 / list(facts).count(facts[source]))


def _runs(workload: Workload) -> Runs:
    """The distinct runs of STRUCTURE nodes of every rank in program order, each node as its type, its place and how far back its
    dependencies are."""
    workload = in_program_order(workload)
    bounds, deps = workload.dep_offset.tolist(), workload.dep.tolist()
    places = zip(workload.type.tolist(), workload.on_cpu.tolist(), strict=True)
    nodes = [(*where, *(i - d for d in deps[bounds[i] : bounds[i + 1]])) for i, where in enumerate(places)]
    ranks = pairwise(workload.rank_offset.tolist())
    return {tuple(nodes[i : i + STRUCTURE]) for low, high in ranks for i in range(low, high - STRUCTURE + 1)}


def _exchanges(workload: Workload) -> Runs:
    """The runs of STRUCTURE communications of every rank (type, how many ranks), or all of a rank that has fewer."""
    facts = workload.communication
    rows = list(zip(facts.type.tolist(), ranks_of(workload).tolist(), workload.type[facts.node].tolist(), strict=True))
    ranks = pairwise(np.searchsorted(facts.node, workload.rank_offset).tolist())
    return {tuple(rows[i : min(i + STRUCTURE, high)]) for low, high in ranks for i in range(low, max(high - STRUCTURE, low) + 1)}
