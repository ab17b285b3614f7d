"""How much an answer depends on single rows of the recording.

Where a recording lacks one kernel in a thousand, together with the call that launched it, an answer should move by what the time of these
kernels does in it, and by no more. Where it moves further, it rests on something that these rows merely seemed to show, such as what a wait
awaits, and may be as wrong as it moved. The graph is built again for a few such recordings; rows are chosen at random, but always the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.steady import Steady, altered, steady
from lumos.analyze.loop.steps import members
from lumos.errors import LumosError
from lumos.graph.build import build
from lumos.graph.launches import device_work, of_graph_launches
from lumos.graph.table import Evidence
from lumos.simulation.durations import scale
from lumos.trace.operations import is_operations
from lumos.trace.table import Category
from lumos.units import count
from lumos.vocabulary import Grade

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lumos.analyze.loop.steps import Members
    from lumos.graph.table import Graph
    from lumos.trace.table import Int64, Job, Trace

#: With each of these, other kernels are chosen.
SEEDS = (1, 2)
#: Of the kernels, this share is left out, and at least one.
SHARE = 0.001
#: From so many kernels on, an answer is wrong that moves by more than its interval: in a smaller recording a kernel may matter.
MANY_PAIRS = 1000
#: An answer is the same where it moves by no more than this share of the step.
STILL = 0.005


@dataclass(frozen=True, eq=False)
class ProbedJob:
    """A job of which a few rows are left out; its graph is built when it is first asked for. kernels: those rows, of every rank's trace."""

    job: Job
    kernels: tuple[Int64, ...]

    @cached_property
    def base(self) -> tuple[Members, Steady]:
        """The steps of the job, with its graph, and its loop. Raises GraphError where they cannot be built."""
        owners = members(build(self.job))
        return owners, steady(owners)


class Probed(NamedTuple):
    """A job with rows left out in several ways; () where it has none that can be. pairs: how many kernels a call launched alone."""

    jobs: tuple[ProbedJob, ...]
    pairs: int


@lru_cache(maxsize=1)
def probed_jobs(job: Job) -> Probed:
    """The job with a few kernels and their launches left out, once for each of SEEDS."""
    if job.traces[0].metadata.get("format") or is_operations(job.traces[0]):
        return Probed((), 0)
    pairs = [launched_pairs(trace) for trace in job.traces]
    of_trace = np.repeat(np.arange(len(pairs)), [len(rows) for rows in pairs])
    if not len(of_trace):
        return Probed((), 0)
    every, jobs = np.concatenate(pairs), []
    for seed in SEEDS:
        chosen = np.random.default_rng(seed).choice(len(every), _left_out(len(every)), replace=False)
        gone = [every[chosen[of_trace[chosen] == i]].reshape(-1) for i in range(len(pairs))]
        traces = tuple(trace.without(rows) if len(rows) else trace for trace, rows in zip(job.traces, gone, strict=True))
        jobs.append(ProbedJob(replace(job, traces=traces), tuple(rows[::2] for rows in gone)))
    return Probed(tuple(jobs), len(every))


def launched_pairs(trace: Trace) -> Int64:
    """The rows of the kernels that a call launched alone, and of those calls, int64[k, 2]; no collectives, and none of CUDA graphs."""
    work = device_work(trace)
    launched, times = np.unique(work.call[work.call >= 0], return_counts=True)
    chosen = np.isin(work.call, launched[times == 1]) & (trace.category[work.row] == Category.KERNEL)
    chosen &= ~work.communicates & ~of_graph_launches(trace, work)
    return np.stack((work.row[chosen], work.call[chosen]), axis=1).astype(np.int64)


def probe_evidence(ratio: float, probed: Sequence[float], half_width: float, pairs: int) -> tuple[Evidence, ...]:
    """The finding that an answer moves by more than its interval where rows are left out; () where it does not.

    ratio: the changed step divided by that of the base. probed: the same of every job of `Probed`. half_width: of the interval of `ratio`.
    pairs: of `Probed`.
    """
    worst = max(probed, key=lambda probed_ratio: abs(probed_ratio - ratio))
    moved = abs(worst - ratio)
    if moved <= half_width:
        return ()
    message = (
        f"without {count(_left_out(pairs), 'kernel')} of {pairs:,} and the calls that launched them, the change would make the step"
        f" {worst:.3f} times as long instead of {ratio:.3f} times: the answer depends on single rows of the recording"
    )
    return (Evidence("probe", message, Grade.UNSOUND if pairs >= MANY_PAIRS else Grade.LIMITED, min(moved, 1.0)),)


def probe(
    job: Job, base: tuple[Members, Steady], answered: float, half_width: float, ask: Callable[[Job, Graph], Graph]
) -> tuple[Evidence, ...]:
    """The finding of `probe_evidence` for an answer that changes durations; () for a job that has no kernels to leave out.

    base: the job's steps, with its graph, and its loop. answered: the changed step divided by the base. half_width: of its interval.
    ask: the changed graph of a job. A job of which it cannot be asked, because what was left out is all that it names, is none the wiser.
    """
    several, ratios, most = probed_jobs(job), list[float](), max(half_width, STILL)
    for probed_job in several.jobs:
        try:
            ratio = _ratio(*probed_job.base, ask(probed_job.job, probed_job.base[0].graph))
        except LumosError:
            continue
        if abs(ratio - answered) > most:  # what the kernels themselves do is no dependence on their rows
            ratio += answered - _without(*base, ask(job, base[0].graph), probed_job.kernels)
        ratios.append(ratio)
    return probe_evidence(answered, ratios, most, several.pairs) if ratios else ()


def _without(owners: Members, base: Steady, changed: Graph, kernels: Sequence[Int64]) -> float:
    """What `_ratio` gives for the same two graphs where some kernels take no time. kernels: their rows, of every rank's trace."""
    graph = owners.graph
    rows = np.zeros(len(graph), bool)
    for position, gone in enumerate(kernels):
        rows |= graph.on_device & (graph.position_of_task == position) & np.isin(graph.event, gone)
    before = altered(base, replace(owners, graph=scale(graph, rows, 0.0)))
    return _ratio(owners, before, scale(changed, rows, 0.0))


def probe_of_base(job: Job, owners: Members, base: Steady, changed: Graph | None = None) -> tuple[Evidence, ...]:
    """The same for the job itself, asked for all device work in half its time: how far an answer that is not asked again may be off.
    owners, base: its steps and its loop. changed: the job of that answer; device work is then asked to take as many times as long as the
    answer lets it beside the work of the CPU, since that is what decides which of the two waits. In a recording of fewer than MANY_PAIRS
    kernels one of them is too much of the job to tell."""
    if probed_jobs(job).pairs < MANY_PAIRS:
        return ()
    times = 0.5 if changed is None else _device_beside_cpu(changed) / _device_beside_cpu(owners.graph)

    def asked(_: Job, graph: Graph) -> Graph:
        return scale(graph, graph.on_device, times)

    evidence = probe(job, (owners, base), _ratio(owners, base, asked(job, owners.graph)), 0.0, asked)
    return tuple(reason._replace(grade=Grade.LIMITED) for reason in evidence)


def _device_beside_cpu(graph: Graph) -> float:
    """The time of all work of devices as a multiple of that of the CPU."""
    cpu, device = np.bincount(graph.on_device, graph.duration, 2)
    return max(float(device), 1.0) / max(float(cpu), 1.0)


def _ratio(owners: Members, base: Steady, changed: Graph) -> float:
    """What a changed graph takes for a step, divided by what the base takes."""
    return altered(base, replace(owners, graph=changed)).step_time_ns / max(base.step_time_ns, 1)


def _left_out(pairs: int) -> int:
    """How many kernels are left out of so many."""
    return max(1, round(SHARE * pairs))
