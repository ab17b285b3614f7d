"""What a user names as a job: its files, or the `Job` that they were read to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from lumos.errors import UsageError
from lumos.output_files import check_outputs
from lumos.trace.read import read, readable
from lumos.trace.table import Job

#: A trace file, a folder with one file per rank, several of them, or a job that has been read.
Source: TypeAlias = Job | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def as_job(source: Source, *, repair: bool = False) -> Job:
    """The job itself, or the one that the files hold. repair: as for `read`. Raises TraceError as `read` does."""
    return source if isinstance(source, Job) else read(*paths_of(source), repair=repair)


def paths_of(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    """One path or several, as text. Raises UsageError where it is neither."""
    paths = (source,) if isinstance(source, str | os.PathLike) else source
    if not isinstance(paths, Iterable) or not all(isinstance(path, str | os.PathLike) for path in paths):
        raise UsageError(f"{source!r} is no job; give a path, several, or a job from lumos.read")
    return tuple(os.fspath(path) for path in paths)


def keep_inputs(source: Source, *outputs: str | os.PathLike[str] | None) -> None:
    """Raise UsageError where an output would take the place of a file of the job, or be written among its files.

    None stands for an output that was not asked for.
    """
    check_outputs(outputs, (t.path for t in source.traces) if isinstance(source, Job) else readable(paths_of(source)))
