"""Expand a folded graph, which has one rank for each pipeline stage, to all ranks of the job.

Each rank gets a copy of its stage's tasks, and the copies of a collective in one group form a rendezvous. Ranks are numbered tensor,
context, data, pipeline, innermost first. The members of a collective end together, so a rank that is late delays the
others, as in a measured job.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.errors import LumosError, UsageError
from lumos.graph.lists import Lists, end_to_end, offsets, places
from lumos.trace.table import ABSENT, Int32, Int64
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from lumos.blocks.work import Collective
    from lumos.graph.table import Collectives, Graph, Processor
    from lumos.plan.plan import Plan
    from lumos.prediction.predict import Prediction


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """The graph of all ranks. stage: pipeline stage of each rank. first: first task of each rank, int64[ranks + 1]. folded: for
    each task, the task of the folded graph that it copies."""

    graph: Graph
    stage: Int64
    first: Int64
    folded: Int64


#: The most tasks that a job may have over all of its ranks to be written out: they take about 8 GB.
MOST_TASKS = 20_000_000


def whole(prediction: Prediction) -> World:
    """All ranks of a predicted job, in kernels, whose step takes as long as predicted.

    Raises UsageError for a prediction without kernels, LumosError where there would be more than MOST_TASKS tasks.
    """
    if prediction.granularity != "kernels":
        raise UsageError("files of a job need a prediction at kernel granularity")
    run, plan = prediction.timeline, prediction.job.plan
    tasks = len(run.graph) * (plan.devices // plan.pp)
    if tasks > MOST_TASKS:
        raise LumosError(
            f"the {plan.devices} ranks of this job have {tasks:,} tasks, more than the {MOST_TASKS:,} that can be written;"
            " write a job with fewer devices (dp) or microbatches, or its stages alone: --perfetto"
        )
    return expand(run.graph, plan, prediction.collectives, prediction.job.cluster.node.devices)


def group_of(rank: int, work: Collective) -> tuple[int, ...]:
    """The ranks of the process group that includes `rank` and runs the collective."""
    stride = max(1, work.span // work.ranks)
    base = rank - (rank // stride) % work.ranks * stride
    return tuple(base + i * stride for i in range(work.ranks))


def expand(folded: Graph, plan: Plan, work: list[Collective | None], per_node: int) -> World:
    """Copy each stage's tasks to its ranks. work: for each folded task, its collective or None. per_node: devices of a node."""
    peers = plan.tp * plan.cp * plan.dp
    of_task = folded.rank_of_task
    starts = np.searchsorted(of_task, np.arange(plan.pp + 1))
    stage = np.repeat(np.arange(plan.pp), peers)
    sizes = np.diff(starts)[stage]
    first = offsets(sizes)
    total = int(first[-1])
    shift = np.repeat(first[:-1] - starts[stage], sizes)  # task of the world = folded task + shift
    source = np.arange(total) - shift
    processor, processors = _processors(folded, stage, source, first, per_node)
    degree = np.diff(folded.pred_offset)[source]
    at = places(folded.pred_offset[source], degree)
    pred = (folded.pred[at] + np.repeat(shift, degree)).astype(np.int32)
    rendezvous = end_to_end(_rendezvous_sets(folded, plan, work, starts, first, peers))
    graph = replace(
        folded,
        ranks=tuple(range(len(stage))),
        processors=processors,
        duration=folded.duration[source],
        processor=processor,
        kind=folded.kind[source],
        name=folded.name[source],
        event=np.full(total, -1, np.int32),
        pred_offset=offsets(degree),
        pred=pred,
        pred_kind=folded.pred_kind[at],
        lag=np.repeat(folded.lag, peers, axis=0),
        rendezvous_offset=rendezvous.offset,
        rendezvous_task=rendezvous.flat.astype(np.int32),
        collectives=_collectives(folded, work, source, np.repeat(np.arange(len(stage)), sizes), rendezvous),
    )
    return World(graph, stage, first, source)


def _processors(folded: Graph, stage: Int64, source: Int64, first: Int64, per_node: int) -> tuple[Int32, tuple[Processor, ...]]:
    by_stage: dict[int, list[int]] = {}
    for i, p in enumerate(folded.processors):
        by_stage.setdefault(p.rank, []).append(i)
    out: list[Processor] = []
    columns = []
    for rank, s in enumerate(stage.tolist()):
        number = np.full(len(folded.processors), -1, np.int32)
        for i in by_stage[s]:
            number[i] = len(out)
            out.append(replace(folded.processors[i], rank=rank, device=rank % per_node if folded.processors[i].is_stream else -1))
        columns.append(number[folded.processor[source[first[rank] : first[rank + 1]]]])
    return np.concatenate(columns), tuple(out)


def _rendezvous_sets(
    folded: Graph, plan: Plan, work: list[Collective | None], starts: Int64, first: Int64, peers: int
) -> list[NDArray[np.int64]]:
    """Sets of tasks of the world that transfer together."""
    sets: list[NDArray[np.int64]] = []
    paired = np.zeros(len(folded), bool)
    paired[folded.rendezvous_task] = True
    stage_of = folded.rank_of_task
    for s in range(len(folded.rendezvous_offset) - 1):
        members = folded.rendezvous_task[folded.rendezvous_offset[s] : folded.rendezvous_offset[s + 1]].astype(np.int64)
        stages = stage_of[members]
        sets += [first[stages * peers + k] + members - starts[stages] for k in range(peers)]
    for s in range(plan.pp):
        ranks = range(s * peers, (s + 1) * peers)
        groups: dict[tuple[int, int], list[NDArray[np.int64]]] = {}
        for task in range(int(starts[s]), int(starts[s + 1])):
            w = work[task]
            if w is None or paired[task] or w.ranks == 1:
                continue
            key = (w.ranks, w.span)
            if key not in groups:
                groups[key] = [np.array(g) for g in dict.fromkeys(group_of(r, w) for r in ranks)]
            sets += [first[g] + task - starts[s] for g in groups[key]]
    return sets


def _collectives(folded: Graph, work: list[Collective | None], source: Int64, rank: Int64, rendezvous: Lists) -> Collectives | None:
    """Facts of the collectives of all ranks. They are those of the folded tasks, except the groups, which are the ranks of the
    rendezvous, and the peers. source: the folded task of each task; rank: of each task."""
    facts = folded.collectives
    if facts is None:
        return None
    row_of = np.full(len(folded), ABSENT, np.int64)
    row_of[facts.task] = np.arange(len(facts.task))
    task = np.flatnonzero(row_of[source] >= 0)
    row = row_of[source[task]]
    names: dict[str, int] = {}
    group, peer = np.full(len(source), ABSENT, np.int32), np.full(len(source), ABSENT, np.int32)
    for members in np.split(rendezvous.flat, rendezvous.offset[1:-1]) if len(rendezvous.flat) else ():
        group[members] = names.setdefault(_listed(rank[members].tolist()), len(names))
        if len(members) == 2:
            peer[members] = rank[members[::-1]]
    for t in task[group[task] == ABSENT].tolist():  # in no rendezvous: a group of one rank
        w = work[int(source[t])]
        if w is not None:
            group[t] = names.setdefault(_listed(group_of(int(rank[t]), w)), len(names))
    sided = np.array([kind in (CollectiveKind.SEND, CollectiveKind.RECEIVE) for kind in facts.kinds], bool)[facts.kind[row]]
    return replace(
        facts,
        task=task.astype(np.int32),
        kind=facts.kind[row],
        nbytes=facts.nbytes[row],
        group=group[task],
        sequence=facts.sequence[row],
        peer=np.where(sided, peer[task], ABSENT).astype(np.int32),
        groups=tuple(names),
        size=None if facts.size is None else facts.size[row],
    )


def _listed(ranks: Iterable[int]) -> str:
    return f"[{', '.join(map(str, sorted(ranks)))}]"
