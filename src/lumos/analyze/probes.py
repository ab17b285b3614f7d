"""Replays with extreme changes, which show whether waits are simulated or were copied from the trace.

Suppose that a replay copied its waits from the trace. Then its steps would keep their measured length when the GPU costs
nothing; they would double with the CPU's time although the GPU sets the pace; and when the CPU of one rank is slower, no other
rank would be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.steps import Members, lengths, members
from lumos.graph.table import Graph, Kind
from lumos.result import Shown
from lumos.simulate import Timeline, simulate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.trace.table import Int64

#: The factor by which `slow_rank` stretches a rank's CPU work.
SLOW = 1.5


@dataclass(frozen=True, slots=True, repr=False)
class Probes(Shown):
    """Step times relative to the plain replay; None where there is nothing to change or to compare.

    gpu_zero: all steps with every device duration at zero. cpu_double: all steps with all CPU work twice as long. slow_rank:
    by slowed rank, in the order of `Graph.ranks`, the mean over the steps of the other ranks when that rank's CPU work takes
    SLOW times as long.
    """

    gpu_zero: float | None
    cpu_double: float | None
    slow_rank: tuple[float | None, ...]


def probes(graph: Graph, timeline: Timeline | None = None) -> Probes:
    """Replay the graph with each change. timeline: its plain replay, simulated here where not given."""
    owners = members(graph)
    base = lengths(timeline or simulate(graph, graph.duration), owners)
    device, cpu = owners.on_device, _cpu_work(owners)

    def stretched(tasks: NDArray[np.bool_], factor: float) -> Int64:
        durations = np.where(tasks, np.rint(graph.duration * factor), graph.duration).astype(np.int64)
        return lengths(simulate(graph, durations), owners)

    return Probes(
        gpu_zero=_ratio(stretched(device, 0.0), base) if device.any() else None,
        cpu_double=_ratio(stretched(cpu, 2.0), base) if cpu.any() else None,
        slow_rank=tuple(
            _others(stretched(cpu & (owners.rank == rank), SLOW), base, owners.step_rank() != rank) if len(graph.ranks) > 1 else None
            for rank in range(len(graph.ranks))
        ),
    )


def _cpu_work(owners: Members) -> NDArray[np.bool_]:
    """Tasks that are work of a CPU: all but device tasks and collectives."""
    work: NDArray[np.bool_] = ~owners.on_device & (owners.graph.kind != Kind.COLLECTIVE)
    return work


def _ratio(changed: Int64, base: Int64) -> float | None:
    total = int(base.sum())
    return int(changed.sum()) / total if total else None


def _others(changed: Int64, base: Int64, others: NDArray[np.bool_]) -> float | None:
    counted = others & (base > 0)
    return float((changed[counted] / base[counted]).mean()) if counted.any() else None
