"""Whether an execution trace and a profiler file are of one rank and one run: facts of both files that linking does not use.

Each fact confirms the pair, refutes it, or says nothing where a file lacks it. Two runs of one model have the same operators in
the same order, so the order of calls alone proves nothing. One fact that refutes is enough.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.characters import is_whole
from lumos.trace.table import Category, Int32, Trace

if TYPE_CHECKING:
    from lumos.trace.execution_trace import ExecutionTrace

#: How many operators have their tensor shapes compared.
COMPARED = 2000
#: A fact that is counted over operators is one only from this many on.
_FEWEST = 20
#: The share of operators that must agree. Of one run all do; in files of two ranks of a recommendation model 1.7 % have other shapes.
OF_ONE_RUN = 0.995


class Vote(NamedTuple):
    """What one fact says. fact: "process", "sequence-numbers" or "shapes". confirms: None where a file lacks it. reason: in words."""

    fact: str
    confirms: bool | None
    reason: str


def votes(observed: ExecutionTrace, trace: Trace, node: Int32, *, other_window: bool = False) -> tuple[Vote, ...]:
    """The vote of every fact. node: int32 per row of the trace, the node that it was linked to; -1 where there is none. other_window:
    whether the files may be of two windows of one process."""
    return (_process(observed, trace), _sequence(observed, trace, node, other_window), _shapes(observed, trace, node))


def confidence(cast: tuple[Vote, ...]) -> float | None:
    """The share of the facts that confirm the pair; 0 where one refutes it, None where none says anything."""
    if any(vote.confirms is False for vote in cast):
        return 0.0
    confirming = sum(vote.confirms is True for vote in cast)
    return confirming / len(cast) if confirming else None


def _process(observed: ExecutionTrace, trace: Trace) -> Vote:
    """The process id: both files name that of the process which recorded them."""
    profiled = processes(trace)
    if observed.pid <= 0 or not profiled:
        return Vote("process", None, "a file does not name its process")
    listed = ", ".join(map(str, profiled))
    return Vote("process", observed.pid in profiled, f"the execution trace is of process {observed.pid}, the profiler's file of {listed}")


def processes(trace: Trace) -> list[int]:
    """The ids of the processes whose operators a profiler recorded, ascending."""
    lanes = np.unique(trace.lane[trace.category == Category.OPERATOR])
    return sorted({int(pid) for lane in lanes.tolist() if is_whole(pid := trace.lanes[lane].pid)})


def _sequence(observed: ExecutionTrace, trace: Trace, node: Int32, other_window: bool) -> Vote:
    """Autograd's sequence numbers: they are the same in both files. By one constant they differ where the files are of two windows of one
    process, or of two runs of one program."""
    numbers = trace.dense("Sequence number")
    rows = np.flatnonzero((node >= 0) & (numbers >= 0))
    rows = rows[observed.sequence[node[rows]] >= 0]
    if len(rows) < _FEWEST:
        return Vote("sequence-numbers", None, f"{len(rows)} linked operators have autograd's sequence number in both files")
    by, times = np.unique(numbers[rows] - observed.sequence[node[rows]], return_counts=True)
    agree, constant = int(times.max()), int(by[times.argmax()])
    reason = f"autograd's sequence numbers of {agree} of {len(rows)} operators differ by {constant}"
    same = agree >= OF_ONE_RUN * len(rows)
    if same and constant and not other_window:
        reason += ": another window of the process, or another run; --other-window links it all the same"
    return Vote("sequence-numbers", None if same and constant and other_window else same and not constant, reason)


def _shapes(observed: ExecutionTrace, trace: Trace, node: Int32) -> Vote:
    """The shapes of tensor inputs, of COMPARED operators at most that lie evenly among all."""
    dims, compared, agree = trace.dense("Input Dims"), 0, 0
    matched = np.flatnonzero((dims >= 0) & (node >= 0))
    for row in matched[np.unique(np.linspace(0, len(matched) - 1, min(len(matched), COMPARED)).astype(np.int64))].tolist():
        _, shapes, types = observed.inputs[int(node[row])]
        profiled, seen, kinds = json.loads(trace.strings[int(dims[row])]), json.loads(shapes), json.loads(types)
        pairs = [(a, b) for a, b, kind in zip(profiled, seen, kinds, strict=False) if str(kind).startswith("Tensor")]
        compared += bool(pairs)
        agree += bool(pairs) and all(a == b for a, b in pairs)
    if compared < _FEWEST:
        return Vote("shapes", None, f"{compared} linked operators have shapes in both files")
    return Vote("shapes", agree >= OF_ONE_RUN * compared, f"{compared - agree} of {compared} operators have other tensor shapes")
