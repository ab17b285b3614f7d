"""How far the step of an unchanged job is known: how far its base is off, and how much its steps differ among themselves.

An answer compares two simulated loops, and its base is the loop of the recorded steps. So before anything else the base must take what they
took: as far as a recording tells its answers are sound; up to NEAR they are limited; beyond that they are unsound, since what sets the pace
of the job is not what sets that of the simulated loop. Their intervals hold the difference. Of a recording without periods the replayed
latency is compared, with all that happens once in both. The loop of a single step can be compared with nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.loop.steady import AGREE
from lumos.analyze.loop.steps import Members, StepTimes, step_times
from lumos.diagnostics import Diagnostic
from lumos.graph.table import Evidence
from lumos.simulation import measured, simulate
from lumos.units import count, duration
from lumos.vocabulary import Basis, Grade

if TYPE_CHECKING:
    from lumos.analyze.loop.steady import Steady
    from lumos.graph.table import Graph

#: The share of the measured step up to which the base is near it.
NEAR = 0.05
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


def identity(graph: Graph, base: Steady, times: StepTimes) -> tuple[float, tuple[Evidence, ...]]:
    """How far the base is from the measured step, as a signed fraction of it, and what follows for answers.

    graph: the job. base: its loop. times: its steps as measured or, where it never was, as simulated.
    """
    alone = base.basis is Basis.PERIOD and times.basis is Basis.LATENCY
    if base.basis is Basis.PERIOD and not alone:
        again = base.step_time_ns
    else:  # simulated with what happens once, as it was measured
        again = step_times(base.timeline if graph.one_off is None and not alone else simulate(graph), times.owners).mean_ns
    off = again / times.mean_ns - 1 if times.mean_ns else 0.0
    evidence = []
    if alone:
        message = "the recording shows no period, so the loop of its step can be held against no measurement"
        evidence.append(Evidence("no-period", message, Grade.LIMITED))
    if abs(off) > min(resolution(times), NEAR) and graph.measured_start is not None:
        cause = "dependencies are ignored" if graph.ignored else "what sets its pace is not in the recording, or not in the simulation"
        message = f"the simulated base takes {duration(again)} a step, and {duration(times.mean_ns)} were measured ({off:+.1%}): {cause}"
        evidence.append(Evidence("base-off", message, Grade.LIMITED if abs(off) <= NEAR else Grade.UNSOUND))
    return off, tuple(evidence)


def resolution(times: StepTimes) -> float:
    """The share of a step up to which an answer is not known better whatever the recording shows: how much its steps differ, and at least
    FEW_STEPS. What leaves no more of the step unknown makes an answer none the worse."""
    return max(step_spread(times), FEW_STEPS)


def spread(times: StepTimes, off: float) -> float:
    """Half-width of the 80 % interval of an unchanged job, as a fraction of the step: how far the simulated base is off, and how much the
    steps that count differ among themselves. No answer from a trace has a narrower interval.

    times: the steps as `step_times_of` gives them. off: of `identity`.
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
