"""What a user names as a job: its files, the `Job` that they were read to, its graph, or a run of it."""

import os
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from lumos.errors import UsageError
from lumos.output_files import check_outputs
from lumos.trace.read import read, readable
from lumos.trace.table import Job


@runtime_checkable
class OfJob(Protocol):
    """What is of a job, as its graph and its runs are; None where that was changed or predicted, and so is of no recording."""

    @property
    def job(self) -> Job | None: ...


Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
#: A trace file, a folder with one file per rank, several of them, a job that has been read, its graph, or a run of it.
Source: TypeAlias = Job | OfJob | Paths


def as_job(source: Source, *, repair: bool = False) -> Job:
    """The job itself, or the one that the files hold. repair: as for `read`. Raises TraceError as `read` does, UsageError for the graph or
    the run of a job that was changed or predicted."""
    if isinstance(source, Job):
        return source
    if not isinstance(source, OfJob):
        return read(*paths_of(source), repair=repair)
    if (job := source.job) is None:
        raise UsageError(
            f"this {type(source).__name__} is of a job that was changed or predicted, and so of no recording; write the answer from which"
            " it comes with lumos.export(answer, kineto=FOLDER), and give the folder"
        )
    return job


def paths_of(source: Source) -> tuple[str, ...]:
    """One path or several, as text; of a job those of its files. Raises UsageError where it is neither."""
    if isinstance(source, Job | OfJob):
        return tuple(trace.path for trace in as_job(source).traces)
    paths = (source,) if isinstance(source, str | os.PathLike) else source
    if not isinstance(paths, Iterable) or not all(isinstance(path, str | os.PathLike) for path in paths):
        raise UsageError(f"{source!r} is no job; give a path, several, or a job from lumos.read")
    return tuple(os.fspath(path) for path in paths)


def keep_inputs(source: Source, *outputs: str | os.PathLike[str] | None) -> None:
    """Raise UsageError where an output would take the place of a file of the job, or be written among its files.

    None stands for an output that was not asked for.
    """
    check_outputs(outputs, readable(paths_of(source)))
