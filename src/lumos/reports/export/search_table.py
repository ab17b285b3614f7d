"""Write the timed plans of a search as a Parquet file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.errors import LumosError
from lumos.extras import install
from lumos.output_files import new_file
from lumos.searching.space import PLAN_COLUMNS, RECOMPUTES, SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.searching.search import Found


def write_parquet(path: str, searches: Sequence[Found]) -> None:
    """Write `path`: a row for every timed plan of every search, the fastest of each search first.

    The first columns are the sizes of the search's problem (`gpus`, `global_batch`, `seq`); `step_time_s` is the time of the
    coarse simulation. Raises LumosError without pyarrow, or where `path` cannot be written.
    """
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise LumosError(f"Parquet needs pyarrow, which is not installed: {install('arrow')}") from error
    with new_file(path) as file:
        parquet.write_table(arrow.concat_tables([arrow.table(_columns(search)) for search in searches]), file)


def _columns(search: Found) -> dict[str, object]:
    c, p = search.candidates, search.problem
    sizes = {"gpus": p.gpus, "global_batch": p.global_batch, "seq": p.seq_len}
    columns: dict[str, object] = {name: np.full(len(c.plans), value) for name, value in sizes.items()}
    columns |= {name: c.plans[name] for name in PLAN_COLUMNS}
    columns["sequence_parallel"] = c.plans["sequence_parallel"].astype(bool)
    columns["recompute"] = np.array(RECOMPUTES)[c.plans["recompute"]]
    columns["schedule"] = np.array(SCHEDULES)[c.plans["schedule"]]
    return columns | {"step_time_s": c.seconds, "peak_bytes": c.peak}
