"""Steps that a user measured: they calibrate the level of a prediction, and settle what a configuration leaves open.

The errors of one source of published runs share a level (its devices, network and release are the same for all rows) and differ by what
the plans make of it. So the level of the measured steps is taken over, and the interval is that of the differences: with k measured steps,
whose logarithms of measured / predicted differ by a standard deviation s, the next one lies within 1.28 · s · sqrt(1 + 1 / k) in four of
five cases. s is the mean of what the rows show and of what published sources show (`RESIDUAL`), weighted by the number of rows and by
`PRIOR_ROWS`.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, hypot, log, sqrt
from typing import TYPE_CHECKING, NamedTuple

from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.prediction.step_time import PredictedStep
from lumos.prediction.validate import Scored, read_tables, score

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.plan.job import PlannedJob
    from lumos.prediction.predict import Prediction
    from lumos.prediction.step_time import Open

#: Standard deviation of the logarithm of measured / predicted within a source: the middle of twelve published sources (0.04 to 0.22).
RESIDUAL = 0.09
#: How many measured steps `RESIDUAL` weighs as much as.
PRIOR_ROWS = 4
#: Standard deviations that hold four of five normally distributed values.
_FOUR_OF_FIVE = 1.28


class StepLevel(NamedTuple):
    """What measured steps say of a prediction. factor: measured / predicted, in the middle; half_width: of the interval, as a share;
    rows: how many there are; settled: codes of facts that were open in the measured steps too, so that the level settles them. left_out:
    the rows that say nothing of it, with the reason."""

    factor: float
    half_width: float
    rows: int
    settled: frozenset[str]
    left_out: tuple[str, ...] = ()

    def applied(self, time: PredictedStep, unknowns: Sequence[Open]) -> PredictedStep:
        """The step with this level, and an interval of how far measured steps differ and of what they do not settle."""
        others = [o for o in unknowns if o.code not in self.settled]
        down, up = (hypot(self.half_width, *moves) for moves in ([1 / o.down - 1 for o in others], [o.up - 1 for o in others]))
        seconds = self.factor * time.time_s
        return PredictedStep(seconds, seconds / (1 + down), seconds * (1 + up))

    @property
    def note(self) -> Diagnostic:
        """What was taken from the measured steps, for people."""
        steps = "one measured step" if self.rows == 1 else f"{self.rows} measured steps"
        taken = f"{steps} took {self.factor:.3g} times what is predicted for them: step, rates and interval are calibrated by that"
        without = f"; left out: {'; '.join(self.left_out)}" if self.left_out else ""
        return Diagnostic("calibrated-by-measured", f"{taken}; the timeline is not{without}")


def at_level(p: Prediction, level: StepLevel) -> Prediction:
    """The prediction at the level of measured steps. Its parts keep their shares of the step."""
    time = level.applied(p.time, p.unknowns)
    longer = time.time_s / p.time.time_s
    if p.model_flops_utilization > longer:
        reached = p.model_flops_utilization / longer
        raise LumosError(f"the measured steps make this step so short that its devices reach {reached:.0%} of their peak; correct them")
    return replace(
        p,
        time=time,
        breakdown={part: seconds * longer for part, seconds in p.breakdown.items()},
        tokens_per_s_per_gpu=p.tokens_per_s_per_gpu / longer,
        model_flops_utilization=p.model_flops_utilization / longer,
        diagnostics=(level.note, *(d for d in p.diagnostics if d.code not in level.settled)),
        unknowns=tuple(u for u in p.unknowns if u.code not in level.settled),
    )


def level_of_tables(paths: Sequence[str], job: PlannedJob, switches: Mapping[str, str]) -> StepLevel:
    """The level that tables of measured steps, with the columns of `lumos.prediction.validate`, give predictions of `job`, whose framework
    ran where a row names none, with the `switches` that it was given. Rows of another accelerator or profile have a level of their own and
    are left out. Raises LumosError where no row is left."""
    given = {"framework": job.framework.name, "switches": ";".join(f"{key}={value}" for key, value in switches.items())}
    rows = [{**row, **{key: row.get(key) or value for key, value in given.items()}} for row in read_tables(paths)]
    return level_of([_of_the_kind(s, job) for s in score(rows)], ", ".join(paths))


def _of_the_kind(s: Scored, job: PlannedJob) -> Scored:
    """The row, or why it says nothing of `job`."""
    if s.job is None:
        return s
    ran, asked = ((j.cluster.accelerator.name, f"the profile {j.framework.name}") for j in (s.job, job))
    other = next((f"it ran on {a}, and the prediction is for {b}" for a, b in zip(ran, asked, strict=True) if a != b), None)
    return s if other is None else Scored(s.id, s.source, s.row, skipped=other)


def level_of(scored: Sequence[Scored], source: str) -> StepLevel:
    """The level of rows with their predictions. source: where they come from, for error messages."""
    good = [s for s in scored if s.predicted is not None]
    if not good:
        why = scored[0].skipped if scored else "there is no row"
        raise LumosError(f"{source}: no row can be compared with a prediction: {why}")
    logs = [log(s.measured_s / s.predicted.time_s) for s in good if s.predicted is not None]
    count = len(logs)
    middle = sum(logs) / count
    own = sum((value - middle) ** 2 for value in logs)
    deviation = sqrt((own + PRIOR_ROWS * RESIDUAL**2) / (count - 1 + PRIOR_ROWS))
    settled = frozenset.intersection(*(frozenset(o.code for o in s.unknowns) for s in good))
    left_out = tuple(f"{s.id}: {s.skipped}" for s in scored if s.predicted is None)
    return StepLevel(exp(middle), exp(_FOUR_OF_FIVE * deviation * sqrt(1 + 1 / count)) - 1, count, settled, left_out)
