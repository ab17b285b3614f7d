"""A replay compared with its measurement: the errors, and how much of the step the replay did not explain.

The time of a step is its period where the recording shows one (`analyze.loop.steps`), on each rank by its own completions. The start error
of a task compares its replayed and its measured start, each counted from where the time of its step begins (for a period, when the step
before was complete), as a fraction of the measured step. A step that is early or late as a whole is therefore not charged to every
task in it.

*Probes* are replays with extreme changes, which show whether waits are simulated or were copied from the trace. If they were copied, its
steps would keep their measured length when the GPU costs nothing; they would double with the CPU's time although the GPU sets the pace; and
when the CPU of one rank is slower, no other rank would be. Steps are those of the job's loop in the long run (`analyze.loop.steady`), with
each change as without it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.breakdown import FourWay, four_way
from lumos.analyze.device_load import busy_curves, busy_difference
from lumos.analyze.loop.steady import Steady, altered, steady
from lumos.analyze.loop.steps import Members, is_operation_level, members, step_times
from lumos.analyze.trust import Trust, trust
from lumos.analyze.waiting.idle import unexplained_times
from lumos.choices import check_choice
from lumos.errors import GraphError
from lumos.graph.operations.graph import operation_constants as operation_constants
from lumos.graph.table import DEPENDENCY_NAMES, Dependency, Graph, Kind
from lumos.result import Shown
from lumos.simulation import Timeline, measured, simulate
from lumos.simulation.durations import scale
from lumos.stages import stage

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from lumos.diagnostics import Diagnostic
    from lumos.vocabulary import Basis

#: What the constant of each kind of dependency is called.
_CONSTANT_NAMES = {
    Dependency.LAUNCH: "launch_latency_ns",
    Dependency.STREAM_ORDER: "kernel_gap_ns",
    Dependency.OCCUPANCY: "dispatch_ns",
    Dependency.STREAM_WAIT: "stream_wait_ns",
    Dependency.SYNC: "sync_return_ns",
    Dependency.COPY: "copy_return_ns",
    Dependency.HAND_OFF: "hand_off_ns",
}


class StartError(NamedTuple):
    """|replayed − measured start| as a fraction of the step; None where there are no tasks."""

    median: float | None
    p95: float | None


@dataclass(frozen=True, slots=True)
class BothRuns:
    """The four parts of a step, measured and replayed."""

    measured: FourWay
    replayed: FourWay


@dataclass(frozen=True, slots=True)
class StepReplay:
    """One step of one rank.

    basis: whether measured_ns and replayed_ns are the step's period or its latency. latency_ns: as measured. counts: whether the
    step counts in the figures of the job (`analyze.loop.window`). error: (replayed − measured) / measured, None where the measured step
    takes no time. utilization_error: mean absolute difference of the busy fractions per millisecond, None where both are empty. kept_wait,
    unexplained_idle, prefix, scored, unscored_reason: see `analyze.waiting.idle`.
    """

    rank: int
    name: str
    basis: Basis
    measured_ns: int
    replayed_ns: int
    latency_ns: int
    counts: bool
    error: float | None
    breakdown: BothRuns
    utilization_error: float | None
    kernel_start_error: StartError
    kept_wait: float
    unexplained_idle: float
    prefix: float
    scored: bool
    unscored_reason: str


@dataclass(frozen=True, slots=True, repr=False)
class ReplayResult(Shown):
    """A replayed job compared with its measurement; field names are those of `lumos replay --json`.

    step_time_ns, latency_ns, basis: of the job's step as measured, the mean over the steps that count. median_ns: of these steps.
    replayed_step_time_ns: the same as replayed.
    mean_abs_error, max_abs_error, exposed_communication_error: over scored steps, None where there are none.
    collective_start_error: over the collectives in the steps of all ranks. constants: by name, one value per rank, in the
    order of rank_numbers. trust: how far answers about the job can be trusted.
    """

    step_time_ns: int
    median_ns: int
    latency_ns: int
    basis: Basis
    replayed_step_time_ns: int
    ranks: int
    rank_numbers: tuple[int, ...]
    tasks: int
    dependencies: int
    steps: tuple[StepReplay, ...]
    mean_abs_error: float | None
    max_abs_error: float | None
    exposed_communication_error: float | None
    collective_start_error: StartError
    constants: dict[str, tuple[int, ...]]
    ignored: tuple[str, ...]
    trust: Trust
    diagnostics: tuple[Diagnostic, ...]

    @property
    def counted(self) -> tuple[StepReplay, ...]:
        """The steps that count in means."""
        return tuple(s for s in self.steps if s.counts)


@stage("comparing with the recording")
def replay(graph: Graph, timeline: Timeline | None = None, *, ignore: Collection[str] = ()) -> ReplayResult:
    """Compare a measured graph with its replay: `timeline`, or a simulation made here where that is not given.

    ignore: kinds of dependency that are left out, such as "occupancy". Raises UsageError for a kind that there is not, GraphError where the
    graph was not measured, where its dependencies contradict each other, or where no step owns a task.
    """
    graph = ignoring(graph, ignore)
    truth = measured(graph)
    timeline = timeline or simulate(graph)
    owners = members(graph)
    if not owners.steps:
        raise GraphError("no step contains any task, so there is nothing to compare: the profiler window may have cut every step")
    starts = start_errors(truth, timeline, owners)
    steps = _steps(truth, timeline, owners, starts)
    scored = [s for s in steps if s.scored and s.error is not None]
    errors = [abs(s.error) for s in scored if s.error is not None]
    times = step_times(truth, owners)
    return ReplayResult(
        step_time_ns=times.headline.step_time_ns,
        median_ns=times.headline.median_ns,
        latency_ns=times.headline.latency_ns,
        basis=times.basis,
        replayed_step_time_ns=step_times(timeline, owners).headline.step_time_ns,
        ranks=len(graph.ranks),
        rank_numbers=graph.ranks,
        tasks=len(graph),
        dependencies=dependencies(graph),
        steps=steps,
        mean_abs_error=float(np.mean(errors)) if errors else None,
        max_abs_error=max(errors, default=None),
        exposed_communication_error=_exposed_communication_error(graph, scored),
        collective_start_error=start_error(starts[(graph.kind == Kind.COLLECTIVE) & (owners.step >= 0)]),
        constants=replay_constants(graph),
        ignored=tuple(sorted(kind.word for kind in graph.ignored)),
        trust=trust(graph, timeline, owners),
        diagnostics=(*graph.diagnostics, *times.findings()),
    )


def ignoring(graph: Graph, kinds: Collection[str]) -> Graph:
    """The graph without dependencies of these kinds, by their names. Raises UsageError for a kind that there is not."""
    dropped = [DEPENDENCY_NAMES[check_choice(kind, DEPENDENCY_NAMES, "a kind of dependency")] for kind in kinds]
    return replace(graph, ignored=graph.ignored.union(*dropped)) if dropped else graph


def replay_constants(graph: Graph) -> dict[str, tuple[int, ...]]:
    """The constants that a replay uses, by name, one value per rank: delays of dependencies that are not zero, and the depth
    of a limited launch queue."""
    out: dict[str, tuple[int, ...]] = {}
    for kind in Dependency:
        if graph.lag[:, kind].any():
            name = _CONSTANT_NAMES.get(kind, f"{kind.name.lower()}_ns")
            out[name] = tuple(graph.lag[:, kind].tolist())
    if graph.queue_depth is not None and graph.queue_depth.any():
        out["queue_depth"] = tuple(graph.queue_depth.tolist())
    return {**out, **operation_constants(graph)} if is_operation_level(graph) else out


def dependencies(graph: Graph) -> int:
    """How many dependencies a graph has: edges, the implicit order on each processor, waits of calls and members of rendezvous."""
    per_processor = np.bincount(graph.processor, minlength=len(graph.processors))
    order = int(np.maximum(per_processor - 1, 0).sum())
    waits = len(graph.waits.task) if graph.waits is not None else 0
    return len(graph.pred) + order + waits + len(graph.rendezvous_task)


def relative(predicted: int, actual: int) -> float | None:
    """(predicted − actual) / actual; None where actual is 0."""
    return (predicted - actual) / actual if actual else None


def _steps(truth: Timeline, timeline: Timeline, owners: Members, starts: NDArray[np.float64]) -> tuple[StepReplay, ...]:
    times = [step_times(t, owners) for t in (truth, timeline)]
    parts = [four_way(t, owners, of_run.rank_intervals()) for t, of_run in zip((truth, timeline), times, strict=True)]
    curves = busy_curves((truth, timeline), owners)
    out = []
    of_job = times[0].of_ranks()
    for i, (step, figures) in enumerate(zip(owners.steps, unexplained_times(truth, owners), strict=True)):
        tasks = owners.tasks(i)
        actual, predicted = (of_run.ranks[i].length_ns for of_run in times)
        out.append(
            StepReplay(
                rank=step.rank,
                name=step.name,
                basis=times[0].ranks[i].basis,
                measured_ns=actual,
                replayed_ns=predicted,
                latency_ns=times[0].ranks[i].latency_ns,
                counts=of_job[i][1],
                error=relative(predicted, actual),
                breakdown=BothRuns(parts[0][i], parts[1][i]),
                utilization_error=busy_difference(*(run.steps[i] for run in curves)),
                kernel_start_error=start_error(starts[tasks[owners.on_device[tasks]]]),
                kept_wait=figures.kept_wait,
                unexplained_idle=figures.unexplained_idle,
                prefix=figures.prefix,
                scored=figures.scored,
                unscored_reason=figures.reason,
            )
        )
    return tuple(out)


def _exposed_communication_error(graph: Graph, scored: list[StepReplay]) -> float | None:
    if not scored or not (graph.kind == Kind.COLLECTIVE).any():
        return None
    runs = [s.breakdown for s in scored]
    shift = [abs(r.replayed.exposed_communication_ns - r.measured.exposed_communication_ns) for r in runs]
    return float(np.mean([d / s.measured_ns for d, s in zip(shift, scored, strict=True)]))


def start_errors(measured: Timeline, replayed: Timeline, owners: Members) -> NDArray[np.float64]:
    """Every task's start error as a fraction of its measured step; NaN where a task belongs to no step. float64[n]."""
    out = np.full(len(measured.start), np.nan)
    owned = np.flatnonzero(owners.step >= 0)
    step = owners.step[owned]
    truth, simulated = step_times(measured, owners).ranks, step_times(replayed, owners).ranks
    since, replayed_since = (np.array([time.since_ns for time in times], np.int64) for times in (truth, simulated))
    shift = (replayed.start[owned] - replayed_since[step]) - (measured.start[owned] - since[step])
    length = np.array([max(time.length_ns, 1) for time in truth], np.int64)
    out[owned] = np.abs(shift) / length[step]
    return out


def start_error(errors: NDArray[np.float64]) -> StartError:
    """Median and 95th percentile of errors without NaN."""
    if len(errors) == 0:
        return StartError(None, None)
    median, p95 = np.quantile(errors, (0.5, 0.95))
    return StartError(float(median), float(p95))


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
