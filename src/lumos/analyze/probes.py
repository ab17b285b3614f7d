"""Replays with extreme changes, which show whether waits are simulated or were copied from the trace.

Suppose that a replay copied its waits from the trace. Then its steps would keep their measured length when the GPU costs
nothing; they would double with the CPU's time although the GPU sets the pace; and when the CPU of one rank is slower, no other
rank would be.

Steps are those of the job's loop in the long run (`analyze.loop.steady`), with each change as without it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.loop.steady import Steady, altered, steady
from lumos.analyze.loop.steps import members
from lumos.graph.table import Graph, Kind
from lumos.result import Shown
from lumos.simulation.durations import scale
from lumos.stages import stage

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The factor by which `slow_rank` stretches a rank's CPU work.
SLOW = 1.5


@dataclass(frozen=True, slots=True, repr=False)
class Probes(Shown):
    """Step times relative to the plain replay; None where there is nothing to change or to compare.

    gpu_zero: the step with every device duration at zero. cpu_double: the step with all CPU work twice as long. slow_rank: by
    slowed rank, in the order of `Graph.ranks`, the mean over the steps of the other ranks when that rank's CPU work takes SLOW
    times as long.
    """

    gpu_zero: float | None
    cpu_double: float | None
    slow_rank: tuple[float | None, ...]


@stage("probing")
def probes(graph: Graph) -> Probes:
    """Replay the loop of a measured graph with device work that takes no time, with CPU work that takes twice as long, and with
    each rank slowed in turn. Raises GraphError where no step contains any work."""
    owners = members(graph)
    base = steady(owners)
    device = owners.on_device
    cpu = ~device & (graph.kind != Kind.COLLECTIVE)

    def stretched(tasks: NDArray[np.bool_], factor: float) -> Steady:
        return altered(base, replace(owners, graph=scale(graph, tasks, factor)))

    def others(rank: int) -> float | None:
        slowed = stretched(cpu & (owners.rank == rank), SLOW)
        ratios = [slowed.of_rank(other) / base.of_rank(other) for other in range(len(graph.ranks)) if other != rank and base.of_rank(other)]
        return float(np.mean(ratios)) if ratios else None

    def ratio(changed: Steady) -> float | None:
        return changed.step_time_ns / base.step_time_ns if base.step_time_ns else None

    return Probes(
        gpu_zero=ratio(stretched(device, 0.0)) if device.any() else None,
        cpu_double=ratio(stretched(cpu, 2.0)) if cpu.any() else None,
        slow_rank=tuple(others(rank) if len(graph.ranks) > 1 else None for rank in range(len(graph.ranks))),
    )
