"""The time of one step of a job: arrange its layout, assemble the graph, simulate it."""

from __future__ import annotations

from math import log2
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.plan.profiles import is_profiled
from lumos.predict.arrange import arrange
from lumos.predict.assemble import Assembled, assemble
from lumos.simulate import freeze, sweep_many

if TYPE_CHECKING:
    from lumos.blocks.coefficients import StepCoefficients
    from lumos.blocks.price import Pricer
    from lumos.plan.job import PlannedJob
    from lumos.predict.layout import Layout

#: The interval of a whole step, as a share of the cost models' intervals: errors on its many different shapes partly cancel.
CORRELATED = 0.5


class PredictedStep(NamedTuple):
    """Seconds of one step, with the 80 % interval."""

    time_s: float
    low_s: float
    high_s: float


def layout_of(job: PlannedJob) -> Layout:
    return arrange(job.model, job.plan, job.framework, job.cluster.node.devices)


def step_time(job: PlannedJob, pricer: Pricer, coarse: bool = True) -> PredictedStep:
    """The step of `job`, priced by `pricer` (of the job's cluster)."""
    return time_of(assemble(layout_of(job), pricer, coarse), job, pricer.coefficients)


def central_time(job: PlannedJob, pricer: Pricer) -> float:
    """Seconds of the step of `job` in coarse form, without its interval."""
    graph = assemble(layout_of(job), pricer, True).graph
    (span,) = sweep_many(freeze(graph), graph.duration[None])
    return float(span) * 1e-9 * slowest(job, pricer.coefficients)


def time_of(assembled: Assembled, job: PlannedJob, coefficients: StepCoefficients) -> PredictedStep:
    frozen = freeze(assembled.graph)
    spans = sweep_many(frozen, np.stack([assembled.graph.duration, assembled.low, assembled.high]))
    factor = slowest(job, coefficients)
    spread = coefficients.spread if is_profiled(job.framework) else coefficients.unprofiled
    time, low, high = (float(s) * 1e-9 * factor for s in spans)
    down, up = (np.hypot(CORRELATED * (bound / time - 1), spread) for bound in (low, high))
    return PredictedStep(time, time / (1 + float(down)), time * (1 + float(up)))


def slowest(job: PlannedJob, coefficients: StepCoefficients) -> float:
    """Factor by which a step grows because it waits for the slowest of many nodes: `jitter` more for each doubling of the nodes."""
    nodes = max(1.0, job.plan.devices / job.cluster.node.devices)
    return 1 + coefficients.jitter * log2(nodes)
