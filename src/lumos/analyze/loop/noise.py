"""How far the step of an unchanged job is known: how far its base is off, and how much its steps differ among themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.loop.steady import AGREE
from lumos.analyze.loop.steps import Members, StepTimes, step_times
from lumos.diagnostics import Diagnostic
from lumos.simulation import measured, simulate
from lumos.units import count

if TYPE_CHECKING:
    from lumos.graph.table import Graph

#: Half-width of the 80 % interval of a normal distribution, in standard deviations.
Z80 = 1.2816
#: Standard deviation of a normal distribution, divided by the median distance from its median.
NORMAL = 1.4826
#: The fewest steps from which the spread of the steps is estimated by the distance from their median.
_FEWEST = 3
#: The 90th percentile of Student's t with one degree of freedom, tan(0.4 π): two steps have one.
T80_OF_TWO = 3.0777
#: Half-width of the interval of a step, as a fraction, where there is one: no replay of a public trace is that far off in a scored
#: step (validation/results/replay.md).
FEW_STEPS = 0.02


def resolution(times: StepTimes) -> float:
    """The share of a step up to which an answer is not known better whatever the recording shows: how much its steps differ, and at least
    FEW_STEPS. What leaves no more of the step unknown makes an answer none the worse."""
    return max(step_spread(times), FEW_STEPS)


def spread(times: StepTimes, off: float) -> float:
    """Half-width of the 80 % interval of an unchanged job, as a fraction of the step: how far the simulated base is off, and how much the
    steps that count differ among themselves. No answer from a trace has a narrower interval.

    times: the steps as `step_times_of` gives them. off: of `analyze.loop.identity`.
    """
    return max(float(np.hypot(off, step_spread(times))), AGREE)


def step_times_of(graph: Graph, owners: Members) -> StepTimes:
    """The steps of a job as measured or, where it never was, as simulated."""
    return step_times(simulate(graph) if graph.measured_start is None else measured(graph), owners)


def step_spread(times: StepTimes) -> float:
    """Half-width of the 80 % interval in which the steps of a job lie, as a fraction, from the median distance from the median step;
    of two steps, from their difference; FEW_STEPS of one. It is no less than that of their mean: of steps that are mostly of one length
    the median tells nothing of the others. Steps that come round in a cycle differ by design: of them it says how far each is from the one
    a cycle before."""
    lengths = np.array([step.length_ns for step in times.counted], float)
    middle = np.median(lengths) if len(lengths) > 1 else 0.0
    if not middle:
        return FEW_STEPS
    if cycle := times.owners.cycle:
        apart = lengths[cycle:] - lengths[:-cycle]
        return float(Z80 * np.sqrt(np.square(apart).mean() / 2) / lengths.mean()) if len(apart) else FEW_STEPS
    if len(lengths) < _FEWEST:
        return float(T80_OF_TWO * lengths.std(ddof=1) / middle)
    of_mean = lengths.std(ddof=1) / len(lengths) ** 0.5 / lengths.mean()
    return float(Z80 * max(NORMAL * np.median(np.abs(lengths - middle)) / middle, of_mean))


def noise_unknown(times: StepTimes) -> tuple[Diagnostic, ...]:
    """The diagnostic for a trace with too few steps to estimate how much they differ; () where it has more than one."""
    counted = len(times.counted)
    if counted > 1:
        return ()
    message = (
        f"the trace has {count(counted, times.basis)} of its step, which does not show how much steps differ: the interval takes"
        f" {FEW_STEPS:.0%} for that; record {_FEWEST + 1} steps or more that follow one another"
    )
    return (Diagnostic("step-noise-unknown", message),)


def measured_step(graph: Graph, times: StepTimes) -> float | None:
    """The time of the job's step as recorded, in seconds; None for a graph that was never measured. times: of `graph`, by
    `step_times_of`."""
    return None if graph.measured_start is None else times.mean_ns * 1e-9
