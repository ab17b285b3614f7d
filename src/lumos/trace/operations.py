"""Operation-level recordings: forward and backward passes, transfers and collectives as rows, without kernels.

Some training systems record no profiler trace but a few hundred operations per step, with their place in the parallel
plan. Such a recording becomes a `Trace` whose rows are operations (`Category.OPERATOR`) with the names of Megatron's timers,
on the lanes of `KNOWN`, with the place as arguments: "microbatch", "chunk" (of the model, within the stage), "sequence"
(number among the operations of its name, rank and step), "stage" and "dp rank". Each step is marked by an annotation
"ProfilerStep#N". `Trace.metadata["operations"]` has the format and the sizes of the plan.

Recordings of this kind give times only within a step, each step on a clock of its own; in the trace, each step begins when
the one before it has ended.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.trace.table import ABSENT, Category, Column, Int64, Lane, Trace
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.diagnostics import Diagnostic


class Meets(Enum):
    """The ranks that an operation transfers data with: no other, the next or previous stage, the data-parallel ranks of its stage, the
    first and the last stage, or all."""

    NONE = auto()
    NEXT = auto()
    PREVIOUS = auto()
    REPLICAS = auto()
    ENDS = auto()
    ALL = auto()


class Known(NamedTuple):
    """An operation. lane: what runs it; compute has one processor, while a send and a receive may be under way together. kind: the kind of
    its transfer, None where it transfers nothing."""

    lane: str
    kind: CollectiveKind | None = None
    meets: Meets = Meets.NONE


KNOWN: Mapping[str, Known] = {
    "forward-compute": Known("compute"),
    "backward-compute": Known("compute"),
    "gc": Known("compute"),
    "optimizer": Known("compute"),
    "forward-send": Known("pp-send", CollectiveKind.SEND, Meets.NEXT),
    "backward-send": Known("pp-send", CollectiveKind.SEND, Meets.PREVIOUS),
    "forward-recv": Known("pp-recv", CollectiveKind.RECEIVE, Meets.PREVIOUS),
    "backward-recv": Known("pp-recv", CollectiveKind.RECEIVE, Meets.NEXT),
    "params-all-gather": Known("dp-comm", CollectiveKind.ALL_GATHER, Meets.REPLICAS),
    "grads-reduce-scatter": Known("dp-comm", CollectiveKind.REDUCE_SCATTER, Meets.REPLICAS),
    "separate-grads-all-reduce": Known("dp-comm", CollectiveKind.ALL_REDUCE, Meets.REPLICAS),
    "layernorm-grads-all-reduce": Known("mp-comm", CollectiveKind.ALL_REDUCE),
    "embedding-grads-all-reduce": Known("mp-comm", CollectiveKind.ALL_REDUCE, Meets.ENDS),
    "optimizer-clip-main-grad": Known("mp-comm", CollectiveKind.ALL_REDUCE, Meets.ALL),
}

LANES = tuple(dict.fromkeys(known.lane for known in KNOWN.values()))

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
    plan: RecordedPlan,
    operation: Sequence[str],
    columns: Mapping[str, Int64],
    diagnostics: tuple[Diagnostic, ...] = (),
) -> Trace:
    """A rank's operations as a `Trace`: rows by step, then start.

    operation: the name of each operation. columns: int64 by name: "step", "start" (from the step's origin) and "duration" in ns, and those
    of PLACE, ABSENT where an operation has none.
    """
    order = np.lexsort((columns["duration"], columns["start"], columns["step"]))
    step, start, duration = (columns[key][order] for key in ("step", "start", "duration"))
    steps, at = np.unique(step, return_inverse=True)
    length = np.zeros(len(steps), np.int64)
    np.maximum.at(length, at, start + duration)
    origin = np.concatenate(([0], np.cumsum(length + STEP_GAP_NS)[:-1]))
    called = [operation[i] for i in order]
    names = tuple(dict.fromkeys(called))
    rows = len(steps) + np.arange(len(order), dtype=np.int32)
    absent = np.full(len(rows) + len(steps), ABSENT, np.int64)
    return Trace(
        path=path,
        rank=rank,
        rank_source=rank_source,
        world_size=plan.stages * plan.dp,
        strings=(*names, *(f"{STEP_MARK}{s}" for s in steps.tolist())),
        start=np.concatenate((origin, start + origin[at])),
        duration=np.concatenate((length, duration)),
        name=np.array([*range(len(names), len(names) + len(steps)), *map(names.index, called)], np.int32),
        category=np.repeat((Category.ANNOTATION, Category.OPERATOR), (len(steps), len(rows))).astype(np.uint8),
        lane=np.array([len(LANES)] * len(steps) + [LANES.index(KNOWN[name].lane) for name in called], np.int32),
        correlation=absent,
        external_id=absent.copy(),
        args={key: Column(rows, columns[key][order], "int") for key in PLACE},
        lanes=tuple(Lane(str(rank), name, thread_name=name) for name in (*LANES, "steps")),
        metadata={"operations": plan},
        diagnostics=diagnostics,
    )
