"""`lumos.export`: the job that an answer is about, as files that other tools and `lumos` itself open.

    answer = lumos.whatif("traces/", layers=16)
    lumos.export(answer, chakra="changed/", perfetto="changed.json.gz")

Replaying what is written takes the step that the answer gave. Of a search, all timed plans can be written as a table.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from lumos.analyze.critical_path import critical_paths
from lumos.chakra.exporting import export_graph
from lumos.chakra.recorded import predicted_work, recorded_work
from lumos.changes.answer import Answer
from lumos.errors import LumosError, UsageError
from lumos.extras import install
from lumos.output_files import check_outputs, new_file
from lumos.prediction.predict import Prediction, predict_job
from lumos.prediction.ranks import whole
from lumos.reports.export.kineto import write_kineto
from lumos.reports.export.kineto_changed import write_changed
from lumos.reports.export.perfetto import write_perfetto
from lumos.searching.search import Found
from lumos.searching.space import PLAN_COLUMNS, RECOMPUTES, SCHEDULES
from lumos.simulation import Timeline
from lumos.trace.table import PREDICTED, Origin

if TYPE_CHECKING:
    from collections.abc import Sequence

#: An answer of `whatif`, a prediction, or a search, of which the best plan is meant.
Result: TypeAlias = Answer | Prediction | Found


def export(
    result: Answer | Prediction | Found | Timeline,
    *,
    perfetto: str | os.PathLike[str] | None = None,
    chakra: str | os.PathLike[str] | None = None,
    kineto: str | os.PathLike[str] | None = None,
) -> None:
    """Write the changed, the predicted or the best job, or a run of a recorded one with its critical path.

    perfetto: a file (.json or .json.gz) for ui.perfetto.dev; of a predicted job, a rank of each pipeline stage. chakra: a folder for one
    .et file per rank and groups.json. kineto: a folder for one profiler file per rank. A run has perfetto alone.
    Raises UsageError where two outputs have one name, LumosError where a file cannot be written, the job is too large, or a search found
    no plan.
    """
    check_outputs((perfetto, chakra, kineto), ())
    if isinstance(result, Timeline):
        if perfetto is None or chakra or kineto:
            raise UsageError("a run of a recorded job is written with perfetto=FILE; lumos.chakra.export writes the job itself")
        write_perfetto(os.fspath(perfetto), (result,), (critical_paths(result),))
        return
    job = _job(result)
    if perfetto is not None:
        write_perfetto(os.fspath(perfetto), (job.timeline,))
    if chakra is not None:
        _write_chakra(job, Path(chakra))
    if kineto is not None and isinstance(job, Prediction):
        write_kineto(os.fspath(kineto), job)
    elif kineto is not None and isinstance(job, Answer):
        write_changed(os.fspath(kineto), job.timeline, job.recorded, job.origin)


def _write_chakra(job: Answer | Prediction, folder: Path) -> None:
    """Write a job as a Chakra set, with what its kernels compute and move as far as that is known."""
    if isinstance(job, Prediction):
        world = whole(job)
        origin = Origin(PREDICTED, within=job.time.within)
        export_graph(world.graph, folder, amounts=predicted_work(job.works).taken(world.folded), origin=origin)
    else:
        amounts = None if job.recorded is None else recorded_work(job.graph, job.recorded)
        export_graph(job.graph, folder, amounts=amounts, origin=job.origin)


def _job(result: Result) -> Answer | Prediction:
    """The job to write: a prediction in kernels, or an answer that was made on measured work."""
    if isinstance(result, Answer):
        return result.job if isinstance(result.job, Prediction) else result
    if isinstance(result, Prediction):
        return result
    if not result.best:
        raise LumosError("the search found no plan, so there is no job to write")
    return predict_job(result.best[0].job, result.pricer, coarse=False)


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
