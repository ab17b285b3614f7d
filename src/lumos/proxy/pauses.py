"""The least of each pause between operators, over all recorded steps that run the same operators.

What stands between two operators is Python's and autograd's work, the same in every step. What else is recorded there, the profiler's own
cost and processes that share the machine, only adds to it, and is no part of the job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lumos.proxy.program import RecordedOperator
    from lumos.trace.table import Int64


def with_least_pauses(roots: Sequence[RecordedOperator], others: Sequence[Sequence[RecordedOperator]]) -> Callable[[int], int]:
    """When a time of a step comes, ns, once each pause is the least of it in this step and in those of the `others` that run the same
    operators. A pause of this step becomes no longer, and an operator that calls no other takes what it took."""
    own, names = _pauses(roots), _names(roots)
    lengths = np.stack([np.diff(_pauses(repetition))[:, 0] for repetition in (roots, *others) if _names(repetition) == names])
    gone = lengths[0] - lengths.min(axis=0)
    before = np.cumsum(gone) - gone
    known, moved = own.reshape(-1), (own - np.stack((before, before + gone), axis=1)).reshape(-1)

    def comes(time: int) -> int:
        if not len(known) or time < known[0]:
            return time
        return time - int(gone.sum()) if time > known[-1] else round(float(np.interp(time, known, moved)))

    return comes


def _names(roots: Sequence[RecordedOperator]) -> list[str]:
    return [operator.name for root in roots for operator in root.walk()]


def _pauses(roots: Sequence[RecordedOperator]) -> Int64:
    """Begin and end of the pauses before each operator, and between the last that it called and its own end, int64[pauses, 2]. One is empty
    where operators of two threads overlap."""
    out: list[tuple[int, int]] = []
    latest = roots[0].start_ns if roots else 0

    def until(time: int) -> None:
        nonlocal latest
        out.append((latest, max(latest, time)))
        latest = max(latest, time)

    def visit(operator: RecordedOperator) -> None:
        nonlocal latest
        until(operator.start_ns)
        for child in operator.children:
            visit(child)
        end = operator.start_ns + operator.duration_ns
        if operator.children:
            until(end)
        latest = max(latest, end)

    for root in roots:
        visit(root)
    return np.array(out, np.int64).reshape(-1, 2)
