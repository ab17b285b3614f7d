"""The base of an answer, held against what was measured.

An answer compares two simulated loops, and its base is the loop of the recorded steps. So before anything else the base must take what they
took: as far as a recording tells (`analyze.loop.noise`) its answers are sound; up to NEAR they are limited; beyond that they are unsound,
since what sets the pace of the job is not what sets that of the simulated loop. Their intervals hold the difference. Of a recording without
periods the replayed latency is compared, with all that happens once in both. The loop of a single step can be compared with nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.analyze.loop.noise import resolution
from lumos.analyze.loop.steps import step_times
from lumos.graph.table import Evidence
from lumos.simulation import simulate
from lumos.units import duration
from lumos.vocabulary import Basis, Grade

if TYPE_CHECKING:
    from lumos.analyze.loop.steady import Steady
    from lumos.analyze.loop.steps import StepTimes
    from lumos.graph.table import Graph

#: The share of the measured step up to which the base is near it.
NEAR = 0.05


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
