"""The schedule of a predicted step: when each pipeline stage computes which pass of which microbatch."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.table import Kind

if TYPE_CHECKING:
    from lumos.prediction.predict import Prediction
    from lumos.vocabulary import Phase


class StagePass(NamedTuple):
    """What a stage computes in one piece. microbatch: −1 for work of none, such as the optimizer's. Times are ns from the step's start."""

    stage: int
    phase: Phase
    microbatch: int
    start_ns: int
    end_ns: int


def stage_passes(prediction: Prediction) -> tuple[StagePass, ...]:
    """The passes of all stages, by stage and start. A stage launches its work, and so its kernels, in the order of the layout's items."""
    run, items, origin = prediction.timeline, prediction.items, int(prediction.timeline.start.min())
    stage_of = run.graph.rank_of_task.tolist()
    kernels = np.flatnonzero(run.graph.kind == Kind.KERNEL).tolist()
    out = []
    for (stage, phase, microbatch), tasks in groupby(kernels, lambda task: (stage_of[task], items[task].phase, items[task].microbatch)):
        own = list(tasks)
        out.append(StagePass(stage, phase, microbatch, int(run.start[own].min()) - origin, int(run.end[own].max()) - origin))
    return tuple(out)
