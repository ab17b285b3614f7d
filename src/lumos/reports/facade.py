"""`lumos.report`: one HTML file that shows where a job's time goes, as `lumos report` writes it.

lumos.report("traces/", "out.html", scale={"*nccl*": 0.5})
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from lumos.changes.facade import changes_of
from lumos.changes.words import ChangeWords  # noqa: TC001 - help shows its words
from lumos.choices import check_step
from lumos.output_files import check_places
from lumos.reports.page.document import ReportedJob, document
from lumos.reports.page.html import write_report
from lumos.result import Shown
from lumos.trace.source import Source, as_job, keep_inputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.analyze.trust import Trust
    from lumos.changes.changes import Changes
    from lumos.vocabulary import Basis


@dataclass(frozen=True, slots=True, repr=False)
class Written(Shown):
    """A report that was written. headline: its first sentence. step: the step whose timeline it shows. step_time_ns, latency_ns, basis: of
    the job's step as measured. trust: how far answers about the job can be trusted."""

    file: str
    size_bytes: int
    headline: str
    step: str
    step_time_ns: int
    latency_ns: int
    basis: Basis
    trust: Trust


def report(
    job: Source,
    output: str | os.PathLike[str],
    *,
    step: str | None = None,
    repair: bool = False,
    force: bool = False,
    **changes: Unpack[ChangeWords],
) -> Written:
    """Write one HTML file that shows where the job's time goes, and opens offline.

    step: the step whose timeline is shown, by its name or the number after its #; by default the one whose time is nearest to the mean.
    With changes, as for `lumos.whatif`, the changed job is shown next to the recorded one. Raises UsageError for an unknown step or change,
    LumosError where the file cannot be written.
    """
    keep_inputs(job, output)
    check_places(output)
    recording = ReportedJob.of(as_job(job, repair=repair), force=force)
    return write(recording, output, (f"lumos.report(…, {os.fspath(output)!r})",), step, changes_of(changes))


def write(recording: ReportedJob, output: str | os.PathLike[str], command: Sequence[str], step: str | None, changes: Changes) -> Written:
    """Write the report of a recording. command: the command that the report says it was made with."""
    path = os.fspath(output)
    content = document(
        recording,
        command=command,
        step=None if step is None else check_step(step, recording.steps),
        changes=changes if changes.structural or changes.durations.described() else None,
    )
    files = map(Path, (path, *(trace.path for trace in recording.job.traces)))
    folders = {str(file.parent) for file in files if file.is_absolute() and file.parent.name}
    write_report(path, portable(content, sorted(folders, key=len, reverse=True)))
    time = recording.times.headline
    size = Path(path).stat().st_size
    return Written(path, size, content["headline"], content["step"], time.step_time_ns, time.latency_ns, time.basis, recording.trust)


def portable(value: Any, folders: Sequence[str]) -> Any:
    """A value of a document in which only their own names are left of absolute folders: a report is sent to others. folders: the longest
    first."""
    if isinstance(value, str):
        for folder in folders:
            value = value.replace(folder, Path(folder).name)
        return value
    if isinstance(value, Mapping):
        return value if "gzip" in value else {key: portable(inner, folders) for key, inner in value.items()}
    return [portable(inner, folders) for inner in value] if isinstance(value, list | tuple) else value
