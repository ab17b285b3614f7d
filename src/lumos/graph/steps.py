"""The training steps that the profiler marked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.table import Step
from lumos.trace.once import once_a_trace
from lumos.trace.table import Category, Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: How torch.profiler names the range of one step; in the oldest traces its category is that of operators.
MARK = "ProfilerStep"


@once_a_trace
def is_step_mark(trace: Trace) -> NDArray[np.bool_]:
    """Rows that mark a step. They are ranges over work, never work."""
    return np.asarray(trace.named(lambda name: name.startswith(MARK)) & trace.is_any(Category.ANNOTATION, Category.OPERATOR))


def steps(trace: Trace) -> tuple[Step, ...]:
    """The marked steps in order of start; the whole recording as one step where none is marked."""
    rows = np.flatnonzero(is_step_mark(trace))
    if not len(rows):
        work = trace.is_any(Category.OPERATOR, Category.RUNTIME, Category.KERNEL, Category.MEMCPY, Category.MEMSET)
        begin = int(trace.start[work].min(initial=np.iinfo(np.int64).max))
        finish = int((trace.start[work] + trace.duration[work]).max(initial=0))
        return (Step(trace.rank, "whole trace", begin, finish + 1),) if work.any() else ()
    rows = rows[np.argsort(trace.start[rows], kind="stable")]
    start, end, lane = trace.start[rows].tolist(), (trace.start[rows] + trace.duration[rows]).tolist(), trace.lane[rows].tolist()
    return tuple(Step(trace.rank, *facts) for facts in zip((trace.strings[i] for i in trace.name[rows]), start, end, lane, strict=True))


def number_of(name: str) -> int | None:
    """The number of a step, from its name such as ProfilerStep#12; None without one."""
    match = re.search(r"#(\d+)$", name)
    return None if match is None else int(match[1])
