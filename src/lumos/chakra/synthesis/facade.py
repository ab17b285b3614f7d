"""`lumos.chakra.synthesize`: learn from sets, sample a new one, write it, and say what it gives away.

One who knows all sets that were learned from, and how samples are made, names the set whose runs of consecutive nodes have most in
common with a sample; by chance he is right once in as many times as there are sets. A sample is made from the set that is
nearest to its facts, so one who knows these names it without looking further; only among sets with the same facts is there more to learn.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumos.analyze.loop.steps import members, step_times
from lumos.chakra.build import graph_of, in_program_order
from lumos.chakra.exporting import Exported, export_graph
from lumos.chakra.lower import lower
from lumos.chakra.recorded import amounts_of
from lumos.chakra.synthesis.every_rank import ASSUMED, COPIED, with_every_rank
from lumos.chakra.synthesis.family import sample_family
from lumos.chakra.synthesis.model import learn
from lumos.chakra.synthesis.sample import sample
from lumos.chakra.synthesis.trends import MOST_VARIED, varied
from lumos.cost.cluster import load_cluster
from lumos.errors import UsageError
from lumos.graph.build import build
from lumos.result import Shown, by_field
from lumos.simulation import simulate
from lumos.trace.chakra.et import FORMAT
from lumos.trace.source import OfJob, Source, as_job, keep_inputs
from lumos.trace.table import ABSENT, Job
from lumos.units import count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.chakra.workload import Workload
    from lumos.graph.table import Graph

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
    known, drawn = [_runs(workload) for workload in sources], _runs(sample)
    scores = np.array([len(of_set & drawn) / max(len(of_set | drawn), 1) for of_set in known])
    best = np.flatnonzero(np.isclose(scores, scores.max()))
    told = 1 / len(best) if source in best else 0.0
    recurring = len(drawn & known[source]) / max(len(drawn), 1)
    return Disclosure(told, 1 / len(sources), recurring, 1 / list(facts).count(facts[source]))


def _runs(workload: Workload) -> Runs:
    """The distinct runs of STRUCTURE nodes of every rank in program order, each node as its type, its place, the type of its transfer, how
    many ranks take part in that, and how far back its dependencies are."""
    workload = in_program_order(workload)
    bounds, deps, facts = workload.dep_offset.tolist(), workload.dep.tolist(), workload.communication
    meets = np.full((2, len(workload)), ABSENT)
    meets[:, facts.node] = facts.type, workload.members()
    places = zip(workload.type.tolist(), workload.on_cpu.tolist(), *meets.tolist(), strict=True)
    nodes = [(*where, *(i - d for d in deps[bounds[i] : bounds[i + 1]])) for i, where in enumerate(places)]
    ranks = pairwise(workload.rank_offset.tolist())
    return {tuple(nodes[i : i + STRUCTURE]) for low, high in ranks for i in range(low, high - STRUCTURE + 1)}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Synthetic(Shown):
    """A sampled set. symbols: how many symbols the model has. step_time_ns: of the step of the sample, simulated.
    source_step_time_ns: the same of each set that was learned from. facts: what a sample of a family is a set of. disclosure: how well its
    source can be told among the sets that were learned from; None where it is no sample of a family."""

    exported: Exported
    symbols: int
    step_time_ns: int
    source_step_time_ns: tuple[int, ...]
    facts: dict[str, int] | None = None
    disclosure: Disclosure | None = None

    def to_dict(self) -> dict[str, Any]:
        """The keys of `lumos chakra synthesize --json`."""
        fields = by_field(self)
        return {**fields.pop("exported"), **fields}


def synthesize(
    sets: Source | Sequence[Source],
    *,
    output: str | os.PathLike[str],
    seed: int = 0,
    ranks: int | None = None,
    facts: Mapping[str, Sequence[int]] | None = None,
    at: Mapping[str, int] | None = None,
    astra_sim: bool = False,
    cluster: str | None = None,
) -> Synthetic:
    """Sample a new set into the folder `output`: without the names and times of its source, with other ranks, or of other facts.

    sets: the sets or jobs to learn from. seed: the same seed gives the same set. ranks: a multiple of the source's ranks. facts: what
    tells sets of one family apart, for each set: "tp", "dp", "pp", "layers" and any other number; at: those of the sample, which replace
    ranks; the others are those of any set. astra_sim, cluster: as for `export`. Raises UsageError where these contradict each other.
    """
    listed = (sets,) if isinstance(sets, str | os.PathLike | Job | OfJob) else tuple(sets)
    if not listed:
        raise UsageError("give one set or more to learn from")
    for source in listed:
        keep_inputs(source, output)
    described = load_cluster(cluster) if cluster is not None else None
    sources = [learned_from(source) for source in listed]
    learned = learn(sources, facts_of_sets(len(sources), facts or {}))
    of_family = bool(learned.facts)
    if of_family and ranks is not None:
        raise UsageError("sets of a family are sampled by their facts: give --set instead of --ranks")
    drawn = sample_family(learned, seed, at) if of_family or at else sample(learned, seed, ranks=ranks)
    graph, amounts = drawn.graph, drawn.amounts
    exported = export_graph(graph, Path(output), amounts=amounts, exact_ns=True, astra_sim=astra_sim, cluster=described)
    made = tuple(d for source in sources for d in source.diagnostics if d.code in (COPIED, ASSUMED))
    return Synthetic(
        exported=replace(exported, diagnostics=(*exported.diagnostics, *made)),
        symbols=len(learned.symbols),
        step_time_ns=_step_time(graph),
        source_step_time_ns=tuple(_step_time(graph_of(s)) for s in sources),
        facts=drawn.facts,
        disclosure=None if drawn.facts is None else disclosure(sources, lower(graph), drawn.source, learned.facts),
    )


def learned_from(source: Source) -> Workload:
    """The nodes of all ranks of a job, of which one may be recorded, with their times and what a set says of their work. A set without
    times is played first."""
    job = as_job(source)
    graph = build(job)
    of_set = job.traces[0].metadata.get("format") == FORMAT
    return lower(graph, amounts_of(graph, job)) if of_set else lower(with_every_rank(graph, job))


def facts_of_sets(sets: int, facts: Mapping[str, Sequence[int]]) -> tuple[dict[str, int], ...]:
    """The facts set by set. UsageError where one does not give a whole number above 0 for each set, or too many vary."""
    for key, values in facts.items():
        if len(values) != sets or min(values) < 1:
            given = f"{count(len(values), 'value')} for {count(sets, 'set')}"
            raise UsageError(f"--facts {key}: {given}; give a number of 1 or more for each set, in their order")
    of_sets = tuple({key: values[i] for key, values in facts.items()} for i in range(sets)) if facts else ()
    if len(varied(of_sets)) > MOST_VARIED:
        raise UsageError(f"--facts: the sets differ in {', '.join(varied(of_sets))}; give {MOST_VARIED} facts at most that vary")
    return of_sets


def _step_time(graph: Graph) -> int:
    timeline = simulate(graph)
    return step_times(timeline, members(graph)).headline.step_time_ns
