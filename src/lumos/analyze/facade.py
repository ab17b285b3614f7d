"""`lumos.inspect`, `lumos.critical_path` and `lumos.compare`, with the words of the command line."""

from __future__ import annotations

from lumos.analyze.compare import Comparison
from lumos.analyze.compare import compare as compare_sides
from lumos.analyze.contents import Contents, contents
from lumos.analyze.critical_path import CriticalPath, critical_paths
from lumos.analyze.steps import Members, step_names
from lumos.choices import check_step
from lumos.errors import UsageError
from lumos.graph.build import build
from lumos.result import Rows
from lumos.simulate import Frozen, Timeline
from lumos.trace.source import Source, as_job


def inspect(job: Source, *, repair: bool = False) -> Rows[Contents]:
    """What each trace of a job holds, and what it lacks that a replay would use. TraceError as for `lumos.read`."""
    return Rows(contents(trace) for trace in as_job(job, repair=repair).traces)


def critical_path(
    timeline: Timeline, owners: Members | None = None, *, frozen: Frozen | None = None, step: str | None = None
) -> Rows[CriticalPath]:
    """The chain of tasks that sets each step, over all ranks; of one step alone where it is named, by its name or the number behind its #.

    owners, frozen: what `members` and `freeze` give for the timeline's graph, where they are known already. Raises UsageError for an
    unknown step, GraphError where the graph has no schedule.
    """
    found = critical_paths(timeline, owners, frozen=frozen)
    if step is None:
        return found
    name = check_step(step, [path.name for path in found])
    return Rows(path for path in found if path.name == name)


def compare(before: Source, after: Source | None = None, *, step: str | tuple[str, str] | None = None, repair: bool = False) -> Comparison:
    """What changed from one job to another, or from one step of a job to another of its steps.

    before, after: what `lumos.read` takes or gave; without `after`, two steps of `before` are compared. step: compare this step alone;
    of two, the first of `before` and the second of `after`. Raises UsageError for an unknown step or where nothing is left to compare
    with, GraphError where a job has no step at all.
    """
    steps = (step, step) if isinstance(step, str) else step
    if after is None and (steps is None or isinstance(step, str)):
        raise UsageError("compare takes two jobs (A B), or one job and two of its steps (A --step NAME --step NAME)")
    jobs = [as_job(job, repair=repair) for job in (before, after) if job is not None]
    graphs = [build(job) for job in jobs]
    sides = (jobs[0], graphs[0]), (jobs[-1], graphs[-1])
    names = [check_step(word, step_names(graph)) for word, (_, graph) in zip(steps or (), sides, strict=False)]
    return compare_sides(*sides, *names)
