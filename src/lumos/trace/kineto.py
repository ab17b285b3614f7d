"""Reading of Kineto JSON, as PyTorch's profiler writes it, into a `Trace`. Other files of Chrome trace events are read too.

The native scanner parses the bytes; this module interprets its columns. The document is an object with `traceEvents`
anywhere in it, or a bare array of events.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos._scan import CORRELATION, EXTERNAL_ID, ScanError, Scanned, Scanner, SparseColumn, Texts
from lumos.characters import is_whole
from lumos.diagnostics import Diagnostic
from lumos.errors import TraceError
from lumos.trace import kineto_schema as schema
from lumos.trace.blocks import TruncatedError, unpacked_blocks
from lumos.trace.kineto_values import checked_arguments, checked_header
from lumos.trace.reader import NotATraceError
from lumos.trace.string_table import StringTable
from lumos.trace.table import DEVICE_WORK, Category, Column, Int8, Int32, Int64, Lane, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

#: A file of more than _MANY_ROWS rows that are shorter than this on average is refused: no profiler writes such rows, and
#: their columns would be larger than the file.
_MIN_ROW_BYTES = 16
_MANY_ROWS = 1 << 20

#: The scanner's reason where the JSON is valid but not a trace, so that --repair cannot help.
_NOT_A_LIST = "traceEvents is not an array"

#: Starts that differ by more cannot be of one recording.
_DAY_NS = 86_400 * 10**9

#: What else can be done about a file that was cut off after its first events.
_OR_REPAIR = ", or pass --repair to read the rows before the cut"

_RANK_IN_NAME = re.compile(r"(?:rank|worker|workers)[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_NUMBER_AT_END = re.compile(r"[-_](\d{1,6})(?:\.pt\.trace)?\.json(?:\.gz|\.zst)?$", re.IGNORECASE)


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` may be a Kineto trace, that is JSON of an object or of an array of objects."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        return text[1:].lstrip().startswith((b"{", b"]"))
    return text.startswith(b"{")


def read(path: Path, *, repair: bool = False, progress: Callable[[int], None] | None = None) -> Trace:
    """Read one Kineto file, plain or compressed with gzip or zstd.

    `repair` corrects text that is not quite JSON (raw control characters, bare quotes and lone backslashes inside strings,
    trailing commas, nan and inf, bytes that are not UTF-8) and keeps the rows before a cut, each with a diagnostic.
    Raises TraceError: unreadable, damaged or cut-off file, not JSON (with byte, line and reason), not a trace.
    """
    scanner, truncated = _scan(path, repair, progress)
    scanned = scanner.take()
    findings = _Findings(path)
    if truncated:
        findings.add("truncated", f"{truncated}; kept the {len(scanned.start)} rows before it")
    _report_repairs(scanned.repairs, findings)
    _report_counts(scanned.counts, findings)

    metadata = checked_header(_metadata(scanned.header, findings), findings.header)
    strings = StringTable(scanned.strings.text, scanned.strings.offsets)
    args = checked_arguments(_args(scanned.columns, findings), strings, findings.arguments)
    start = scanned.start
    _add_base(start, metadata, findings)
    classes = pairs(scanned.classes)
    category = _categories(scanned.class_, classes, scanned.name, strings, args, findings)
    lanes = _lanes(scanned, classes, strings, args.pop("name", None))
    _report_oddities(start, category, args, findings)
    rank, rank_source, world_size = _rank(path, metadata, findings)
    return Trace(
        path=str(path),
        rank=rank,
        rank_source=rank_source,
        world_size=world_size,
        strings=strings,
        start=start,
        duration=scanned.duration,
        name=scanned.name,
        category=category,
        lane=scanned.lane,
        correlation=scanned.correlation,
        external_id=scanned.external_id,
        args=args,
        lanes=lanes,
        metadata=metadata,
        diagnostics=tuple(findings),
    )


class _Findings(list[Diagnostic]):
    """The diagnostics of one file; each message starts with its path."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def add(self, code: str, message: str) -> None:
        self.append(Diagnostic(code, f"{self._path}: {message}"))

    def header(self, key: str, why: str) -> None:
        self.add("header-unreadable", f"{key} {why}; left out")

    def arguments(self, key: str, values: int, why: str) -> None:
        self.add("argument-unreadable", f"{values} values of {key!r} are {why}; left out")


def new_scanner(repair: bool = False) -> Scanner:
    """A scanner for the arguments of `kineto_schema`; its columns come in the order of `column_names()`."""
    names = column_names()
    index = {name: i for i, (name, _) in enumerate(names)}
    keys = [*index.items(), *((spelling, index[name]) for spelling, name in schema.SPELLINGS.items())]
    keys += [(spelling, CORRELATION) for spelling in schema.CORRELATION] + [(spelling, EXTERNAL_ID) for spelling in schema.EXTERNAL_ID]
    return Scanner([kind for _, kind in names], keys, index["id"], repair)


def column_names() -> list[tuple[str, str]]:
    """The sparse columns and their kinds."""
    return [(name, kind) for kind, names in schema.KINETO_COLUMNS.items() for name in names]


def pairs(texts: Texts) -> list[tuple[str, str]]:
    """The pairs (ph, cat) or (pid, tid), which the scanner stores as two texts separated by a byte that UTF-8 does not use."""
    joined = texts.text.tobytes()
    out = []
    for a, b in pairwise(texts.offsets.tolist()):
        first, second = joined[a:b].split(b"\xff")
        out.append((first.decode("utf-8", "surrogatepass"), second.decode("utf-8", "surrogatepass")))
    return out


def _scan(path: Path, repair: bool, progress: Callable[[int], None] | None) -> tuple[Scanner, str]:
    """The scanner after the whole file, and under repair where the file was cut off ("" where it was not)."""
    scanner = new_scanner(repair)
    truncated = ""
    try:
        try:
            for block in unpacked_blocks(path, progress):
                scanner.feed(block)
                if scanner.rows > _MANY_ROWS and scanner.offset < _MIN_ROW_BYTES * scanner.rows:
                    raise TraceError(
                        f"{path}: {scanner.rows} events in {scanner.offset} bytes: rows this short come from no profiler; refused"
                    )
        except TruncatedError as error:
            if not repair:
                raise TruncatedError(f"{error}{_OR_REPAIR if scanner.saw_events else ''}") from error
            truncated = str(error).removeprefix(f"{path}: ").split(":")[0]
        whole = scanner.finish()
    except ScanError as error:
        offset, reason, limit = error.args
        if not scanner.saw_document:
            raise NotATraceError(
                f"{path}: not a profiler trace: neither JSON nor gzip of it ({reason} at byte {offset}); give the profiler's file"
            ) from None
        raise TraceError(_malformed(path, offset, reason, repair, limit)) from None
    if scanner.offset == 0:
        raise TraceError(f"{path}: the file is empty; record it again")
    if not whole:
        cut_off = f"the JSON ends at byte {scanner.offset} (line {_line(path, scanner.offset)}) before it is complete"
        if not (repair and scanner.saw_events):
            remedy = "copy or record it again" + (_OR_REPAIR if scanner.saw_events and not repair else "")
            raise TraceError(f"{path}: {cut_off}: the file was cut off; {remedy}")
        truncated = truncated or cut_off
    if not scanner.saw_events:
        keys = ", ".join(repr(key.decode("utf-8", "replace")) for key, _ in scanner.take().header[:6]) or "none"
        raise NotATraceError(f"{path}: not a profiler trace: JSON without traceEvents (its keys: {keys}); give the profiler's file")
    return scanner, truncated


def _malformed(path: Path, offset: int, reason: str, repair: bool, limit: bool) -> str:
    if limit:
        return f"{path}: refused at byte {offset} (line {_line(path, offset)}): {reason}, as no profiler writes; give the profiler's file"
    if reason == _NOT_A_LIST:
        return f"{path}: {reason} at byte {offset} (line {_line(path, offset)}): not a profiler trace; give the profiler's file"
    wrong = f"not valid JSON at byte {offset} (line {_line(path, offset)}): {reason}"
    if repair or not _can_repair(path):
        return f"{path}: {wrong}, beyond what --repair can mend; record it again"
    return f"{path}: {wrong}; pass --repair to read it all the same"


def _can_repair(path: Path) -> bool:
    """Whether --repair reads a file that is not valid JSON, so that it is advised only where it helps."""
    try:
        _scan(path, True, None)
    except TraceError:
        return False
    return True


def _line(path: Path, offset: int) -> int:
    """The line (from 1) of a byte of the unpacked file."""
    line = 1
    left = offset
    try:
        for block in unpacked_blocks(path):
            line += block.count(b"\n", 0, left)
            left -= len(block)
            if left <= 0:
                break
    except TruncatedError:
        pass
    return line


def _report_repairs(repairs: Mapping[str, int], findings: _Findings) -> None:
    mended = [f"{count} {what}" for what, count in repairs.items() if count]
    if mended:
        findings.add("repaired", f"not quite JSON; repaired {', '.join(mended)}")


def _report_counts(counts: Mapping[str, int], findings: _Findings) -> None:
    messages = {
        "ignored": ("not-an-event", "{} elements of traceEvents are no events; left out"),
        "no_start": ("missing-start", "{} rows have no readable ts; kept with a start of 0"),
        "no_duration": ("missing-duration", "{} complete events have no readable dur; kept with a duration of 0"),
        "negative_duration": ("negative-duration", "{} rows have a negative dur; kept with a duration of 0"),
        "id_overflow": ("id-too-large", "{} correlation, external or flow ids exceed 64 bits; those rows are not linked"),
        "id_unreadable": ("id-unreadable", "{} correlation, external or flow ids are no integers; those rows are not linked"),
    }
    for key, (code, message) in messages.items():
        if counts[key]:
            findings.add(code, message.format(counts[key]))


def _metadata(header: Sequence[tuple[bytes, bytes]], findings: _Findings) -> dict[str, Any]:
    """Every top-level value except the events, parsed. Where a key occurs twice the last value counts, as in `json`."""
    out: dict[str, Any] = {}
    for raw_key, raw in header:
        key = raw_key.decode("utf-8", "surrogatepass")
        try:
            out[key] = json.loads(raw)
        except ValueError as error:  # an integer of more digits than Python converts
            findings.add("metadata-unreadable", f"the value of {key!r} cannot be read ({error}); left out")
    return out


def _args(columns: Sequence[SparseColumn], findings: _Findings) -> dict[str, Column]:
    args: dict[str, Column] = {}
    for (name, kind), column in zip(column_names(), columns, strict=True):
        if len(column.rows):
            args[name] = Column(column.rows, column.values, kind)
        if column.unreadable:
            what = "integer" if kind == "int" else "number"
            findings.add("argument-unreadable", f"{column.unreadable} values of {name!r} are no {what}; left out")
        if column.overflow:
            findings.add("argument-too-large", f"{column.overflow} values of {name!r} exceed 64 bits; left out")
    return args


def _add_base(start: Int64, metadata: Mapping[str, Any], findings: _Findings) -> None:
    """Add the base time to the starts, in place."""
    base = metadata.get("baseTimeNanoseconds", 0)
    if isinstance(base, str) and is_whole(base.strip()):
        base = int(base)
    if isinstance(base, float) and base.is_integer():
        base = int(base)
    if not isinstance(base, int) or not 0 <= base < 1 << 62:
        findings.add("base-time-unreadable", f"baseTimeNanoseconds is {base!r}; taken as 0")
        base = 0
    if len(start):
        if int(start.max()) + base >= 1 << 63:
            findings.add("base-time-unreadable", f"baseTimeNanoseconds {base} does not fit the timestamps; taken as 0")
            base = 0
        start += base
        negative = int(np.count_nonzero(start < 0))
        if negative:
            findings.add("negative-start", f"{negative} rows start before time 0; kept as they are")


def _categories(
    classes_of_rows: Int32,
    classes: Sequence[tuple[str, str]],
    name: Int32,
    strings: StringTable,
    args: Mapping[str, Column],
    findings: _Findings,
) -> Int8:
    """Category of every row by its (ph, cat), and where that is not enough by its name or arguments."""
    known = [schema.category(phase, cat) for phase, cat in classes]
    table = np.array([Category.OTHER if c is None else c for c in known], np.uint8)
    category: Int8 = table[classes_of_rows] if len(classes) else np.zeros(0, np.uint8)

    unknown = [i for i, c in enumerate(known) if c is None]
    if unknown:
        rows = np.bincount(classes_of_rows, minlength=len(classes))
        with_stream = np.zeros(len(classes), np.int64)
        if "stream" in args:
            with_stream = np.bincount(classes_of_rows[args["stream"].rows], minlength=len(classes))
        device = [i for i in unknown if 0 < rows[i] == with_stream[i]]
        category[np.isin(classes_of_rows, device)] = Category.KERNEL
        other = [i for i in unknown if i not in device]
        for taken, some in (("device work, because all name a stream", device), ("neither operators nor device work", other)):
            if some:
                names = ", ".join(repr(classes[i][1]) for i in some[:4]) + (f" and {len(some) - 4} more" if len(some) > 4 else "")
                findings.add("unknown-category", f"{rows[some].sum()} rows of unknown categories ({names}) are taken as {taken}")

    if Category.INSTANT in known:
        memory = next((i for i, text in enumerate(strings) if text == schema.MEMORY_NAME), None)
        if memory is not None:
            category[(name == memory) & (category == Category.INSTANT)] = Category.MEMORY
    return category


def _lanes(scanned: Scanned, classes: Sequence[tuple[str, str]], strings: StringTable, names: Column | None) -> tuple[Lane, ...]:
    """The (pid, tid) pairs in order of appearance, named by the metadata rows (ph "M")."""
    ids = pairs(scanned.lanes)
    process: dict[str, str] = {}
    thread: dict[int, str] = {}
    if names is not None:
        metadata_classes = [i for i, (phase, _) in enumerate(classes) if phase == "M"]
        is_metadata = np.isin(scanned.class_[names.rows], metadata_classes)
        rows = names.rows[is_metadata]
        for kind, lane, value in zip(
            scanned.name[rows].tolist(), scanned.lane[rows].tolist(), names.values[is_metadata].tolist(), strict=True
        ):
            what = strings[kind]
            if what == "process_name":
                process[ids[lane][0]] = strings[value]
            elif what == "thread_name":
                thread[lane] = strings[value]
    return tuple(Lane(pid, tid, process.get(pid, ""), thread.get(i, "")) for i, (pid, tid) in enumerate(ids))


def _report_oddities(start: Int64, category: Int8, args: Mapping[str, Column], findings: _Findings) -> None:
    """Report what can be read but what no profiler writes: no work at all, starts days apart, implausible stream numbers."""
    is_work = np.zeros(len(Category), bool)
    is_work[[Category.OPERATOR, Category.ANNOTATION, Category.RUNTIME, Category.PYTHON, *DEVICE_WORK]] = True
    starts = start[is_work[category]]
    if not len(starts):
        findings.add("no-work", "holds no operator, call or device work; record with the profiler active around a step")
    elif int(starts.max()) - int(starts.min()) > _DAY_NS:
        far = np.abs(starts - int(np.median(starts))) > _DAY_NS
        findings.add("far-start", f"{np.count_nonzero(far)} rows start more than a day from the rest; kept, so times include the gap")
    if "stream" in args:
        streams = args["stream"].values
        beyond = streams[(streams < -1) | (streams >= 1 << 32)]
        if len(beyond):
            findings.add("stream-implausible", f"{len(beyond)} rows name a stream beyond 32 bits (the first is {beyond[0]}); kept")


def _rank(path: Path, metadata: Mapping[str, Any], findings: _Findings) -> tuple[int, str, int | None]:
    """The rank, where it was found, and the number of ranks (None if unknown)."""
    info = metadata.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    world = _whole(info.get("world_size"), 1)
    rank = _whole(info.get("rank"))
    for key, value in (("world_size", world), ("rank", rank)):
        if value is None and info.get(key) is not None:
            findings.add("distributed-info-unreadable", f"distributedInfo gives {key} as {info[key]!r}, which is none; left out")
    if rank is not None and world is not None and rank >= world:
        findings.add("rank-beyond-world", f"distributedInfo gives rank {rank} of {world}; ranks start at 0; kept")
    if rank is not None:
        return rank, "distributedInfo", world
    in_name = _RANK_IN_NAME.search(path.name) or _NUMBER_AT_END.search(path.name)
    if in_name is not None:
        return int(in_name[1]), "file name", world
    findings.add("rank-assumed", "neither distributedInfo nor the file name gives a rank; taken as rank 0")
    return 0, "assumed", world


def _whole(value: object, least: int = 0) -> int | None:
    """The integer that `value` is, or contains as text, if it is from `least` to 2^31 - 1; else None."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 31 else None
