"""Changes that leave no job (blocks that fit in no order, more tasks than a machine holds, or next to nothing), and work that no device of
its kind does in so little time.

A pattern that matches more than was meant (`--drop '*'`), or a factor of next to nothing, takes away the job itself. What then remains of
a step is gaps, latencies and the offsets with which threads began, which is no job's time: it is an error. Where only the devices or only
the threads of a rank are left without work, the step is a bound: no faster device, or no faster CPU, could make it shorter.

A factor on durations may ask for work above the peak rate of the device's arithmetic, or of its memory. Then the step would take longer by
what is missing to that rate. For multiplications, convolutions and attention it is the rate of the number format in which the operator
computes; in fp32 that of tf32 where the device has it, since shapes do not show which of the two runs. Operators whose bytes follow from
their shapes (`cost.traffic`) read and write all but what the device's last cache may hold at its memory's data sheet rate. Work that is
left out, or takes no time, is taken as not needed; work that was measured above the peak rate is not what its shapes say, and is left
alone.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.flops import counted_operators
from lumos.analyze.loop.noise import FEW_STEPS
from lumos.analyze.loop.steps import members
from lumos.cost.traffic import traffic
from lumos.errors import GraphError, LumosError
from lumos.graph.places import innermost
from lumos.graph.table import Evidence
from lumos.operators.shaped import type_of
from lumos.segment.program import shapes_of
from lumos.trace.once import once_a_trace
from lumos.units import duration
from lumos.vocabulary import DType, Grade

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from lumos.cost.cluster import Accelerator
    from lumos.graph.table import Graph
    from lumos.operators.shaped import ShapedOperator
    from lumos.trace.table import Int64, Job, Trace

#: The most tasks of a changed job: 25 million take some 8 GB and one to two minutes.
MOST_CHANGED = 25_000_000
#: Memory for each task of a changed job, bytes, with the loop in which it is simulated (measured on jobs of 6 and 24 million tasks).
BYTES_A_TASK = 340


@contextmanager
def schedulable(changes: str) -> Iterator[None]:
    """Raise LumosError where a job that was put together anew has no schedule. changes: what was changed.

    The ranks of such a recording were cut in different ways, so that each repeats, leaves out or moves other collectives than its peers.
    """
    try:
        yield
    except GraphError as error:
        lines = str(error).splitlines()
        why = "; ".join(line.strip() for line in (lines[0], *(line for line in lines[1:] if "different orders" in line)))
        raise LumosError(
            f"{changes}: the changed job could not run ({why}): the blocks of this recording, cut on each rank, do not fit together in"
            " another order; lumos inspect --blocks shows them"
        ) from error


def check_size(tasks: int, wanted: Mapping[str, int], measured: Mapping[str, int]) -> None:
    """Raise LumosError where the changed job would have more than MOST_CHANGED tasks, with what it would take.

    tasks: of the measured job. wanted: the settings that are whole numbers. measured: the counts of the measured job that multiply its
    tasks, by key.
    """
    changed = tasks
    for key, count in measured.items():
        changed = -(-changed * wanted.get(key, count) // count) if count else changed
    if changed <= MOST_CHANGED:
        return
    words = ", ".join(f"{key}={wanted[key]}" for key in measured if key in wanted)
    raise LumosError(
        f"--set {words}: the changed job would have about {changed:,} tasks instead of {tasks:,}, and take some"
        f" {changed * BYTES_A_TASK / 1e9:,.0f} GB of memory; at most {MOST_CHANGED:,} tasks are computed. Ask for two smaller values: the"
        " step grows in proportion to what is repeated"
    )


#: The code of the finding.
SIDE_LEFT_OUT = "side-left-out"
#: A rank of whose work a smaller share remains does not do its part of the job any more: no device or code is so much faster. From V100 to
#: B200 the fastest arithmetic of a device became eighteen times as fast (`cost/data/clusters`).
LEAST_LEFT = 0.02


class _Side(NamedTuple):
    """The devices or the threads of the ranks. was, remains: int64[ranks], the time of their work before and after, ns."""

    name: str
    bound: str
    was: Int64
    remains: Int64

    @property
    def gone(self) -> NDArray[np.bool_]:
        """The ranks that had work on this side and have next to none, bool[ranks]."""
        gone: NDArray[np.bool_] = (self.was > 0) & (self.remains < LEAST_LEFT * self.was)
        return gone


def check_left(before: Graph, after: Graph, words: str) -> None:
    """Raise LumosError where changed durations leave a rank of `before` next to no work, neither on its devices nor on its threads. after:
    the same graph with them. words: what was changed."""
    sides = _sides(before, after)
    lost = np.all([side.gone | (side.was == 0) for side in sides], axis=0) & np.any([side.gone for side in sides], axis=0)
    for i in np.flatnonzero(lost)[:1].tolist():
        whole, left = (sum(int(time[i]) for time in times) for times in zip(*((s.was, s.remains) for s in sides), strict=True))
        raise LumosError(
            f"{words}: of {duration(whole)} of work on rank {before.ranks[i]}, {duration(left)} would be left: that is no job whose step"
            " could be told. Name the work that would not be needed, or a factor that other code or another device could reach"
        )


def sides_left_out(before: Graph, after: Graph) -> tuple[Evidence, ...]:
    """The finding that next to no work is left on the devices, or on the threads, of a rank; () where there is some, or was none."""
    for side in _sides(before, after):
        for rank in np.flatnonzero(side.gone)[:1].tolist():
            where = f"no work is left on the {side.name} of rank {before.ranks[rank]}"
            message = f"{where}: the step is the shortest that its {side.bound} would allow, which no job reaches"
            return (Evidence(SIDE_LEFT_OUT, message, Grade.LIMITED),)
    return ()


def _sides(before: Graph, after: Graph) -> tuple[_Side, _Side]:
    position = {rank: i for i, rank in enumerate(before.ranks)}
    key = np.array([2 * position[p.rank] + p.is_stream for p in before.processors], np.int64)[before.processor]
    was, remains = (np.bincount(key, graph.duration, 2 * len(position)).astype(np.int64).reshape(-1, 2).T for graph in (before, after))
    return _Side("devices", "CPU", was[1], remains[1]), _Side("threads", "devices", was[0], remains[0])


#: The code of the finding.
ABOVE_PEAK_RATE = "above-peak-rate"


class LeastTimes(NamedTuple):
    """What the work of a rank's step takes at least. tasks: its kernels of operators of which that is known. call: of each, the number of
    the operator's call. least_ns: float64, of each call."""

    tasks: Int64
    call: Int64
    least_ns: NDArray[np.float64]


def least_times(graph: Graph, job: Job, accelerator: Accelerator) -> tuple[LeastTimes, ...]:
    """What the work of a step takes at least on a device, the last one that counts, for each rank that has a part in it."""
    owners = members(graph)
    by_rank = []
    for part in owners.job[owners.counted[-1]].parts:
        tasks = owners.tasks(part)
        tasks = tasks[owners.on_device[tasks] & (owners.launch[tasks] >= 0)]
        if len(tasks):
            calls = graph.event[owners.launch[tasks]].astype(np.int64)
            by_rank.append(_of_rank(job.traces[int(owners.rank[tasks[0]])], tasks, calls, accelerator))
    return tuple(by_rank)


def _of_rank(trace: Trace, tasks: Int64, launches: Int64, accelerator: Accelerator) -> LeastTimes:
    """The least times of kernels of one rank. launches: the row that launches each."""
    counted, shapes = counted_operators(trace), shapes_of(trace)
    moves = _memory_ns(_moved_bytes(trace), accelerator)
    moving = shapes.rows
    rows = innermost(trace, np.array(sorted(counted), np.int64), launches)
    by_memory = innermost(trace, moving[moves[shapes.of_row[moving]] > 0], launches)
    rows = np.where(rows >= 0, rows, by_memory)
    tasks, rows = tasks[rows >= 0], rows[rows >= 0]
    unique, call = np.unique(rows, return_inverse=True)
    least = [
        _arithmetic_ns(shapes[row], counted[row][1], accelerator) if row in counted else float(moves[shapes.of_row[row]])
        for row in unique.tolist()
    ]
    return LeastTimes(tasks, call, np.array(least, np.float64))


def _arithmetic_ns(o: ShapedOperator | None, flops: float, accelerator: Accelerator) -> float:
    """What operations take at the peak rate of an operator's type, ns; 0 where that is not known."""
    dtype = type_of(o) if o is not None else None
    types = (DType.FP32, DType.TF32) if dtype is DType.FP32 else (dtype,)
    rate = max((accelerator.peak_flops[t] for t in types if t in accelerator.peak_flops), default=None)
    return 1e9 * flops / rate if rate else 0.0


@once_a_trace
def _moved_bytes(trace: Trace) -> NDArray[np.float64]:
    """What each operator with shapes reads and writes, bytes; 0 where that is not known. There is one entry for a trace without any."""
    rules = [traffic(o) if any(o.shapes) else None for o in shapes_of(trace).operators]
    return np.array([0.0 if rule is None else rule[1] for rule in rules] or [0.0])


def _memory_ns(moved: NDArray[np.float64], accelerator: Accelerator) -> NDArray[np.float64]:
    """What that takes beyond what a cache may hold, ns; 0 where the device's rates are not known."""
    if accelerator.memory_bytes_per_s is None or accelerator.cache_bytes is None:
        return np.zeros(len(moved))
    return 1e9 * np.maximum(moved - accelerator.cache_bytes, 0.0) / accelerator.memory_bytes_per_s


def missing_ns(least: tuple[LeastTimes, ...], before: Int64, after: Int64) -> float:
    """By how much the changed work of a rank's step is shorter than at the peak rate, the most over the ranks, ns. before, after: the
    durations of all tasks of the job, ns."""
    missing = 0.0
    for tasks, call, of_call in least:
        was, becomes = (np.bincount(call, times[tasks], len(of_call)) for times in (before, after))
        counts = (becomes > 0) & (was >= of_call)
        missing = max(missing, float(np.maximum(of_call - becomes, 0.0)[counts].sum()))
    return missing


def above_peak_rate(
    graph: Graph,
    altered: Graph,
    job: Job,
    accelerator: Accelerator | None,
    step_s: float,
    least: tuple[LeastTimes, ...] | None = None,
) -> tuple[Evidence, ...]:
    """The finding that work of a step takes less time than the device needs at its peak rate; () where it is negligible.

    altered: `graph` with other durations. accelerator: on which the job runs; None where that is not known. step_s: the measured step,
    of which the finding gives a share, seconds. least: of `least_times`, for callers that ask more than once.
    """
    if accelerator is None or not (graph.on_device & (altered.duration < graph.duration)).any():
        return ()
    missing = missing_ns(least_times(graph, job, accelerator) if least is None else least, graph.duration, altered.duration)
    if missing <= FEW_STEPS * 1e9 * step_s:
        return ()
    message = (
        f"the changed step has work above the peak rate of {accelerator.name}, of its arithmetic or of its memory: at that rate it takes"
        f" {duration(missing)} a step more"
    )
    return (Evidence(ABOVE_PEAK_RATE, message, Grade.LIMITED, min(missing / (1e9 * step_s), 1.0)),)
