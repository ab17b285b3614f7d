"""One search for every value of a size, for scaling curves."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from lumos.errors import UsageError
from lumos.prediction.operating import Operating, operating

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lumos.cost.cluster import Cluster
    from lumos.searching.search import Found
    from lumos.searching.space import Problem

#: What the best value of a sweep has least or most of: the step's time, tokens per second and device, and dollars or kWh for a trillion
#: tokens, with failures.
OBJECTIVES = ("step-time", "tokens", "cost", "energy")


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
        searched = run(with_value(problem, key, value))
        out.append((value, searched))
        if not searched.complete:
            break
    return out


def best_value(rows: Sequence[tuple[int | str, Found]], objective: str) -> int | str | None:
    """The value whose best plan is the best by the objective; None where no value has a plan. Raises UsageError where the cluster's file
    does not say what the objective needs."""
    scored = [(value, _score(searched, objective)) for value, searched in rows if searched.best]
    return min(scored, key=lambda row: row[1])[0] if scored else None


def operating_of(searched: Found) -> Operating:
    """What the best plan costs to run."""
    return operating(searched.problem.cluster, searched.problem.gpus, searched.best[0].tokens_per_s_per_gpu)


def _score(searched: Found, objective: str) -> float:
    """The best plan by the objective, the less the better."""
    best = searched.best[0]
    if objective == "step-time":
        return best.time.time_s
    if objective == "tokens":
        return -best.tokens_per_s_per_gpu
    check_objective(objective, searched.problem.cluster)
    costs = operating_of(searched)
    value = costs.dollars_per_trillion_tokens if objective == "cost" else costs.kwh_per_trillion_tokens
    return math.inf if value is None else value  # None: failures leave no progress


def check_objective(objective: str, cluster: Cluster) -> None:
    """Raise UsageError where the cluster's file does not say what the objective needs."""
    key = {"cost": "price_per_hour", "energy": "power_w"}.get(objective)
    if key is None or getattr(cluster.operation, key) is not None or (objective == "energy" and cluster.accelerator.power_w is not None):
        return
    raise UsageError(f"--objective {objective} needs {key} in the table `operation` of a cluster's file; {cluster.name} has none")
