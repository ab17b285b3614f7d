"""The time of one step of a job: arrange its layout, assemble the graph, simulate it."""

from __future__ import annotations

from math import hypot
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.cost.power import measured_relative
from lumos.graph.table import Kind
from lumos.plan.profiles import evidence, is_profiled
from lumos.prediction.arrange import arrange
from lumos.prediction.assemble import Assembled, assemble
from lumos.simulation import freeze, sweep_many

if TYPE_CHECKING:
    from lumos.blocks.coefficients import StepCoefficients
    from lumos.blocks.price import Pricer
    from lumos.plan.job import PlannedJob
    from lumos.prediction.layout import Layout

#: The interval of a whole step, as a share of the cost models' intervals for the device: errors on its many different shapes partly cancel.
#: A host that is slow is slow at every launch: its interval counts in full.
CORRELATED = 0.3
#: So many published runs of a profile on an accelerator say how far it is off there.
ENOUGH_ROWS = 3


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
    return float(span) * 1e-9


def time_of(assembled: Assembled, job: PlannedJob, coefficients: StepCoefficients) -> PredictedStep:
    frozen = freeze(assembled.graph)
    best, low, high = assembled.graph.duration, assembled.low, assembled.high
    on_host = np.isin(assembled.graph.kind, (Kind.OPERATOR, Kind.LAUNCH))
    columns = [best, *(np.where(on_host, a, b) for bound in (low, high) for a, b in ((best, bound), (bound, best)))]
    time, *bounds = (float(s) * 1e-9 for s in sweep_many(frozen, np.stack(columns)))
    sides = (np.hypot(CORRELATED * (device / time - 1), host / time - 1) for device, host in (bounds[:2], bounds[2:]))
    down, up = (half_width(float(priced), job, coefficients) for priced in sides)
    return PredictedStep(time, time / (1 + down), time * (1 + up))


def half_width(priced: float, job: PlannedJob, c: StepCoefficients) -> float:
    """Half the interval of a step whose prices are known within `priced`; both are shares of the step.

    The errors of published runs are of whole steps, and those of their prices are part of them: of the two the larger counts. Where too few
    runs are published, what a profile or an accelerator may hide comes to the errors of the prices.
    """
    seen = _seen_within(job)
    if seen is not None:
        known = max(priced, seen, c.spread)
    else:
        unmeasured = measured_relative(job.cluster.accelerator) != job.cluster.accelerator.name
        known = hypot(priced, c.untried if is_profiled(job.framework) else c.unprofiled, c.unmeasured if unmeasured else 0.0)
    return hypot(known, c.mixture) if job.model.experts is not None else known


def _seen_within(job: PlannedJob) -> float | None:
    """The error of the job's profile on published runs of its accelerator; None where there are too few, or no profile."""
    scored = evidence().get(job.framework.name, {}).get(job.cluster.accelerator.name)
    return scored.within if scored is not None and scored.rows >= ENOUGH_ROWS and is_profiled(job.framework) else None
