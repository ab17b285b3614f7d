"""`lumos.whatif` and `lumos.breakdown`, also with commands of scripts, of which the first made the recording.

    lumos.whatif("traces/", before="torchrun --nproc-per-node 8 train.py", after="torchrun --nproc-per-node 8 train.py --compile")
    lumos.whatif("traces/", before=["python", "train.py"], after="python train.py --batch {batch}", grid={"batch": (4, 8, 16)})

Everything else is as in `changes.facade`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias, Unpack, overload

from lumos.analyze.breakdown import StepBreakdown, breakdowns
from lumos.analyze.loop.steps import Members, members
from lumos.analyze.tables import GROUPINGS, OF_A_RECORDING, TableRow, tabulate
from lumos.changes import facade
from lumos.changes.words import ChangeWords
from lumos.choices import as_mapping, check_choice
from lumos.errors import UsageError
from lumos.graph.build import build
from lumos.result import Rows
from lumos.scripted.answer import Asked, Base
from lumos.scripted.command import RECORDED, before_missing, parse, recorded_words
from lumos.scripted.templates import ScriptCell, evaluate_scripts
from lumos.trace.read import READ_ENGINES
from lumos.trace.source import as_job
from lumos.trace.table import Job

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.changes.answer import Answer
    from lumos.changes.grid import Cell
    from lumos.graph.table import Graph
    from lumos.simulation import Timeline
    from lumos.trace.source import Source

#: A command that starts a script, as one text or as words.
_Command: TypeAlias = "str | Sequence[str] | None"


class _Words(ChangeWords, total=False):
    """What `whatif` takes beside a grid and a changed script."""

    graph: Graph | None
    repair: bool
    force: bool
    before: str | Sequence[str] | None
    ranks: int | None
    engine: str
    ray_address: str | None


@overload
def whatif(job: Source, *, grid: None = None, after: str | Sequence[str] | None = None, **words: Unpack[_Words]) -> Answer: ...
@overload
def whatif(job: Source, *, grid: Mapping[str, Sequence[object]], after: None = None, **words: Unpack[_Words]) -> Rows[Cell]: ...
@overload
def whatif(
    job: Source, *, grid: Mapping[str, Sequence[object]], after: str | Sequence[str], **words: Unpack[_Words]
) -> Rows[ScriptCell]: ...


def whatif(
    job: Source,
    *,
    graph: Graph | None = None,
    repair: bool = False,
    force: bool = False,
    grid: Mapping[str, Sequence[object]] | None = None,
    before: str | Sequence[str] | None = None,
    after: str | Sequence[str] | None = None,
    ranks: int | None = None,
    engine: str = "local",
    ray_address: str | None = None,
    **changes: Unpack[ChangeWords],
) -> Answer | Rows[Cell] | Rows[ScriptCell]:
    """The step of the job under `changes`, compared with that of the job as it is.

    graph: the job's graph from `lumos.build`, to save building it again. grid: values by setting, or by "scale:GLOB"; every combination of
    them is evaluated on top of the changes and becomes a row.

    before, after: the command that made the recording and a changed one, as one text or as words; both are run without devices, the
    structure is that of the second and the prices are the recording's. before="recorded" runs the command that the recording names. ranks:
    of `after`, where its launcher does not say. With them, the only changes are `cluster` (where `after` runs) and `base_cluster`, and grid
    has the values of the {placeholders} in `after`. engine: where those are answered, "local", or "ray": a task for each on the cluster at
    `ray_address`, whose machines need the script and what it imports at the same paths.

    Raises UsageError for an unknown setting (it names the nearest) or a wrong value, LumosError where the trace does not support the
    change, cannot give a sound answer, or is not of `before`, TraceError as `lumos.read` does.
    """
    if before is None and after is None:
        if ranks is not None:
            raise UsageError("--ranks says how many ranks --after has: give --before and --after too")
        return facade.whatif_by_settings(job, graph=graph, repair=repair, force=force, grid=grid, **changes)
    if other := [f"--{key.replace('_', '-')}" for key in changes if key not in ("cluster", "base_cluster")]:
        raise UsageError(f"{other[0]}: a changed script is the whole change; leave out {other[0]}, or write it into --after")
    check_choice(engine, READ_ENGINES, "an engine")
    asked = Asked(ranks, changes.get("cluster"), changes.get("base_cluster"), force=force)
    if after is None:
        raise UsageError("--before is the command that made the recording; give the changed one with --after")
    base = partial(matched_script, as_job(job, repair=repair), graph, before, asked)
    if grid is None:
        second = parse(after, "--after")
        return base().answer(second)
    values = {key: tuple(map(str, several)) for key, several in as_mapping(grid, "grid", "{'batch': (4, 8)}").items()}
    return Rows(evaluate_scripts(base, after, values, on_ray=engine == "ray", ray_address=ray_address))


@overload
def breakdown(
    timeline: Timeline, owners: Members | None = None, job: Job | None = None, *, by: None = None, step: str | None = None
) -> Rows[StepBreakdown]: ...
@overload
def breakdown(
    timeline: Timeline, owners: Members | None = None, job: Job | None = None, *, by: str, step: str | None = None, before: _Command = None
) -> Rows[TableRow]: ...


def breakdown(
    timeline: Timeline, owners: Members | None = None, job: Job | None = None, *, by: str | None = None, step: str | None = None,
    before: _Command = None,
) -> Rows[StepBreakdown] | Rows[TableRow]:  # fmt: skip
    """Where the time of every step goes, by rank and start, in a measured timeline or a simulated one.

    job: the recording, where the timeline does not have it; without, time in which a thread loads data counts as the host's. by: kernel,
    pattern, operator, module, stream or rank: a row for each of these over the steps that count, in place of one for each step. before: the
    command that made the recording, run without devices to name its modules (by="module"). Raises UsageError for another word or an
    unknown step, TraceError for modules where none was recorded.
    """
    owners = owners or members(timeline.graph)
    owners = owners if step is None else owners.only(step)
    job = timeline.job if job is None else job
    if before is not None and by != "module":
        raise UsageError("--before names modules, with --by module")
    if by is None:
        return Rows(row for row in breakdowns(timeline, owners, job) if step is None or row.counts)
    check_choice(by, GROUPINGS, "a grouping (by)")
    if job is None and by in OF_A_RECORDING:
        raise UsageError(f"by = {by!r} needs the recording: give it as job")
    job = job or Job(())
    origins = None if before is None else matched_script(job, timeline.graph, before).origins
    return Rows(tabulate(timeline, owners, by, job, None if origins is None else lambda task: origins.of(task).module))


def matched_script(
    job: Job, graph: Graph | None, before: str | Sequence[str] | None, asked: Asked | None = None, *, force: bool = False
) -> Base:
    """A recording matched with the script that made it."""
    if before is None:
        raise before_missing(job)
    first = parse(recorded_words(job) if before == RECORDED else before, "--before")
    return Base(job, build(job) if graph is None else graph, first, asked or Asked(force=force))
