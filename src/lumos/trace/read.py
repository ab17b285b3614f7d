"""Files and folders to a `Job`. Which reader takes a file is decided by its content, never by its name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

from lumos.diagnostics import Diagnostic
from lumos.distribute import Workers
from lumos.errors import TraceError, UsageError
from lumos.trace import chakra_et, chakra_json, kineto, pipeline_json, straggler_parquet
from lumos.trace.blocks import Progress, head
from lumos.trace.collectives import process_groups
from lumos.trace.operations import is_operations, plan_of
from lumos.trace.reader import NotATraceError, Reader, ReadFile
from lumos.trace.table import Job, Trace


def _is_execution_trace(first: bytes) -> bool:
    text = first.removeprefix(b"\xef\xbb\xbf").lstrip()
    return text.startswith(b"{") and all(re.search(key, text) for key in (rb'"schema"\s*:\s*"', rb'"nodes"\s*:\s*\['))


EXECUTION_TRACE = Reader(
    "a PyTorch execution trace",
    _is_execution_trace,
    None,
    "its clock and durations are no timeline; give the profiler's (Kineto) file of the same run, or a folder that holds both",
)

#: Where files are read.
ENGINES = ("local", "ray")

#: Tried in this order; the first that takes a file reads it. Kineto comes last because it has no signature.
READERS: tuple[Reader, ...] = (
    Reader("an operation table (Parquet)", straggler_parquet.sniff, straggler_parquet.read, wins=True),
    Reader("the sizes of a job (meta.yaml)", straggler_parquet.sniff_meta, None, "give the trace.parquet beside it", beside=True),
    Reader("pipeline passes of one rank", pipeline_json.sniff, pipeline_json.read),
    Reader("the sizes of a job (config.json)", pipeline_json.sniff_config, None, "give the pp_rank_N.json beside it", beside=True),
    EXECUTION_TRACE,
    Reader("Chakra", chakra_et.sniff, chakra_et.read),
    Reader("Chakra as JSON", chakra_json.sniff, chakra_json.read),
    Reader("what a Chakra set is run with", chakra_et.is_companion, None, "give the set's .et files, or their folder", beside=True),
    Reader("Kineto", kineto.sniff, kineto.read, mend=partial(kineto.read, repair=True)),
)


def read(
    *paths: str | os.PathLike[str],
    repair: bool = False,
    progress: Progress | None = None,
    engine: str = "local",
    ray_address: str | None = None,
) -> Job:
    """Read a job: one file, several files, or a folder with one file per rank.

    `repair` also reads traces that are not quite JSON or were cut off, with a diagnostic. `progress(done, total)` is called
    with bytes of the files. engine: "local" (threads), or "ray": a task for every file on the Ray cluster at `ray_address`, whose
    machines must see the files under the same paths. In a folder, execution traces are set aside and files that no reader
    takes are left out, each with a diagnostic. Raises TraceError: no file, an unreadable or malformed file, two files of one rank.
    """
    if engine not in ENGINES:
        raise UsageError(f"engine {engine!r} is not known; valid: {', '.join(ENGINES)}")
    if not paths:
        raise TraceError("no trace given; name a file, several files, or a folder with one file per rank")
    diagnostics: list[Diagnostic] = []
    files = list(_choose([Path(path) for path in paths], diagnostics))
    found = _on_cluster(files, repair, progress, ray_address) if engine == "ray" else _in_threads(files, repair, progress)
    traces = _sorted_out(found, diagnostics)
    if not traces:
        left_out = "; ".join(d.message for d in diagnostics[:3]) or "the folder is empty"
        raise TraceError(f"{', '.join(map(str, paths))}: holds no trace ({left_out}); give the profiler's files")
    _check_alike(traces)
    traces.sort(key=lambda trace: trace.rank)
    for one, other in pairwise(traces):
        if one.rank == other.rank:
            raise TraceError(_both_of_one_rank(one, other))
    return Job(tuple(traces), process_groups(traces), tuple(diagnostics))


def _both_of_one_rank(one: Trace, other: Trace) -> str:
    """Why two files are refused, and what helps: a file's name does not where its distributedInfo states the rank."""
    sources = (one.rank_source, other.rank_source)
    place = f"{one.path} and {other.path} are both of rank {one.rank} (from: {', '.join(sources)}); name the one to read, or "
    if "distributedInfo" in sources:
        return place + "correct the rank in distributedInfo of the file that is of another (it wins over the file's name)"
    return place + "give each rank's number in its file name (rank0.json)"


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    size: int
    read: ReadFile
    mend: ReadFile | None
    named: bool  # by the user, not found in a folder: then it must be a trace


def _choose(paths: list[Path], diagnostics: list[Diagnostic]) -> Iterator[_File]:
    """The files to read and their readers; what a folder holds besides goes to the diagnostics."""
    for path in paths:
        if not path.is_dir():
            reader = _reader_of(path)
            if reader is None and path.stat().st_size == 0:
                raise TraceError(f"{path}: the file is empty; record it again")
            if reader is None:
                raise TraceError(f"{path}: not a profiler trace (no reader knows its content); give the profiler's file")
            if reader.beside and len(paths) > 1:
                continue
            if reader.read is None:
                raise TraceError(f"{path}: {reader.name}; {reader.remedy}")
            yield _File(path, path.stat().st_size, reader.read, reader.mend, named=True)
            continue
        listed = [(file, _reader_of(file)) for file in _listed(path)]
        source = next((file for file, reader in listed if reader is not None and reader.wins), None)
        for file, reader in listed:
            if reader is not None and reader.beside:
                continue
            if source is not None and not (reader is not None and reader.wins):
                diagnostics.append(Diagnostic("file-left-out", f"{file}: set aside; {source.name} beside it is what was recorded"))
            elif reader is None:
                diagnostics.append(Diagnostic("file-left-out", f"{file}: no reader knows its content; left out"))
            elif reader.read is None:
                code = "execution-trace-set-aside" if reader is EXECUTION_TRACE else "file-left-out"
                diagnostics.append(Diagnostic(code, f"{file}: {reader.name}; set aside"))
            else:
                yield _File(file, file.stat().st_size, reader.read, reader.mend, named=False)


def _check_alike(traces: list[Trace]) -> None:
    """One job is recorded in one way: profiler traces, or operations of one format and plan."""
    first = traces[0]
    for trace in traces[1:]:
        if is_operations(trace) != is_operations(first):
            one, other = (first, trace) if is_operations(first) else (trace, first)
            raise TraceError(f"{one.path} lists operations and {other.path} is a profiler trace: one job cannot mix them; give one kind")
        if is_operations(trace) and plan_of(trace) != plan_of(first):
            raise TraceError(
                f"{first.path} and {trace.path} are of different jobs ({plan_of(first)}, {plan_of(trace)}); give the files of one job"
            )


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
    except OSError as error:
        raise TraceError(f"{folder}: cannot be listed ({error.strerror or error}); check its permissions") from error


def _reader_of(path: Path) -> Reader | None:
    first = head(path)
    return next((reader for reader in READERS if reader.sniff(first)), None)


_Found = tuple[Trace, ...] | NotATraceError


def _read_one(repair: bool, file: _File, progress: Callable[[int], None] | None = None) -> _Found:
    """The traces of one file; why it is none, where it lay in a folder."""
    read_file = file.mend if repair and file.mend is not None else file.read
    try:
        found = read_file(file.path, progress=progress)
    except NotATraceError as error:
        if file.named:
            raise
        return error
    return found if isinstance(found, tuple) else (found,)


def _in_threads(files: list[_File], repair: bool, progress: Progress | None) -> Iterator[_Found]:
    """What all files hold, in their order. Ranks are read side by side: the scanner releases the GIL."""
    shared = _Shared(progress, sum(file.size for file in files))
    with ThreadPoolExecutor(min(len(files), os.cpu_count() or 1) or 1) as threads:
        yield from threads.map(lambda file: _read_one(repair, file, shared.of(file.path) if progress else None), files)


def _on_cluster(files: list[_File], repair: bool, progress: Progress | None, address: str | None) -> Iterator[_Found]:
    """The same from the workers of a Ray cluster; what a lost one was reading is read again."""
    shared = _Shared(progress, sum(file.size for file in files))
    workers = Workers(address)
    absolute = [replace(file, path=file.path.absolute()) for file in files]
    for file, found in zip(files, workers.map(_read_one, workers.put(repair), absolute), strict=True):
        shared.of(file.path)(file.size)
        yield found if isinstance(found, NotATraceError) else tuple(replace(trace, path=str(file.path)) for trace in found)


def _sorted_out(found: Iterator[_Found], diagnostics: list[Diagnostic]) -> list[Trace]:
    traces: list[Trace] = []
    for one in found:
        if isinstance(one, NotATraceError):
            diagnostics.append(Diagnostic("file-left-out", f"{one}"))
        else:
            traces += one
    return traces


class _Shared:
    """The progress of several files at once as a share of all of them."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done: dict[Path, int] = {}

    def of(self, path: Path) -> Callable[[int], None]:
        """The progress of one file."""

        def report(done: int) -> None:
            self._done[path] = done
            if self._progress is not None:
                self._progress(sum(list(self._done.values())), self._total)

        return report
