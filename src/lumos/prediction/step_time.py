"""The time of one step of a job: arrange its layout, assemble the graph, simulate it."""

from __future__ import annotations

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
CORRELATED = 0.5
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
    spreads = _spreads(job, coefficients)
    down, up = (np.hypot.reduce([CORRELATED * (device / time - 1), host / time - 1, *spreads]) for device, host in (bounds[:2], bounds[2:]))
    return PredictedStep(time, time / (1 + float(down)), time * (1 + float(up)))


def _spreads(job: PlannedJob, c: StepCoefficients) -> list[float]:
    """Half-widths of the interval for what the cost models' own intervals do not cover, each independent of the others."""
    accelerator = job.cluster.accelerator
    spreads = [max(c.spread, _seen_within(job, c)) if is_profiled(job.framework) else c.unprofiled]
    if measured_relative(accelerator) != accelerator.name:
        spreads.append(c.unmeasured)
    if job.model.experts is not None:
        spreads.append(c.mixture)
    return spreads


def _seen_within(job: PlannedJob, c: StepCoefficients) -> float:
    """The error of the job's profile on published runs of its accelerator; `c.untried` where there are too few."""
    scored = evidence().get(job.framework.name, {}).get(job.cluster.accelerator.name)
    return scored.within if scored is not None and scored.rows >= ENOUGH_ROWS else c.untried
