"""`lumos.inspect`, `lumos.critical_path` and `lumos.compare`, with the options of the command line as arguments."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from lumos.analyze.compare import Comparison
from lumos.analyze.compare import compare_timelines as compare_sides
from lumos.analyze.contents import Contents, contents
from lumos.analyze.critical_path import CriticalPath, critical_paths
from lumos.analyze.loop.steps import Members, step_names
from lumos.choices import as_number, check_step
from lumos.errors import UsageError
from lumos.graph.build import build
from lumos.result import Rows
from lumos.trace.source import Source, as_job

if TYPE_CHECKING:
    from lumos.simulation import Frozen, Timeline


def inspect(job: Source, *, repair: bool = False) -> Rows[Contents]:
    """What each trace of a job contains, and which features of a recording it lacks. Raises TraceError as `lumos.read` does."""
    return Rows(contents(trace) for trace in as_job(job, repair=repair).traces)


def critical_path(
    timeline: Timeline, owners: Members | None = None, *, frozen: Frozen | None = None, step: str | None = None
) -> Rows[CriticalPath]:
    """The chain of tasks that sets the time of each step, over all ranks. Raises UsageError for an unknown step, GraphError where the
    graph's dependencies contradict each other."""
    paths = critical_paths(timeline, owners, frozen=frozen)
    if step is None:
        return paths
    name = check_step(step, [path.name for path in paths])
    return Rows(path for path in paths if path.name == name)


def compare(
    before: Source,
    after: Source | None = None,
    *,
    step: str | tuple[str, str] | None = None,
    fail_above: float | None = None,
    repair: bool = False,
) -> Comparison:
    """What changed from one job to another, or from one step of a job to another of its steps.

    before, after: what `lumos.read` takes or returns; without `after`, two steps of `before` are compared. step: compare only this
    step of both jobs or, if there are two, the first of `before` with the second of `after`. fail_above: the share by which
    `after` may be slower (0.03); the answer's `regression` says whether it is, beyond the noise of the recordings. Raises UsageError for an
    unknown step or without two jobs or steps to compare, GraphError where a job has no step, or too few to tell a slowdown from noise.
    """
    steps = (step, step) if isinstance(step, str) else step
    if after is None and (steps is None or isinstance(step, str)):
        raise UsageError("compare takes two jobs (A B), or one job and two of its steps (A --step NAME --step NAME)")
    if fail_above is not None and not 0 <= as_number(fail_above, "fail_above") < inf:
        raise UsageError(f"fail_above = {fail_above!r} is no share; give one from 0 on, such as 0.03 for 3 %")
    jobs = [as_job(job, repair=repair) for job in (before, after) if job is not None]
    graphs = [build(job) for job in jobs]
    sides = (jobs[0], graphs[0]), (jobs[-1], graphs[-1])
    names = [check_step(word, step_names(graph)) for word, (_, graph) in zip(steps or (), sides, strict=False)]
    return compare_sides(*sides, *names, fail_above=fail_above)
