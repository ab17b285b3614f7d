"""The search: enumerate, drop what does not fit, bound, time the rest in columns, simulate the best in full."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lumos.result import Shown
from lumos.search.bounds import lower_bounds
from lumos.search.constraints import Constraint
from lumos.search.engine import Engine, Local, Simulated
from lumos.search.memory import peak_bytes
from lumos.search.prices import Floats, Prices
from lumos.search.space import COLUMNS, Ints, Plans, Problem, Space, enumerate_plans

#: Plans timed before the best of them set a limit.
FIRST = 2048
#: Full simulations for every plan asked for, before a search whose conditions fail gives up.
PATIENCE = 20

Report = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Plans that fit and were timed, fastest first: seconds of the coarse form, and bytes at the peak."""

    plans: Plans
    seconds: Floats
    peak: Ints

    def pareto(self) -> Ints:
        """Rows that no other beats in both time and memory, fastest first."""
        least = np.minimum.accumulate(self.peak)
        better = np.concatenate(([True], self.peak[1:] < least[:-1])) if len(self.peak) else np.zeros(0, bool)
        return np.flatnonzero(better)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Found(Shown):
    """What a search gives. best: simulated in full, best first. complete: False where it was interrupted."""

    problem: Problem
    plans: int
    infeasible: int  # need more memory than there is
    excluded: int  # break a condition, as plan and memory alone tell
    pruned: int  # proved slower by their bound
    evaluated: int
    seconds_s: float
    best: tuple[Simulated, ...]
    candidates: Candidates
    complete: bool = True

    def to_dict(self) -> dict[str, Any]:
        """The keys of `lumos search --json`."""
        return answer(self)

    def described(self) -> str:
        """How many plans there are, and the best."""
        if not self.best:
            first = "none simulated"
        else:
            plan = plan_keys(self.best[0].job.plan)
            sizes = " ".join(f"{key} {plan[key]}" for key in ("tp", "pp", "cp", "ep", "dp") if plan[key] > 1)
            first = f"best {self.best[0].time.time_s:.4g} s a step: {sizes or 'one device'}"
        return f"{self.plans:,} plans of {self.problem.model.name} on {self.problem.gpus} x {self.problem.cluster.name}, {first}"


def search(
    problem: Problem,
    space: Space | None = None,
    refine: int = 10,
    report: Report | None = None,
    prune: bool = True,
    require: Sequence[Constraint] = (),
    engine: Engine | None = None,
) -> Found:
    """The fastest plans of `problem` that meet `require`. refine: how many are simulated in full.

    With the devices given, the least step time is also the most tokens a second and device. prune=False times every plan
    that fits. Deterministic: ties go to the plan that is listed first.
    """
    began = time.perf_counter()
    engine = engine or Local(problem)
    everything = enumerate_plans(problem, space or Space())
    peak = peak_bytes(everything)
    capacity = problem.cluster.accelerator.memory_bytes
    fits = np.flatnonzero(peak <= capacity) if capacity is not None else np.arange(len(everything))
    keep = _meeting(everything, peak, fits, require)
    plans, peak = everything.take(keep), peak[keep]
    full = _Full(engine, refine, require)
    seconds = np.full(len(plans), np.inf)
    complete, done = True, 0
    try:
        columns = Prices(engine.pricer).columns(plans) if len(plans) else None
        bounds = lower_bounds(plans, columns, engine.pricer.coefficients) if columns is not None else np.zeros(0)
        order = np.argsort(bounds, kind="stable")
        limit = np.inf
        # The first round is small, as it sets what the second leaves out.
        for some in (order[:FIRST], order[FIRST:]):
            wanted = some[bounds[some] <= limit] if prune else some
            if columns is None or not len(wanted):
                break
            for rows, times in engine.times(plans, columns, wanted):
                seconds[rows] = times
                done += len(rows)
                if report is not None:
                    report(done, len(order))
            if prune and limit == np.inf:
                limit = full.limit(plans, seconds)
        full.best(plans, seconds)
        if report is not None:
            report(len(order), len(order))
    except KeyboardInterrupt:
        complete = False
        full.something(plans, seconds)
    timed = np.flatnonzero(np.isfinite(seconds))
    timed = timed[np.argsort(seconds[timed], kind="stable")]
    return Found(
        problem=problem,
        plans=len(everything),
        infeasible=len(everything) - len(fits),
        excluded=len(fits) - len(plans),
        pruned=len(plans) - len(timed) if complete else 0,
        evaluated=len(timed),
        seconds_s=time.perf_counter() - began,
        best=tuple(full.accepted()),
        candidates=Candidates(plans.take(timed), seconds[timed], peak[timed]),
        complete=complete,
    )


def _meeting(plans: Plans, peak: Ints, rows: Ints, require: Sequence[Constraint]) -> Ints:
    """Those of `rows` that meet the conditions that plan and peak memory alone decide."""
    early = [c for c in require if c.keys <= {*COLUMNS, "memory.peak_bytes"}]
    if not early:
        return rows
    return np.array([row for row in rows.tolist() if all(c(early_keys(plans, row, int(peak[row]))) for c in early)], np.int64)


def early_keys(plans: Plans, row: int, peak: int) -> dict[str, Any]:
    """What is known of a plan before it is timed."""
    return {**plan_keys(plans.plan(row)), "memory": {"peak_bytes": peak}}


class _Full:
    """Full simulations, each plan's once, until enough of them meet the conditions."""

    def __init__(self, engine: Engine, wanted: int, require: Sequence[Constraint]) -> None:
        self._engine, self._wanted, self._require = engine, wanted, require
        self._known: dict[int, Simulated] = {}
        self._accepted: dict[int, bool] = {}

    def accepted(self) -> list[Simulated]:
        """The best first."""
        rows = [row for row, accepted in self._accepted.items() if accepted]
        return [self._known[row] for row in sorted(rows, key=lambda row: (self._known[row].time.time_s, row))][: self._wanted]

    def limit(self, plans: Plans, seconds: Floats) -> float:
        """A time that as many plans as are wanted are known to reach in full: what is proved slower is not among them."""
        self.best(plans, seconds)
        found = self.accepted()
        return found[-1].time.time_s if len(found) >= self._wanted else np.inf

    def best(self, plans: Plans, seconds: Floats) -> None:
        """Simulate the plans that were timed fastest: as many at once as are still missing."""
        ranked = np.argsort(seconds, kind="stable")
        ranked = ranked[np.isfinite(seconds[ranked])][: PATIENCE * self._wanted]
        met = 0
        while met < self._wanted and len(ranked):
            some, ranked = ranked[: self._wanted - met], ranked[self._wanted - met :]
            self._simulate(plans, [row for row in some.tolist() if row not in self._known])
            met += sum(self._accepted[row] for row in some.tolist())

    def something(self, plans: Plans, seconds: Floats) -> None:
        """Simulate the fastest plan so far, unless one has been: an interrupted search answers too."""
        if not self.accepted() and np.any(np.isfinite(seconds)):
            self._simulate(plans, [int(np.argmin(seconds))])

    def _simulate(self, plans: Plans, rows: list[int]) -> None:
        for row, p in zip(rows, self._engine.simulate(plans, np.array(rows, np.int64)), strict=True):
            self._known[row] = p
            self._accepted[row] = all(c(keys_of(p)) for c in self._require)


def answer(found: Found) -> dict[str, Any]:
    """The keys that `lumos search --json` promises."""
    return {
        "model": found.problem.model.name,
        "cluster": found.problem.cluster.name,
        "gpus": found.problem.gpus,
        "global_batch": found.problem.global_batch,
        "seq": found.problem.seq_len,
        "plans": found.plans,
        "evaluated": found.evaluated,
        "infeasible": found.infeasible,
        "excluded": found.excluded,
        "pruned": found.pruned,
        "seconds_s": found.seconds_s,
        "complete": found.complete,
        "best": [keys_of(p) for p in found.best],
        "pareto": [
            {**plan_keys(c.plans.plan(row)), "step_time_s": float(c.seconds[row]), "peak_bytes": int(c.peak[row])}
            for c in (found.candidates,)
            for row in c.pareto().tolist()
        ],
    }


def keys_of(p: Simulated) -> dict[str, Any]:
    """The plan and everything that `lumos predict --json` says of it."""
    return {**plan_keys(p.job.plan), **p.keys}


def plan_keys(plan: Any) -> dict[str, Any]:
    """A plan by the names of the command line's options."""
    return {name: getattr(plan, name) for name in COLUMNS}
