"""Operation-level recordings: forward and backward passes, transfers and collectives as rows, without kernels.

Some training systems record no profiler trace but a few hundred operations per step, with their place in the parallel
plan. Such a recording becomes a `Trace` whose rows are operations (`Category.OPERATOR`) with the names of Megatron's timers,
on the lanes of `LANE_OF`, with the place as arguments: "microbatch", "chunk" (of the model, within the stage), "sequence"
(number among the operations of its name, rank and step), "stage" and "dp rank". Each step is marked by an annotation
"ProfilerStep#N". `Trace.metadata["operations"]` has the format and the sizes of the plan.

Recordings of this kind give times only within a step, each step on a clock of its own; in the trace, each step begins when
the one before it has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumos.trace.table import ABSENT, Category, Column, Int64, Lane, Trace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.diagnostics import Diagnostic

#: The lane that runs an operation. Compute has one processor; a send and a receive may be under way together.
LANE_OF: Mapping[str, str] = {
    "forward-compute": "compute",
    "backward-compute": "compute",
    "gc": "compute",
    "optimizer": "compute",
    "forward-send": "pp-send",
    "backward-send": "pp-send",
    "forward-recv": "pp-recv",
    "backward-recv": "pp-recv",
    "params-all-gather": "dp-comm",
    "grads-reduce-scatter": "dp-comm",
    "separate-grads-all-reduce": "dp-comm",
    "layernorm-grads-all-reduce": "mp-comm",
    "embedding-grads-all-reduce": "mp-comm",
    "optimizer-clip-main-grad": "mp-comm",
}

LANES = ("compute", "pp-send", "pp-recv", "dp-comm", "mp-comm")

#: The place of an operation in the plan, as integer arguments.
PLACE = ("microbatch", "chunk", "sequence", "stage", "dp rank")

STEP_MARK = "ProfilerStep#"

#: Time between two steps, so that an operation without duration at the end of one does not count to the next.
STEP_GAP_NS = 1


class RecordedPlan(NamedTuple):
    """The format of a recording and the parallel plan that it was made under."""

    format: str
    stages: int
    dp: int
    chunks: int


def is_operations(trace: Trace) -> bool:
    """Whether a trace is an operation-level recording."""
    return "operations" in trace.metadata


def recorded_plan(trace: Trace) -> RecordedPlan:
    """The plan of an operation-level recording."""
    plan: RecordedPlan = trace.metadata["operations"]
    return plan


def operation_trace(
    path: str,
    rank: int,
    rank_source: str,
    world_size: int,
    plan: RecordedPlan,
    operation: Sequence[str],
    step: Int64,
    start: Int64,
    duration: Int64,
    place: Mapping[str, Int64],
    diagnostics: tuple[Diagnostic, ...] = (),
    metadata: Mapping[str, Any] | None = None,
) -> Trace:
    """A rank's operations as a `Trace`: rows by step, then start.

    operation, step, start, duration: one entry per operation; start (from its step's origin) and duration are ns.
    place: int64 columns by the names of PLACE; ABSENT where an operation has none.
    """
    order = np.lexsort((duration, start, step))
    steps = np.unique(step)
    length = np.array([int((start + duration)[step == s].max()) for s in steps], np.int64)
    origin = np.concatenate(([0], np.cumsum(length + STEP_GAP_NS)[:-1]))
    names = tuple(dict.fromkeys(operation[i] for i in order))
    index = {name: i for i, name in enumerate(names)}
    rows = len(steps) + np.arange(len(order), dtype=np.int32)
    lane = [LANES.index(LANE_OF[operation[i]]) for i in order]
    absent = np.full(len(rows) + len(steps), ABSENT, np.int64)
    return Trace(
        path=path,
        rank=rank,
        rank_source=rank_source,
        world_size=world_size,
        strings=(*names, *(f"{STEP_MARK}{s}" for s in steps.tolist())),
        start=np.concatenate((origin, start[order] + origin[np.searchsorted(steps, step[order])])),
        duration=np.concatenate((length, duration[order])),
        name=np.array([*range(len(names), len(names) + len(steps)), *(index[operation[i]] for i in order)], np.int32),
        category=np.array([Category.ANNOTATION] * len(steps) + [Category.OPERATOR] * len(rows), np.uint8),
        lane=np.array([len(LANES)] * len(steps) + lane, np.int32),
        correlation=absent,
        external_id=absent.copy(),
        args={key: Column(rows, place[key][order], "int") for key in PLACE},
        lanes=tuple(Lane(str(rank), name, thread_name=name) for name in (*LANES, "steps")),
        metadata={"operations": plan, **(metadata or {})},
        diagnostics=diagnostics,
    )
