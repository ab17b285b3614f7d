"""The time of one step of a job: arrange its layout, assemble the graph, simulate it; and how far it would move if what the job's
configuration leaves open were otherwise than assumed.

Each open fact is answered in every other way, and the job is predicted again. Habits of a framework go together: the factors of the
time multiply. Facts that are independent of each other combine as the root of the sum of squares, on each side of the time.
"""

from __future__ import annotations

from math import hypot, inf, prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.blocks.memory import peak_memory
from lumos.blocks.price import Pricer
from lumos.cost.power import measured_relative
from lumos.diagnostics import Diagnostic
from lumos.errors import UsageError
from lumos.graph.table import Kind
from lumos.plan.profiles import evidence, is_profiled
from lumos.prediction.arrange import arrange
from lumos.prediction.assemble import Assembled, assemble
from lumos.simulation import freeze, sweep_many

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.blocks.price import StepCoefficients
    from lumos.plan.job import PlannedJob, Unknown
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

    @property
    def within(self) -> tuple[float, float]:
        """The ends of the interval, as multiples of the step."""
        return self.low_s / self.time_s, self.high_s / self.time_s


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


#: An answer that would make the step this many times longer is not credible: nobody trains so.
CREDIBLE = 2.0
#: An answer that moves the step by less than this share is not asked for.
WORTH_ASKING = 0.02


class Open(NamedTuple):
    """An open fact and what the step would be by its other answers: factors of the time, by answer."""

    code: str
    question: str
    factors: Mapping[str, float]
    of_framework: bool = False

    @property
    def down(self) -> float:
        """The least factor, at most 1."""
        return min(1.0, 1.0, *self.factors.values())

    @property
    def up(self) -> float:
        """The greatest factor, at least 1."""
        return max(1.0, 1.0, *self.factors.values())

    @property
    def worth_asking(self) -> bool:
        """Whether an answer moves the step by more than a little."""
        return max(self.up, 1 / self.down) - 1 >= WORTH_ASKING


def priced_unknowns(job: PlannedJob, time_s: float, pricer: Pricer) -> list[Open]:
    """The job's open facts with what each answer is worth, the most consequential first. time_s: the step as assumed, coarse form."""
    questions = [Open(u.code, u.question, _factors(u, job, time_s, pricer), u.of_framework) for u in job.unknowns]
    return sorted((o for o in questions if o.factors), key=lambda o: -max(o.up, 1 / o.down))


def _factors(unknown: Unknown, job: PlannedJob, time_s: float, pricer: Pricer) -> dict[str, float]:
    factors = {}
    most = max(peak_memory(job).peak_bytes, job.cluster.accelerator.usable_bytes or inf)
    for name, other in unknown.answers.items():
        if peak_memory(other).peak_bytes > most:  # an answer with which the job could not run
            continue
        try:
            own = pricer if other.cluster == job.cluster else Pricer(other.cluster, pricer.coefficients)
            factors[name] = central_time(other, own) / time_s
        except UsageError:  # an answer that the plan or a kernel rules out is none
            continue
    return {name: factor for name, factor in factors.items() if factor < CREDIBLE}


def covering(time: PredictedStep, unknowns: Sequence[Open]) -> PredictedStep:
    """The time with an interval that covers the open facts too."""
    habits, others = ([o for o in unknowns if o.of_framework is whether] for whether in (True, False))
    slower, faster = prod(o.up for o in habits), prod(1 / o.down for o in habits)
    down = np.hypot.reduce([time.time_s / time.low_s - 1, faster - 1, *(1 / o.down - 1 for o in others)])
    up = np.hypot.reduce([time.high_s / time.time_s - 1, slower - 1, *(o.up - 1 for o in others)])
    return PredictedStep(time.time_s, time.time_s / (1 + float(down)), time.time_s * (1 + float(up)))


def questions(unknowns: Sequence[Open]) -> list[Diagnostic]:
    """What to ask, for facts worth asking: the question and what each answer would change."""
    out = []
    for o in unknowns:
        if o.worth_asking:
            worth = ", ".join(f"{name} {factor - 1:+.0%}" for name, factor in o.factors.items())
            out.append(Diagnostic(o.code, f"{o.question} The step by other answers: {worth}; the interval covers them"))
    return out


def open_step_time(job: PlannedJob, pricer: Pricer) -> tuple[PredictedStep, list[Open]]:
    """The step of `job` in coarse form, with an interval that covers its open facts, and these."""
    time = step_time(job, pricer)
    questions = priced_unknowns(job, time.time_s, pricer)
    return covering(time, questions), questions
