"""What a recording does not show of the job, but a change can bring to bear: the answer's interval then holds it, and limits the answer
where it is wider for it than what the change does.

Five such things are known. Where no kernel ever waited for the one before it, the gap between two kernels was never measured, and a change
that makes the device set the pace depends on it: the changed job is simulated with the least and the most that the gap may be. A thread
beside the loop, such as a loader's, may come to have more work for a step than the step takes; nothing in the recording waited for it, but
it cannot lag behind without end. And where batches come from processes that a recording lacks, and are always ready, those processes were
seen to keep up with the recorded step and with no shorter one: the step of a faster job may lie anywhere up to the recorded one. Where
waits are left out, calls behind them that found the device idle may come to wait. The times of the CPU of an emulated job, at last, are
a model's.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.bounds import busiest_beside
from lumos.analyze.loop.noise import FEW_STEPS
from lumos.analyze.loop.steady import AGREE
from lumos.graph.evidence import NEGLIGIBLE
from lumos.graph.lists import list_of
from lumos.graph.loaders import from_processes
from lumos.graph.table import Dependency, Evidence, Kind
from lumos.simulation import simulate
from lumos.simulation.durations import scale
from lumos.trace.table import Category, unique
from lumos.units import duration
from lumos.vocabulary import Grade

if TYPE_CHECKING:
    from lumos.analyze.loop.steady import Steady
    from lumos.graph.table import Graph
    from lumos.trace.table import Job


#: Calls that ask whether device work is done.
_QUERY = re.compile(r"(cuda|hip|cu)(Event|Stream)Query")
#: What hosts take for the work of the CPU, as multiples of what the emulation says: the least and the most of 13 public recordings
#: (`tools.fit_host`).
OTHER_HOSTS = 0.42, 4.3
#: The share of the changed step's critical path that may be modelled in a sound answer.
MOST_MODELLED = 0.1


class Unmeasured(NamedTuple):
    """Between which times, ns, the step of a changed job lies by what was not measured, and what is found about it."""

    low_ns: float
    high_ns: float
    evidence: tuple[Evidence, ...]


def on_other_hosts(base: Steady, changed: Steady) -> tuple[float, ...]:
    """The changed step of an emulated job beside its base as it is said, seconds, where it differs from that by as much as it would on the
    quickest and on the slowest of OTHER_HOSTS."""
    steps = zip(_on_hosts(base), _on_hosts(changed), strict=True)
    return tuple(1e-9 * max(base.step_time_ns - (was - becomes), 0) for was, becomes in steps)


@lru_cache(maxsize=2)
def _on_hosts(loop: Steady) -> tuple[float, ...]:
    """The step of a loop on each of OTHER_HOSTS, ns. That of the base is kept for the next change."""
    graph = loop.loop.graph
    works = ~graph.on_device & np.isin(graph.kind, (Kind.OPERATOR, Kind.HOST, Kind.LAUNCH, Kind.RUNTIME))
    return tuple(replace(loop, timeline=simulate(scale(graph, works, factor))).step_time_ns for factor in OTHER_HOSTS)


def mostly_modelled(share: float) -> tuple[Evidence, ...]:
    """The finding that models alone price too much of a changed step's critical path. share: of it."""
    if share <= MOST_MODELLED:
        return ()
    message = f"{share:.0%} of the changed step's critical path has prices of models, as the recording has nothing like it"
    return (Evidence("mostly-modelled", message, Grade.LIMITED),)


def unmeasured(base: Steady, changed: Steady) -> Unmeasured:
    """What gaps between kernels that were not measured, and threads beside the loop, may make of the step of a changed job. base: the loop
    before the change."""
    low, high, evidence = _by_gaps(changed)
    work, where = busiest_beside(changed)
    if work > (1 + AGREE) * changed.step_time_ns:
        # Its pauses may be work too, of which no row tells: then it took the whole step before, and takes longer by what its work does.
        most = max(work, base.step_time_ns + max(work - busiest_beside(base)[0], 0.0))
        message = (
            f"{where} works beside the loop and has {duration(work)} of work for a step of {duration(changed.step_time_ns)}: it cannot lag"
            " behind without end, though how far the loop may run ahead of it the recording does not show"
        )
        high, evidence = max(high, most), (*evidence, Evidence("thread-beside", message, Grade.SOUND))
    return Unmeasured(low, high, evidence)


def _by_gaps(changed: Steady) -> Unmeasured:
    """The same of gaps alone."""
    graph, step = changed.loop.graph, changed.step_time_ns
    if graph.gap_range is None:
        return Unmeasured(step, step, ())
    ends = []
    for gap in graph.gap_range.T:
        lag = graph.lag.copy()
        lag[:, Dependency.STREAM_ORDER] = gap
        ends.append(replace(changed, timeline=simulate(replace(graph, lag=lag))).step_time_ns)
    low, high = min(ends), max(ends)
    moved = max(step - low, high - step) / max(step, 1)
    if moved <= NEGLIGIBLE:
        return Unmeasured(low, high, ())
    least, most = int(graph.gap_range[:, 0].min()), int(graph.gap_range[:, 1].max())
    message = (
        "no kernel of the recording ever waited for the one before it, so the gap between two is not known; with"
        f" {duration(least)} the step takes {duration(low)}, with {duration(most)} {duration(high)}"
    )
    return Unmeasured(low, high, (Evidence("kernel-gap-unmeasured", message, Grade.LIMITED if moved > FEW_STEPS else Grade.SOUND),))


def loader_unseen(job: Job, base_s: float, changed_s: float) -> str:
    """Why a faster step may have to wait for batches; "" where it need not. base_s, changed_s: the step before and after the change, s."""
    if changed_s >= base_s or not any(len(from_processes(trace)) for trace in job.traces):
        return ""
    return (
        f"batches come from processes that are not recorded; they kept up with a step of {duration(1e9 * base_s)}, and whether they"
        f" can with {duration(1e9 * changed_s)} is not known"
    )


def inferred_event_waits(graph: Graph, job: Job) -> tuple[str, ...]:
    """The names of the calls that wait for events where it is inferred for which: the latest that their times do not refute, where it may
    have been an earlier one."""
    on_event = list_of(graph.pred_offset)[graph.pred_kind == Dependency.SYNC]
    known = any((trace.category == Category.SYNC).any() for trace in job.traces)
    return () if known else tuple(graph.names[i] for i in unique(graph.name[on_event]).tolist())


def asks_for_events(graph: Graph) -> bool:
    """Whether a thread that takes part in the steps asks whether device work is done, as one does that waits for it."""
    beside = np.array([p.timer for p in graph.processors])
    return bool((graph.named(_QUERY.match) & ~beside[graph.processor]).any())
