"""What follows from a trace alone, computed once.

Many parts ask a trace the same, such as for the shapes of its operators. A trace never changes, so its first answer is kept, as long as
somebody holds the trace. An answer must not hold the trace itself, which would then stay for good, and nobody may write into it.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.trace.table import Trace

_Answer = TypeVar("_Answer")


def once_a_trace(compute: Callable[[Trace], _Answer]) -> Callable[[Trace], _Answer]:
    """The same function, which computes its answer for each trace only once. Another trace of equal columns is computed again."""
    known: WeakKeyDictionary[Trace, _Answer] = WeakKeyDictionary()

    @wraps(compute)
    def answer(trace: Trace) -> _Answer:
        if trace not in known:
            known[trace] = compute(trace)
        return known[trace]

    return answer
