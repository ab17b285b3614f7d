"""The search: list all plans, drop those that do not fit, bound the others, time the rest in columns, simulate the best in full."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.choices import check_count
from lumos.errors import InterruptedSearchError
from lumos.prediction.operating import Campaign, campaign
from lumos.prediction.predict import UNPROVED_SCHEDULES
from lumos.result import Shown, plain
from lumos.searching.bounds import lower_bounds, peak_bytes
from lumos.searching.engine import Local, Ray, Simulated
from lumos.searching.explain import Against, Timed, against
from lumos.searching.prices import Floats, block_columns
from lumos.searching.space import PLAN_COLUMNS, Ints, Plans, Problem, Space, enumerate_plans

if TYPE_CHECKING:
    from lumos.blocks.price import Pricer

#: How many plans the first round times; the best of them set the limit for the others.
FIRST_ROUND = 2048
#: For every plan asked for, at most this many more are simulated because the coarse form took them for faster than those.
MOST_DOUBTED = 1

#: What an interrupted search says that has no answer yet.
UNTIMED = "interrupted before any plan was timed, so there is no answer; let the search run on, or narrow it (--tp, --pp, …)"


class SearchStage(StrEnum):
    """What a search is doing."""

    LISTING = "listing plans"
    PRICING = "pricing blocks"
    TIMING = "timing plans"
    SIMULATING = "simulating the best"


#: Called with the stage, and how much of the stage is done and in all.
_Report = Callable[[SearchStage, int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Plans that fit and were timed, fastest first. seconds: steps in coarse form. peak: bytes of peak memory."""

    plans: Plans
    seconds: Floats
    peak: Ints

    def pareto(self) -> Ints:
        """Rows of the plans that no other plan beats in both time and memory, fastest first."""
        least = np.minimum.accumulate(self.peak)
        better = np.concatenate(([True], self.peak[1:] < least[:-1])) if len(self.peak) else np.zeros(0, bool)
        return np.flatnonzero(better)


#: What a search says of itself under the name of its field.
_COUNTED = ("plans", "evaluated", "infeasible", "least_bytes", "pruned", "simulated", "seconds_s", "complete")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Found(Shown):
    """The result of a search.

    plans: all that were listed. infeasible: those that need more memory than there is. least_bytes: peak memory of the plan that needs
    least, None where there is no plan. pruned: those whose lower bound proves them slower. evaluated: those that were timed. simulated:
    those simulated in full. best: those of them that were asked for, best first.
    complete: False where the search was interrupted. pricer: what the plans were timed with. tokens: of a whole training run; price:
    dollars of a device and hour (`campaigns`).
    """

    problem: Problem
    plans: int
    infeasible: int
    least_bytes: int | None
    pruned: int
    evaluated: int
    simulated: int
    seconds_s: float
    best: tuple[Simulated, ...]
    candidates: Candidates
    complete: bool = True
    pricer: Pricer | None = None
    tokens: float | None = None
    price: float | None = None

    @property
    def against_first(self) -> tuple[Against | None, ...]:
        """How each plan of `best` stands against the first one; None for the first."""
        if not self.best:
            return ()
        first, *others = (Timed(p.job, p.time, p.parts) for p in self.best)
        return None, *(against(other, first) for other in others)

    @property
    def safest(self) -> int | None:
        """Which plan of `best`, among those equal to the first, has the lowest upper end of its interval; of plans whose schedule was
        compared with measured runs, if there is one. None where there is no plan."""
        equal = [i for i, a in enumerate(self.against_first) if a is None or a.equal]
        return min(equal, key=lambda i: (self.best[i].job.plan.schedule in UNPROVED_SCHEDULES, self.best[i].time.high_s), default=None)

    @property
    def campaigns(self) -> tuple[Campaign, ...]:
        """The whole training run with each plan of `best`; empty where its tokens are not given."""
        p, tokens = self.problem, self.tokens
        return () if tokens is None else tuple(campaign(p.cluster, p.gpus, q.tokens_per_s_per_gpu, tokens, self.price) for q in self.best)

    def to_dict(self) -> dict[str, Any]:
        """The keys of `lumos search --json`."""
        runs = [{"campaign": plain(run)} for run in self.campaigns] or [{} for _ in self.best]
        return {
            "model": self.problem.model.name,
            "cluster": self.problem.cluster.name,
            "gpus": self.problem.gpus,
            "global_batch": self.problem.global_batch,
            "seq": self.problem.seq_len,
            **{key: getattr(self, key) for key in _COUNTED},
            "best": [
                {**plan_keys(p.job.plan), **p.keys, "against_first": plain(a), **run}
                for p, a, run in zip(self.best, self.against_first, runs, strict=True)
            ],
            "safest": self.safest,
            "pareto": [
                {**plan_keys(c.plans.plan(row)), "step_time_s": float(c.seconds[row]), "peak_bytes": int(c.peak[row])}
                for c in (self.candidates,)
                for row in c.pareto().tolist()
            ],
        }

    def described(self) -> str:
        """The number of plans, and the best one."""
        if not self.best:
            first = "none simulated"
        else:
            plan = plan_keys(self.best[0].job.plan)
            sizes = " ".join(f"{key} {plan[key]}" for key in ("tp", "pp", "cp", "ep", "dp") if plan[key] > 1)
            first = f"best {self.best[0].time.time_s:.4g} s a step: {sizes or 'one device'}"
        return f"{self.plans:,} plans of {self.problem.model.name} on {self.problem.gpus} x {self.problem.cluster.name}, {first}"


def search_problem(
    problem: Problem,
    space: Space | None = None,
    refine: int = 10,
    report: _Report | None = None,
    prune: bool = True,
    engine: Local | Ray | None = None,
) -> Found:
    """The fastest plans of `problem`. refine: how many are simulated in full.

    For a given number of devices, the least step time is also the most tokens per second and device. prune=False times every plan
    that fits. The answer is deterministic: of equal plans the one listed first wins. A search that is interrupted answers with the best
    plan so far; InterruptedSearchError where none was timed yet.
    """
    check_count(refine, "refine")
    began = time.perf_counter()
    engine = engine or Local(problem)
    tell = report or (lambda *_: None)
    try:
        tell(SearchStage.LISTING, 0, 0)
        everything = enumerate_plans(problem, space or Space())
        peak = peak_bytes(everything)
    except KeyboardInterrupt:
        raise InterruptedSearchError(UNTIMED) from None
    capacity = problem.capacity
    fits = np.flatnonzero(peak <= capacity) if capacity is not None else np.arange(len(everything))
    least = int(peak.min()) if len(peak) else None
    plans, peak = everything.take(fits), peak[fits]
    full = _Full(engine, refine, tell)
    seconds = np.full(len(plans), np.inf)
    complete, done = True, 0
    try:
        tell(SearchStage.PRICING, 0, len(plans))
        columns = block_columns(plans, engine.pricer) if len(plans) else None
        bounds = lower_bounds(plans, columns, engine.pricer.coefficients) if columns is not None else np.zeros(0)
        order = np.argsort(bounds, kind="stable")
        limit = np.inf
        # The first round is small: its best plans set the limit above which the second leaves plans out.
        for of_round in (order[:FIRST_ROUND], order[FIRST_ROUND:]):
            wanted = of_round[bounds[of_round] <= limit] if prune else of_round
            if columns is None or not len(wanted):
                break
            for rows, times in engine.times(plans, columns, wanted):
                seconds[rows] = times
                done += len(rows)
                tell(SearchStage.TIMING, done, len(order))
            if prune and limit == np.inf:
                limit = full.limit(plans, seconds)
        full.best(plans, seconds)
        full.settle(plans, seconds)
    except KeyboardInterrupt:
        complete = False
        if not np.isfinite(seconds).any():
            raise InterruptedSearchError(UNTIMED) from None
        full.at_least_one(plans, seconds)
    timed = np.flatnonzero(np.isfinite(seconds))
    timed = timed[np.argsort(seconds[timed], kind="stable")]
    return Found(
        problem=problem,
        plans=len(everything),
        infeasible=len(everything) - len(fits),
        least_bytes=least,
        pruned=len(plans) - len(timed) if complete else 0,
        evaluated=len(timed),
        simulated=full.simulated,
        seconds_s=time.perf_counter() - began,
        best=tuple(full.fastest()),
        candidates=Candidates(plans.take(timed), seconds[timed], peak[timed]),
        complete=complete,
        pricer=engine.pricer,
    )


class _Full:
    """Simulates plans in full, each once."""

    def __init__(self, engine: Local | Ray, wanted: int, tell: _Report) -> None:
        self._engine, self._wanted, self._tell = engine, wanted, tell
        self._known: dict[int, Simulated] = {}

    @property
    def simulated(self) -> int:
        """How many plans were simulated."""
        return len(self._known)

    def fastest(self) -> list[Simulated]:
        """As many of the simulated plans as are wanted, best first."""
        return [self._known[row] for row in self._distinct(self._known)][: self._wanted]

    def _distinct(self, rows: Iterable[int]) -> list[int]:
        """The rows, best first, each plan once: where sharding more changes neither time nor memory, as in a pipeline that reduces once a
        step, the plans are one."""
        distinct: dict[object, int] = {}
        for row in sorted(rows, key=lambda row: (self._known[row].time.time_s, row)):
            p = self._known[row]
            distinct.setdefault((p.time, p.keys["memory"]["peak_bytes"], replace(p.job.plan, zero=0)), row)
        return list(distinct.values())

    def limit(self, plans: Plans, seconds: Floats) -> float:
        """A time that as many plans as are wanted reach in the full simulation, so that slower plans cannot be among the best; infinite
        while there are fewer."""
        self.best(plans, seconds)
        fastest = self.fastest()
        return fastest[-1].time.time_s if len(fastest) >= self._wanted else np.inf

    def best(self, plans: Plans, seconds: Floats) -> None:
        """Simulate the plans that were timed fastest, until there are as many as are wanted."""
        ranked = np.argsort(seconds, kind="stable")
        ranked = ranked[np.isfinite(seconds[ranked])]
        tried: list[int] = []
        while (lacking := self._wanted - len(self._distinct(tried))) > 0 and len(ranked):
            chosen, ranked = ranked[:lacking].tolist(), ranked[lacking:]
            self._simulate(plans, [row for row in chosen if row not in self._known])
            tried += chosen

    def settle(self, plans: Plans, seconds: Floats) -> None:
        """Simulate also the plans that the coarse form took for faster than the last of the best turned out to be, up to `MOST_DOUBTED`."""
        ranked = [row for row in np.argsort(seconds, kind="stable").tolist() if np.isfinite(seconds[row]) and row not in self._known]
        for row in ranked[: MOST_DOUBTED * self._wanted]:
            fastest = self.fastest()
            if len(fastest) < self._wanted or seconds[row] >= fastest[-1].time.time_s:
                break
            self._simulate(plans, [row])

    def at_least_one(self, plans: Plans, seconds: Floats) -> None:
        """Simulate the fastest plan so far, so that an interrupted search has an answer, unless one was simulated already."""
        if not self._known and np.any(np.isfinite(seconds)):
            self._simulate(plans, [int(np.argmin(seconds))])

    def _simulate(self, plans: Plans, rows: list[int]) -> None:
        self._tell(SearchStage.SIMULATING, 0, len(rows))
        for done, (row, p) in enumerate(zip(rows, self._engine.simulate(plans, np.array(rows, np.int64)), strict=True), 1):
            self._tell(SearchStage.SIMULATING, done, len(rows))
            self._known[row] = p


def plan_keys(plan: Any) -> dict[str, Any]:
    """The choices of a plan, by the names of the options of the command line."""
    return {name: getattr(plan, name) for name in PLAN_COLUMNS}
