"""Reading of files and folders into a `Job`. The content of a file, never its name, decides which reader reads it."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lumos.diagnostics import Diagnostic
from lumos.distribute import connected
from lumos.errors import TraceError, UsageError
from lumos.extras import install
from lumos.trace import kineto, pipeline_json, straggler_parquet
from lumos.trace.blocks import ZSTD_MAGIC, Progress, head
from lumos.trace.chakra import et, json_form, text_workload
from lumos.trace.chakra.companions import companion_of
from lumos.trace.collectives import process_groups
from lumos.trace.operations import is_operations, recorded_plan
from lumos.trace.reader import TO_CONVERT, NotATraceError, Reader, ReadFile
from lumos.trace.table import Job, Trace
from lumos.trace.windows import one_window, unmarked
from lumos.units import count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


def _is_execution_trace(first: bytes) -> bool:
    text = first.removeprefix(b"\xef\xbb\xbf").lstrip()
    return text.startswith(b"{") and all(re.search(key, text) for key in (rb'"schema"\s*:\s*"', rb'"nodes"\s*:\s*\['))


EXECUTION_TRACE = Reader(
    "a PyTorch execution trace",
    _is_execution_trace,
    None,
    "its clock and durations are no timeline; give the profiler's (Kineto) file of the same run, or a folder that holds both",
)


def _advise_zstd(path: Path, *, progress: Callable[[int], None] | None = None) -> Trace:  # noqa: ARG001 - the arguments of a reader
    """Refuse a file that only zstandard, which is not installed, could unpack."""
    raise NotATraceError(f"{path}: compressed with zstd; to read it as it is: {install('zstd')}; or unpack it (zstd -d FILE)")


#: The most threads and streams of one file. A process has some dozens, a file of many ranks some hundreds; to compare each with every
#: other takes seconds for these and hours for a hundred times as many.
LANES_READ = 4096

#: Where files are read.
READ_ENGINES = ("local", "ray")

#: Tried in this order; the first that takes a file reads it. Kineto comes last because it has no signature.
READERS: tuple[Reader, ...] = (
    *TO_CONVERT,
    Reader("compressed with zstd", lambda first: first.startswith(ZSTD_MAGIC), _advise_zstd),
    Reader("an operation table (Parquet)", straggler_parquet.sniff, straggler_parquet.read, is_original=True),
    Reader("the sizes of a job (meta.yaml)", straggler_parquet.sniff_meta, None, "give the trace.parquet beside it", is_companion=True),
    Reader("pipeline passes of one rank", pipeline_json.sniff, pipeline_json.read),
    Reader("the sizes of a job (config.json)", pipeline_json.sniff_config, None, "give the pp_rank_N.json beside it", is_companion=True),
    EXECUTION_TRACE,
    Reader("Chakra", et.sniff, et.read),
    Reader("Chakra as JSON", json_form.sniff, json_form.read),
    Reader("a text workload of ASTRA-sim 1.0", text_workload.sniff, text_workload.read),
    Reader("what a Chakra set is run with", companion_of, None, "give the set's .et files, or their folder", is_companion=True),
    Reader("Kineto", kineto.sniff, kineto.read, repair=partial(kineto.read, repair=True)),
)


def read(
    *paths: str | os.PathLike[str],
    repair: bool = False,
    progress: Progress | None = None,
    engine: str = "local",
    ray_address: str | None = None,
) -> Job:
    """Read a job: one file, several files, or a folder with one file per rank. Where the folders hold no trace, their sub-folders are
    read. Of several windows of one run, the newest that all ranks recorded in full is the job, with a diagnostic.

    `repair` also reads traces that are not quite JSON or were cut off, with a diagnostic. `progress(done, total)` is called
    with bytes of the files. engine: "local" (threads), or "ray": a task for every file on the Ray cluster at `ray_address`, whose
    machines must have the files under the same paths. In a folder, execution traces and files that no reader recognises are left
    out, each with a diagnostic. Raises TraceError: no file, an unreadable or malformed file, two files of one rank that are no windows
    of one run.
    """
    if engine not in READ_ENGINES:
        raise UsageError(f"engine {engine!r} is not known; valid: {', '.join(READ_ENGINES)}")
    if not paths:
        raise TraceError("no trace given; name a file, several files, or a folder with one file per rank")
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise UsageError(f"{path!r} is no path; give each file or folder as an argument of its own: read(*paths)")
    if any(not os.fspath(path) for path in paths):
        raise TraceError("an empty path (a variable of the shell that is not set?); name a file or a folder")
    diagnostics: list[Diagnostic] = []
    traces: list[Trace] = []
    for folders in ([Path(path) for path in paths], _inner_folders(paths)):
        if traces or not folders:
            break
        files = list(_choose(folders, diagnostics))
        contents = _on_cluster(files, repair, progress, ray_address) if engine == "ray" else _in_threads(files, repair, progress)
        for content in contents:
            if isinstance(content, NotATraceError):
                diagnostics.append(Diagnostic("file-left-out", f"{content}"))
            else:
                traces += content
    if not traces:
        raise TraceError(f"{', '.join(map(str, paths))}: holds no trace ({_instead(paths, diagnostics)}); give the profiler's files")
    _check_alike(traces)
    _check_lanes(traces)
    traces, left_out = one_window(traces)
    lost = [finding for trace in traces for finding in unmarked(trace)]
    return Job(tuple(traces), process_groups(traces), (*diagnostics, *left_out, *lost))


def _instead(paths: Sequence[str | os.PathLike[str]], diagnostics: Sequence[Diagnostic]) -> str:
    """What the given folders hold in place of a trace."""
    if diagnostics:
        return "; ".join(d.message for d in diagnostics[:3])
    folders = _inner_folders(paths)
    if not folders:
        return "the folder is empty"
    named = ", ".join(folder.name for folder in folders[:3]) + (", …" if len(folders) > 3 else "")
    return f"only {count(len(folders), 'folder')}, {named}, without a file; name the folders further down"


def _inner_folders(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The folders in the given folders, except hidden ones."""
    outer = [Path(path) for path in paths if Path(path).is_dir()]
    return [inner for path in outer for inner in sorted(path.iterdir()) if inner.is_dir() and not inner.name.startswith(".")]


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    size: int
    read: ReadFile
    repair: ReadFile | None
    named: bool  # given by the user, not found in a folder, so that it must be a trace


def _choose(paths: list[Path], diagnostics: list[Diagnostic]) -> Iterator[_File]:
    """The files to read, with their readers. The other files of a folder are reported in `diagnostics`."""
    for path in paths:
        if not path.is_dir():
            reader = _reader_of(path)
            if reader is None and path.stat().st_size == 0:
                raise TraceError(f"{path}: the file is empty; record it again")
            if reader is None:
                raise TraceError(f"{path}: not a profiler trace (no reader knows its content); give the profiler's file")
            if reader.is_companion and len(paths) > 1:
                continue
            if reader.read is None:
                raise TraceError(f"{path}: {reader.name}; {reader.remedy}")
            yield _File(path, path.stat().st_size, reader.read, reader.repair, named=True)
            continue
        listed = [(file, _reader_of(file)) for file in _listed(path)]
        source = next((file for file, reader in listed if reader is not None and reader.is_original), None)
        for file, reader in listed:
            if reader is not None and reader.is_companion:
                continue
            if source is not None and not (reader is not None and reader.is_original):
                diagnostics.append(Diagnostic("file-left-out", f"{file}: set aside; {source.name} beside it is what was recorded"))
            elif reader is None:
                diagnostics.append(Diagnostic("file-left-out", f"{file}: no reader knows its content; left out"))
            elif reader.read is None:
                code = "execution-trace-set-aside" if reader is EXECUTION_TRACE else "file-left-out"
                remedy = f"; {reader.remedy}" if reader in TO_CONVERT else ""
                diagnostics.append(Diagnostic(code, f"{file}: {reader.name}; set aside{remedy}"))
            else:
                yield _File(file, file.stat().st_size, reader.read, reader.repair, named=False)


def _check_alike(traces: list[Trace]) -> None:
    """Raise TraceError unless all traces are profiler traces, or all are operation-level recordings of one format and plan."""
    first = traces[0]
    for trace in traces[1:]:
        if is_operations(trace) != is_operations(first):
            one, other = (first, trace) if is_operations(first) else (trace, first)
            raise TraceError(f"{one.path} lists operations and {other.path} is a profiler trace: one job cannot mix them; give one kind")
        if is_operations(trace) and recorded_plan(trace) != recorded_plan(first):
            raise TraceError(
                f"{first.path} and {trace.path} are of different jobs ({recorded_plan(first)}, {recorded_plan(trace)});"
                " give the files of one job"
            )


def _check_lanes(traces: Iterable[Trace]) -> None:
    """Raise TraceError where a file has more threads and streams than any job."""
    for trace in traces:
        if len(trace.lanes) > LANES_READ:
            raise TraceError(
                f"{trace.path}: rows on {len(trace.lanes):,} threads and streams, more than the {LANES_READ:,} that are compared with each"
                " other; record fewer steps, or check what numbers the file's tid"
            )


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
    except OSError as error:
        raise TraceError(f"{folder}: cannot be listed ({error.strerror or error}); check its permissions") from error


def readable(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Path]:
    """The files that `paths` name, and in folders those that a reader recognises, also where it sets them aside; where there are none,
    those in the folders' own folders. Missing ones are left out. TraceError where a folder cannot be listed."""
    for path in map(Path, paths):
        if path.is_dir():
            own = [file for file in _listed(path) if _reader_of(file) is not None]
            yield from own or (file for inner in _inner_folders([path]) for file in _listed(inner) if _reader_of(file) is not None)
        elif path.exists():
            yield path


def _reader_of(path: Path) -> Reader | None:
    if path.is_file() and not path.stat().st_size:  # so a system's own files say of themselves, and reading one may wait for ever
        return None
    first = head(path)
    return next((reader for reader in READERS if reader.sniff(first)), None)


#: The traces of one file, or why it is no trace.
_Contents = tuple[Trace, ...] | NotATraceError


def _read_one(repair: bool, file: _File, progress: Callable[[int], None] | None = None) -> _Contents:
    """Read one file. A file that is no trace is an error only where the user named it."""
    read_file = file.repair if repair and file.repair is not None else file.read
    try:
        contents = read_file(file.path, progress=progress)
    except NotATraceError as error:
        if file.named:
            raise
        return error
    return contents if isinstance(contents, tuple) else (contents,)


def _in_threads(files: list[_File], repair: bool, progress: Progress | None) -> Iterator[_Contents]:
    """The contents of all files, in their order. Files are read in parallel, because the scanner releases the GIL."""
    report = _shared(progress, sum(file.size for file in files))
    with ThreadPoolExecutor(min(len(files), os.cpu_count() or 1) or 1) as threads:
        yield from threads.map(lambda file: _read_one(repair, file, partial(report, file.path) if progress else None), files)


def _on_cluster(files: list[_File], repair: bool, progress: Progress | None, address: str | None) -> Iterator[_Contents]:
    """The contents of all files, in their order, read by the workers of a Ray cluster. What a lost worker was reading is read again."""
    report = _shared(progress, sum(file.size for file in files))
    absolute = [replace(file, path=file.path.absolute()) for file in files]
    with connected(address) as workers:
        for file, contents in zip(files, workers.map(_read_one, workers.put(repair), absolute), strict=True):
            report(file.path, file.size)
            yield contents if isinstance(contents, NotATraceError) else tuple(replace(trace, path=str(file.path)) for trace in contents)


def _shared(progress: Progress | None, total: int) -> Callable[[Path, int], None]:
    """A function that reports the bytes read of one of several files that are read at once, as bytes of all of them."""
    read_of: dict[Path, int] = {}

    def report(path: Path, done: int) -> None:
        read_of[path] = done
        if progress is not None:
            progress(sum(list(read_of.values())), total)

    return report
