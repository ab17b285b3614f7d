"""How far the step's time would move if what a configuration leaves open were otherwise than assumed.

Each open fact is answered in every other way, and the job is predicted again. Habits of a framework go together: the factors of the
time multiply. Facts that are independent of each other combine as the root of the sum of squares, on each side of the time.
"""

from __future__ import annotations

from math import inf, prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.blocks.memory import peak_memory
from lumos.blocks.price import Pricer
from lumos.diagnostics import Diagnostic
from lumos.errors import UsageError
from lumos.prediction.step_time import PredictedStep, central_time, step_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.plan.job import PlannedJob, Unknown

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
            factors[name] = (
                central_time(other, pricer if other.cluster == job.cluster else Pricer(other.cluster, pricer.coefficients)) / time_s
            )
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
