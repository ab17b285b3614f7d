"""One search for every value of a size, for scaling curves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lumos.search.search import Found
    from lumos.search.space import Problem

OBJECTIVES = ("step-time", "tokens")


def with_value(problem: Problem, key: str, value: int) -> Problem:
    """The problem with another number of devices (gpus), sequences of a step (global_batch) or tokens of a sequence (seq)."""
    if key == "gpus":
        problem.cluster.check_size(value)
        return replace(problem, gpus=value)
    return replace(problem, global_batch=value) if key == "global_batch" else replace(problem, seq_len=value)


def sweep_sizes(problem: Problem, key: str, values: Sequence[int], run: Callable[[Problem], Found]) -> list[tuple[int, Found]]:
    """The result of `run` for every value, in order. Stops after a search that was interrupted."""
    out = []
    for value in values:
        found = run(with_value(problem, key, value))
        out.append((value, found))
        if not found.complete:
            break
    return out


def best_value(rows: Sequence[tuple[int, Found]], objective: str) -> int | None:
    """The value whose best plan has the least step time, or the most tokens a second and device."""
    scored = [(value, found.best[0]) for value, found in rows if found.best]
    if not scored:
        return None
    if objective == "tokens":
        return max(scored, key=lambda row: row[1].tokens_per_s_per_gpu)[0]
    return min(scored, key=lambda row: row[1].time.time_s)[0]
