"""Reading of the operation table of ByteDance-Seed/StragglerAnalysis (`trace*.parquet`) into one `Trace` per rank.

Each row is an operation of one rank in one step, with these columns, documented in that project's readme: `rank`, `dp_rank`,
`stage`, `step`, `optype`, `start_ts` and `duration` (seconds as float32, from the step's own origin: good to 0.2 µs),
`seq_id` (number among the operations of this type, rank and step), `mc` (model chunk within the stage) and `mb_id`
(microbatch); -1 where an operation has none. `meta.yaml` in the same folder (`meta-X.yaml` for `trace-X.parquet`) has the
sizes of the plan; without it they are taken from the table, and a missing last stage then goes unnoticed.

Limits: the timers resolve microseconds, so times that should be equal can differ by some microseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.diagnostics import Diagnostic
from lumos.errors import TraceError
from lumos.extras import install
from lumos.trace.blocks import unpacked_blocks
from lumos.trace.operations import KNOWN, RecordedPlan, operation_trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from lumos.trace.table import Int64, Trace

#: What the table's columns are called in a trace.
_COLUMNS = {
    "rank": "rank", "dp_rank": "dp rank", "stage": "stage", "step": "step", "optype": "operation", "start_ts": "start",
    "duration": "duration", "seq_id": "sequence", "mc": "chunk", "mb_id": "microbatch",
}  # fmt: skip

_MAGIC = b"PAR1"


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` is Parquet."""
    return head.startswith(_MAGIC)


def sniff_meta(head: bytes) -> bool:
    """Whether a file that starts with `head` is the table's `meta.yaml`."""
    text = head.lstrip()
    return text.startswith(b"trial_name:") and b"pp_size:" in text


def read(path: Path, *, progress: Callable[[int], None] | None = None) -> tuple[Trace, ...]:
    """Read one table into one trace per rank, in order of rank.

    Raises TraceError: pyarrow is not installed, the file is damaged, a column is missing or of a wrong type, a time is
    negative or no number, an operation is unknown, two ranks have one place in the plan.
    """
    table = _table(path)
    if progress is not None:
        progress(path.stat().st_size)
    operation: list[Any] = table["optype"].to_pylist()
    unknown = next((i for i, name in enumerate(operation) if name not in KNOWN), None)
    if unknown is not None:  # whose lane and dependencies would follow from its name
        raise TraceError(f"{path}: row {unknown}: unknown operation {operation[unknown]!r} (optype); known are {', '.join(KNOWN)}")
    columns = {name: _numbers(path, key, table[key]) for key, name in _COLUMNS.items() if key != "optype"}
    rank, stage, dp = columns["rank"], columns["stage"], columns["dp rank"]
    if not len(rank):
        raise TraceError(f"{path}: the table has no rows; record it again")
    for key in ("rank", "stage", "dp_rank", "step"):
        least = int(columns[_COLUMNS[key]].argmin())
        if columns[_COLUMNS[key]][least] < 0:
            raise TraceError(f"{path}: row {least}: {key} is {int(columns[_COLUMNS[key]][least])}; it must be 0 or more")
    places = _places(path, rank, stage, dp)
    sizes = _sizes(path)
    stages, dp_size = (_size(path, sizes, key, int(column.max()) + 1) for key, column in (("pp_size", stage), ("dp_size", dp)))
    plan = RecordedPlan("StragglerAnalysis", stages, dp_size, max(int(columns["chunk"].max()) + 1, 1))
    findings = _findings(path, plan, places)
    traces: list[Trace] = []
    for number in places:
        rows = np.flatnonzero(rank == number)
        own = {key: column[rows] for key, column in columns.items()}
        names = [operation[i] for i in rows]
        traces.append(operation_trace(str(path), number, "rank column", plan, names, own, () if traces else findings))
    return tuple(traces)


def _sizes(path: Path) -> dict[str, str]:
    """The keys and values of the table's `meta.yaml`, whose lines are `key: value`; empty where there is no such file."""
    meta = path.with_name(f"{path.stem.replace('trace', 'meta', 1)}.yaml")
    if not meta.is_file() or meta == path:
        return {}
    text = b"".join(unpacked_blocks(meta)).decode("utf-8", "replace")
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def _size(path: Path, sizes: dict[str, str], key: str, least: int) -> int:
    """One size of the plan from `sizes`; where it is absent there, `least`, the smallest size that the table allows."""
    text = sizes.get(key)
    if text is None:
        return least
    if not text.isdecimal() or len(text) > 6 or int(text) < least:
        raise TraceError(f"{path}: the meta file beside it has {key} {text}, the table needs {least}; give the meta file of this job")
    return int(text)


def _table(path: Path) -> dict[str, Any]:
    """The columns read, as pyarrow arrays."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise TraceError(f"{path}: reading Parquet needs pyarrow, which is not installed: {install('arrow')}") from error
    try:
        file = parquet.ParquetFile(path)
        missing = [key for key in _COLUMNS if key not in file.schema_arrow.names]
        if missing:
            raise TraceError(
                f"{path}: a Parquet table without the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; "
                f"an operation table has {', '.join(_COLUMNS)}"
            )
        table = file.read(columns=list(_COLUMNS))
    except (arrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise TraceError(f"{path}: not a complete Parquet file ({reason}); copy or record it again") from error
    for key in _COLUMNS:
        if table[key].null_count:
            raise TraceError(f"{path}: column {key} has {table[key].null_count} empty entries; every operation needs all columns")
    return {key: table[key] for key in _COLUMNS}


def _numbers(path: Path, key: str, column: Any) -> Int64:
    """A column of whole numbers, or of seconds as ns."""
    values: NDArray[Any] = column.to_numpy()
    kind, words = (np.floating, "seconds as floats") if key in ("start_ts", "duration") else (np.integer, "integers")
    if not np.issubdtype(values.dtype, kind):
        raise TraceError(f"{path}: column {key} holds {values.dtype}, not {words}; write the table with its original types")
    if kind is np.integer:
        return values.astype(np.int64)
    seconds = values.astype(np.float64)
    wrong = np.flatnonzero(~np.isfinite(seconds) | (seconds < 0) | (seconds > 1e9))
    if len(wrong):
        raise TraceError(f"{path}: row {int(wrong[0])}: {key} is {seconds[wrong[0]]} s; a time is a number from 0 to 1e9")
    return np.rint(seconds * 1e9).astype(np.int64)


def _places(path: Path, rank: Int64, stage: Int64, dp: Int64) -> dict[int, tuple[int, int]]:
    """(stage, dp rank) of every rank, by rank."""
    position: dict[int, tuple[int, int]] = {}
    taken: dict[tuple[int, int], int] = {}
    for number, s, d in np.unique(np.stack([rank, stage, dp]), axis=1).T.tolist():
        if position.setdefault(number, (s, d)) != (s, d):
            raise TraceError(f"{path}: rank {number} is at stage, dp rank {position[number]} and at {(s, d)}; a rank has one place")
        if taken.setdefault((s, d), number) != number:
            raise TraceError(
                f"{path}: ranks {taken[s, d]} and {number} are both at stage {s}, dp rank {d}; tables with tensor parallelism "
                "list one rank of each tensor group"
            )
    return position


def _findings(path: Path, plan: RecordedPlan, places: dict[int, tuple[int, int]]) -> tuple[Diagnostic, ...]:
    absent = sorted({(s, d) for s in range(plan.stages) for d in range(plan.dp)} - set(places.values()))
    if not absent:
        return ()
    shown = ", ".join(f"stage {s} dp rank {d}" for s, d in absent[:6]) + (" …" if len(absent) > 6 else "")
    of_all = f"{len(absent)} of {plan.stages * plan.dp} ranks; what waits for them keeps its measured duration"
    return (Diagnostic("rank-missing", f"{path}: no rows of {shown}: {of_all}"),)
