"""All ranks of a job of which one was recorded: each runs what that one ran, and its collectives meet.

Of each collective the recording names the members, or says how many there are. A communicator whose members are equally far apart is
one of a kind that covers all ranks: communicators of tensor, data or expert parallelism cut the ranks of a job into as many parts. One of
which nothing is known is all ranks. Messages keep the time that they took, because the next stage of a pipeline runs another program,
which one rank does not show.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.diagnostics import Diagnostic
from lumos.errors import UsageError
from lumos.graph.concatenate import concatenate
from lumos.graph.lists import end_to_end
from lumos.trace.collectives import listed_numbers
from lumos.trace.table import ABSENT
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.graph.table import Collectives, Graph
    from lumos.trace.table import Job

#: The most nodes of a set that is made: to make and simulate them takes minutes and some GB.
MOST_NODES = 25_000_000
#: What a copied rank rests on: that all run the same, and that communicators which are not named are neighbours, or all ranks.
COPIED, ASSUMED = "ranks-copied", "group-assumed"
#: What runs between two ranks.
_MESSAGES = (CollectiveKind.SEND, CollectiveKind.RECEIVE, CollectiveKind.SEND_RECEIVE)


def with_every_rank(graph: Graph, job: Job) -> Graph:
    """The graph of all ranks of a job, which is given where more than one was recorded or no other is known of. UsageError where it would
    have more than MOST_NODES nodes."""
    facts = graph.collectives
    world = 1 if facts is None else _world(job, facts)
    if facts is None or len(graph.ranks) > 1 or world < 2:
        return graph
    if len(graph) * world > MOST_NODES:
        raise UsageError(
            f"the {world} ranks of the job would have {len(graph) * world:,} nodes, more than the {MOST_NODES:,} that are sampled;"
            " record fewer steps"
        )
    parts = [_parts(facts, row, graph.ranks[0], world) for row in range(len(facts.task))]
    meetings = [
        [task + rank * len(graph) for rank in members]
        for task, of_task in zip(facts.task.tolist(), parts, strict=True)
        for members in of_task
    ]
    met = end_to_end(meetings)
    assumed = sum(bool(of_task) and not _members(facts, row) for row, of_task in enumerate(parts))
    findings = [Diagnostic(COPIED, f"one of {world} ranks was recorded: the others are taken to run the same")]
    if assumed:
        text = f"{assumed} of {len(facts.task)} communications do not name their members: taken as neighbours, or as all ranks"
        findings.append(Diagnostic(ASSUMED, text))
    copied = concatenate([_as_rank(graph, rank) for rank in range(world)])
    return replace(
        copied,
        rendezvous_offset=met.offset,
        rendezvous_task=met.flat.astype(np.int32),
        diagnostics=(*graph.diagnostics, *findings),
        evidence=graph.evidence,
    )


def _world(job: Job, facts: Collectives) -> int:
    """How many ranks the job had, as far as its files say; 1 where they say nothing."""
    said = [trace.world_size or 1 for trace in job.traces]
    listed = [max(_members(facts, row), default=0) + 1 for row in range(len(facts.task))]
    return max(*said, *listed, 1 if facts.size is None else int(facts.size.max(initial=1)))


def _members(facts: Collectives, row: int) -> tuple[int, ...]:
    """The ranks that take part, as the recording lists them; () where it does not."""
    name = facts.groups[facts.group[row]] if facts.group[row] >= 0 else ""
    return tuple(sorted(listed_numbers("[" + name.rpartition("[")[2])))


def _parts(facts: Collectives, row: int, own: int, world: int) -> Sequence[Sequence[int]]:
    """The communicators into which all ranks are cut for a collective of the recorded rank `own`; none for a message, and where its
    members are not equally far apart."""
    if facts.kinds[facts.kind[row]] in _MESSAGES:
        return ()
    members = _members(facts, row)
    size = len(members) or (ABSENT if facts.size is None else int(facts.size[row]))
    if size in (ABSENT, world):
        return (range(world),)
    apart = members[1] - members[0] if len(members) > 1 else 1
    if size < 2 or world % (apart * size):
        return ()
    parts = [range(first, first + apart * size, apart) for first in range(world) if first // apart % size == 0]
    return parts if not members or members in (tuple(part) for part in parts if own in part) else ()


def _as_rank(graph: Graph, rank: int) -> Graph:
    """The graph of one rank as that of another one."""
    return replace(
        graph,
        ranks=(rank,),
        processors=tuple(replace(processor, rank=rank) for processor in graph.processors),
        steps=tuple(replace(step, rank=rank) for step in graph.steps),
    )
