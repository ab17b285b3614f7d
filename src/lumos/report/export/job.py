"""`lumos.export`: the job that an answer is about, as files that other tools and `lumos` itself open.

    answer = lumos.whatif("traces/", layers=16)
    lumos.export(answer, chakra="changed/", perfetto="changed.json.gz")

Replaying what is written takes the step that the answer gave.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from lumos.chakra.export import export_graph
from lumos.errors import LumosError
from lumos.output_files import check_outputs
from lumos.predict.predict import Prediction, predict_job
from lumos.predict.ranks import whole
from lumos.report.export.kineto import write_kineto
from lumos.report.export.perfetto import write_perfetto
from lumos.search.search import Found
from lumos.whatif.answer import Answer

#: An answer of `whatif`, a prediction, or a search, of which the best plan is meant.
Result: TypeAlias = Answer | Prediction | Found
_Path: TypeAlias = str | os.PathLike[str] | None


def export(result: Result, *, perfetto: _Path = None, chakra: _Path = None, kineto: _Path = None) -> None:
    """Write the changed, the predicted or the best job.

    perfetto: a file (.json or .json.gz) for ui.perfetto.dev; of a predicted job, a rank of each pipeline stage. chakra: a folder for one
    .et file per rank and groups.json. kineto: a folder for one profiler file per rank, of a job that was predicted or changed by its plan.
    Raises UsageError where two outputs have one name, LumosError where a file cannot be written, the job is too large, or a search found
    no plan.
    """
    check_outputs((perfetto, chakra, kineto), ())
    job = _job(result)
    if kineto is not None and isinstance(job, Answer):
        raise LumosError("--kineto: a job changed in its measured blocks or durations cannot be written as profiler files; use --chakra")
    if perfetto is not None:
        write_perfetto(os.fspath(perfetto), (job.timeline,))
    if chakra is not None:
        export_graph(job.graph if isinstance(job, Answer) else whole(job).graph, Path(chakra))
    if kineto is not None and isinstance(job, Prediction):
        write_kineto(os.fspath(kineto), job)


def _job(result: Result) -> Answer | Prediction:
    """The job to write: a prediction in kernels, or an answer that was made on measured work."""
    if isinstance(result, Answer):
        return result.job if isinstance(result.job, Prediction) else result
    if isinstance(result, Prediction):
        return result
    if not result.best:
        raise LumosError("the search found no plan, so there is no job to write")
    return predict_job(result.best[0].job, result.pricer, coarse=False)
