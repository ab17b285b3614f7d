"""The search: enumerate, drop what does not fit, bound, time the rest in columns, simulate the best in full."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lumos.layout.predict import Prediction, predict, result
from lumos.layout.price import Pricer
from lumos.search.bounds import lower_bounds
from lumos.search.coarse import step_times
from lumos.search.memory import peak_bytes
from lumos.search.prices import Floats, Prices
from lumos.search.space import Ints, Plans, Problem, Space, enumerate_plans

#: Plans timed between two reports of progress.
BATCH = 2048

Report = Callable[[int, int], None]
Accepts = Callable[[dict[str, Any]], bool]


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Plans that fit and were timed, fastest first: seconds of the coarse form, and bytes at the peak."""

    plans: Plans
    seconds: Floats
    peak: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What a search gives. best: simulated in full, best first. complete: False where it was interrupted."""

    problem: Problem
    plans: int
    infeasible: int
    pruned: int
    evaluated: int
    seconds_s: float
    best: tuple[Prediction, ...]
    candidates: Candidates
    complete: bool = True


def search(problem: Problem, space: Space | None = None, refine: int = 10, report: Report | None = None, prune: bool = True) -> Found:
    """The fastest plans of `problem`. refine: how many are simulated in full. prune=False times every plan that fits."""
    began = time.perf_counter()
    everything = enumerate_plans(problem, space or Space())
    peak = peak_bytes(everything) if len(everything) else np.zeros(0, np.int64)
    capacity = problem.cluster.accelerator.memory_bytes
    fits = np.flatnonzero(peak <= capacity) if capacity is not None else np.arange(len(everything))
    plans, peak = everything.take(fits), peak[fits]
    pricer = Pricer(problem.cluster)
    full = _Full(problem, pricer)
    if not len(plans):
        empty = Candidates(plans, np.zeros(0), peak)
        return Found(problem, len(everything), len(everything), 0, 0, time.perf_counter() - began, (), empty)
    columns = Prices(pricer).columns(plans)
    bounds = lower_bounds(plans, columns, pricer.coefficients)
    order = np.argsort(bounds, kind="stable")
    seconds = np.full(len(plans), np.inf)
    complete, pruned = True, 0
    try:
        done = 0
        limit = np.inf
        while done < len(order):
            some = order[done : done + BATCH]
            if prune:
                some = some[bounds[some] <= limit]
            if not len(some):
                break
            seconds[some] = step_times(plans.take(some), columns.take(some), pricer.coefficients)
            done += len(some)
            if prune and limit == np.inf:
                limit = _limit(plans, seconds, refine, full)
            if report is not None:
                report(done, len(order))
        pruned = len(order) - done
        best = _refined(plans, seconds, refine, full)
    except KeyboardInterrupt:
        complete = False
        pruned = 0
        best = list(full.known.values())
    timed = np.flatnonzero(np.isfinite(seconds))
    timed = timed[np.argsort(seconds[timed], kind="stable")]
    best.sort(key=lambda p: p.time.time_s)
    return Found(
        problem, len(everything), len(everything) - len(plans), pruned, len(timed), time.perf_counter() - began, tuple(best[:refine]),
        Candidates(plans.take(timed), seconds[timed], peak[timed]), complete,
    )  # fmt: skip


class _Full:
    """Full simulations, each plan's once."""

    def __init__(self, problem: Problem, pricer: Pricer) -> None:
        self.problem, self.pricer = problem, pricer
        self.known: dict[int, Prediction] = {}

    def __call__(self, plans: Plans, row: int) -> Prediction:
        if row not in self.known:
            self.known[row] = predict(self.problem.job(plans.plan(row)), self.pricer, coarse=True)
        return self.known[row]


def _limit(plans: Plans, seconds: Floats, refine: int, full: _Full) -> float:
    """A time that `refine` plans are known to reach in full: what is proved to be slower is not among the best `refine`."""
    rows = np.argsort(seconds, kind="stable")[:refine].tolist()
    times = [full(plans, row).time.time_s for row in rows if np.isfinite(seconds[row])]
    return max(times) if len(times) >= refine else np.inf


def _refined(plans: Plans, seconds: Floats, refine: int, full: _Full) -> list[Prediction]:
    rows = np.argsort(seconds, kind="stable")[:refine].tolist()
    for row in rows:
        if np.isfinite(seconds[row]):
            full(plans, row)
    return list(full.known.values())


def answer(found: Found) -> dict[str, Any]:
    """The keys that `lumos search --json` promises."""
    return {
        "model": found.problem.model.name,
        "cluster": found.problem.cluster.name,
        "gpus": found.problem.gpus,
        "plans": found.plans,
        "evaluated": found.evaluated,
        "infeasible": found.infeasible,
        "pruned": found.pruned,
        "seconds_s": found.seconds_s,
        "complete": found.complete,
        "best": [{**plan_keys(p), **result(p)} for p in found.best],
    }


def plan_keys(p: Prediction) -> dict[str, Any]:
    """The plan of a prediction, by the names of the command line's options."""
    plan = p.job.plan
    names = ("tp", "pp", "vpp", "cp", "ep", "dp", "zero", "micro_batch", "sequence_parallel", "recompute", "schedule")
    return {name: getattr(plan, name) for name in names}
