"""The error for a graph without a schedule: which tasks wait for each other, in which collective of which group, and which
operator issued it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.errors import GraphError
from lumos.graph.table import Dependency, Graph, Kind
from lumos.trace.table import ABSENT

if TYPE_CHECKING:
    from lumos import _engine

#: At most so many tasks and ranks are named in an error.
_NAMED = 10


def no_schedule(graph: Graph, cycle: _engine.Cycle) -> GraphError:
    """The error that names the tasks on a cycle, what each waits for, and the ranks missing from a rendezvous on it."""
    tasks, kinds, missing = cycle.tasks, cycle.kinds, cycle.missing
    words = [Dependency(kind).word for kind in kinds]
    lines = [_describe(graph, tasks[0])]
    lines += [f"waits ({word}) for {_describe(graph, task)}" for word, task in zip(words[: _NAMED - 1], tasks[1:_NAMED], strict=False)]
    if len(tasks) > _NAMED:
        lines.append(f"… and {len(tasks) - _NAMED} more, the last of which")
    lines.append(f"waits ({words[-1]}) for {'itself' if len(tasks) == 1 else f'task {tasks[0]}, the first'}")
    met = [task for task, kind in zip(tasks, kinds, strict=True) if kind == Dependency.RENDEZVOUS]
    if missing and met:
        lines.append(f"the rendezvous of task {met[0]} lacks {_ranks({_rank(graph, t) for t in missing})}")
    ranks = {_rank(graph, task) for task in met}
    if len(met) > 1 and len(ranks) > 1:
        lines.append(f"{_ranks(ranks)} reach the same collectives in different orders")
    if graph.ignored:
        left_out = " and ".join(sorted(kind.name.lower().replace("_", "-") for kind in graph.ignored))
        lines.append(f"--ignore left out {left_out}, which may be what ordered this job's tasks: replay without --ignore")
    else:
        lines.append("drop a dependency kind of the cycle (--ignore) to see which rule is wrong")
    error = GraphError("\n  ".join((f"the graph has no schedule: {len(tasks)} tasks wait for each other", *lines)))
    error.tasks = tuple(tasks)
    return error


def _describe(graph: Graph, task: int) -> str:
    """A task's processor, number and name; for a collective also its bytes, group, sequence number and issuing operator."""
    processor = graph.processors[graph.processor[task]]
    name = graph.names[graph.name[task]]
    where = f"rank {processor.rank} {processor.name} task {task} {name.partition('(')[0] or name}"
    return ", ".join(part for part in (where, _collective(graph, task), _issuer(graph, task)) if part)


def _ranks(ranks: set[int]) -> str:
    named = ", ".join(map(str, sorted(ranks)[:_NAMED]))
    return f"rank{'' if len(ranks) == 1 else 's'} {named}" + (f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else "")


def _rank(graph: Graph, task: int) -> int:
    rank: int = graph.processors[graph.processor[task]].rank
    return rank


def _collective(graph: Graph, task: int) -> str:
    """The facts of a collective that are known; empty for any other task."""
    facts = graph.collectives
    if facts is None or task not in facts.task:
        return ""
    i = int(np.flatnonzero(facts.task == task)[0])
    parts = [facts.kinds[facts.kind[i]]]
    if facts.nbytes[i] != ABSENT:
        parts[0] += f" of {facts.nbytes[i]:,} bytes"
    if facts.peer[i] != ABSENT:
        parts.append(f"peer {facts.peer[i]}")
    if facts.group[i] != ABSENT:
        parts.append(f"group {facts.groups[facts.group[i]]}")
    if facts.sequence[i] != ABSENT:
        parts.append(f"sequence {facts.sequence[i]}")
    return ", ".join(parts)


def _issuer(graph: Graph, task: int) -> str:
    """The operator behind which a collective on a stream was launched: the last one before the launch on the same thread."""
    if graph.kind[task] != Kind.COLLECTIVE:
        return ""
    edges = slice(int(graph.pred_offset[task]), int(graph.pred_offset[task + 1]))
    calls = graph.pred[edges][graph.pred_kind[edges] == Dependency.LAUNCH]
    if not len(calls):
        return ""
    call = int(calls[0])
    before = np.flatnonzero((graph.processor[:call] == graph.processor[call]) & (graph.kind[:call] == Kind.OPERATOR))
    return f"launched behind {graph.names[graph.name[before[-1]]]!r}" if len(before) else ""
