"""The timed plans of a search as a Parquet file."""

from __future__ import annotations

from lumos.errors import LumosError
from lumos.layout.plan import RECOMPUTE, SCHEDULES
from lumos.search.search import Found
from lumos.search.space import COLUMNS


def write_parquet(path: str, found: Found) -> None:
    """Write `path`: a row for every timed plan, fastest first; `step_time_s` is the coarse form's."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise LumosError("Parquet needs pyarrow, which is not installed: pip install 'lumos-trace[arrow]'") from error
    c = found.candidates
    columns: dict[str, object] = {name: c.plans[name] for name in COLUMNS}
    columns["sequence_parallel"] = c.plans["sequence_parallel"].astype(bool)
    columns["recompute"] = [RECOMPUTE[i] for i in c.plans["recompute"].tolist()]
    columns["schedule"] = [SCHEDULES[i] for i in c.plans["schedule"].tolist()]
    columns |= {"step_time_s": c.seconds, "peak_bytes": c.peak}
    try:
        parquet.write_table(arrow.table(columns), path)
    except OSError as error:
        raise LumosError(f"{path}: cannot be written ({error.strerror})") from error
