"""Is the first plan of a search the right one? Coarse against full form, and the ranking of published runs.

    LUMOS_MEASURED=... python -m validation.ranking [agreement] [published] [left-out]        default: the first two

The coarse form is held to the full simulation on random plans that fit. On the published runs, plans of one model, accelerator,
number of devices, batch, sequence and precision are ranked by their predicted steps; the regret is what the first choice costs over the
best that was measured, and of every pair of plans it is counted whether they ran in the predicted order. `left-out` predicts every
source with coefficients fitted to the others (minutes more). Each writes its own
section of docs/accuracy.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from tools.document import markdown_table, write_section

from lumos.blocks.coefficients import StepCoefficients, shipped_step_coefficients
from lumos.blocks.price import Pricer
from lumos.cost.cluster import load_cluster
from lumos.model import load_model
from lumos.plan.profiles import framework_profile
from lumos.predict import fit as fitting
from lumos.predict.step_time import central_time
from lumos.predict.validate import RANKED, Scored, read_tables, score, spearman_within
from lumos.search.coarse import coarse_step_times
from lumos.search.memory import peak_bytes
from lumos.search.prices import Prices
from lumos.search.space import Problem, Space, enumerate_plans

#: (model, framework, devices, sequences, tokens) of the random plans, on H100.
PROBLEMS = (
    ("llama3-8b", "megatron-core", 64, 128, 8192),
    ("gpt3-175b", "megatron-core", 512, 512, 2048),
    ("llama3-70b", "nemo", 128, 128, 8192),
    ("mixtral-8x7b", "megatron-core", 64, 128, 4096),
)
PLANS = 150
PARTS = ("agreement", "published", "left-out")
TABLES = (
    "vtrain", "llm_foundry", "internevo", "simumax_b200", "nemo_legacy", "torchtitan", "bloom", "dgxc", "megatron_bridge",
    "llm_foundry_h100",
)  # fmt: skip
#: Bounds of the classes of pairs: by how much the predicted steps of two plans differ.
APART = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
#: As in validation.runs: of the largest tables, only every so many rows one is used in the fit.
THINNED = {"vtrain": 8, "llm_foundry": 2}


def main() -> int:
    parts = sys.argv[1:] or list(PARTS[:2])
    if unknown := [part for part in parts if part not in PARTS]:
        print(f"{', '.join(unknown)}: not known; valid: {', '.join(PARTS)}", file=sys.stderr)
        return 2
    folder = os.environ.get("LUMOS_MEASURED")
    if "agreement" in parts:
        write_section("docs/accuracy.md", "ranking", _agreement())
    if folder is None:
        print("LUMOS_MEASURED is not set: the published runs are left out", file=sys.stderr)
        return 0
    if "published" in parts:
        write_section("docs/accuracy.md", "ranking-published", _published(folder, False))
    if "left-out" in parts:
        write_section("docs/accuracy.md", "ranking-left-out", _published(folder, True))
    return 0


def _agreement() -> str:
    rows, every = [], []
    for model, framework, gpus, batch, seq in PROBLEMS:
        problem = Problem(load_model(model), framework_profile(framework), load_cluster("h100"), gpus, batch, seq)
        every.append(_both(problem))
        rows.append((f"{model}, {gpus} GPUs, {framework}", *_cells(*every[-1][:2])))
    coarse, full, zero = (np.concatenate([part[i] for part in every]) for i in (0, 1, 2))
    rows += [(f"all of them with ZeRO {stage}", *_cells(coarse[zero == stage], full[zero == stage])) for stage in range(4)]
    rows.append(("all", *_cells(coarse, full)))
    return (
        "Written by `python -m validation.ranking`. Coarse form of the search against the full simulation, random plans that fit"
        " (to reach: median ≤ 2 %, Spearman ≥ 0.98 over ≥ 500 plans). With ZeRO 2 a pass waits for the reductions of passes before it, of"
        " which the coarse form knows only those of one layer; the search simulates in full what it may have taken for too fast.\n\n"
        + markdown_table(("plans of", "plans", "median error", "90th percentile", "worst", "Spearman"), rows)
    )


def _both(problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps in coarse and in full form, and the ZeRO stages, of random plans that fit."""
    plans = enumerate_plans(problem, Space())
    capacity = problem.cluster.accelerator.memory_bytes
    assert capacity is not None
    fits = np.flatnonzero(peak_bytes(plans) <= capacity)
    plans = plans.take(np.random.default_rng(0).choice(fits, min(PLANS, len(fits)), replace=False))
    pricer = Pricer(problem.cluster)
    coarse = coarse_step_times(plans, Prices(pricer).columns(plans), pricer.coefficients)
    full = np.array([central_time(problem.job(plans.plan(row)), pricer) for row in range(len(plans))])
    return coarse, full, plans["zero"]


def _cells(coarse: np.ndarray, full: np.ndarray) -> tuple[str, ...]:
    error = np.abs(coarse / full - 1)
    ranks = [np.argsort(np.argsort(x)) for x in (coarse, full)]
    spearman = float(np.corrcoef(*ranks)[0, 1])
    return f"{len(full)}", f"{np.median(error):.2%}", f"{np.quantile(error, 0.9):.2%}", f"{error.max():.1%}", f"{spearman:.4f}"


def _published(folder: str, left_out: bool) -> str:
    tables = {name: list(read_tables([str(Path(folder) / f"{name}.csv")])) for name in TABLES}
    every = [row for table in tables.values() for row in table]
    if not left_out:
        scored = score(every)
        return f"{_ranking(scored, 'coefficients fitted to all sources')}\n\n{_pairs(scored)}"
    prior = StepCoefficients()
    problem = fitting.problem([row for name, table in tables.items() for row in table[:: THINNED.get(name, 1)]])
    start = fitting.linearise(problem, shipped_step_coefficients())
    scored = []
    for source in dict.fromkeys(row["source"] for row in every):
        own = fitting.fit(problem, prior, leave_out=source, start=start, rounds=1)
        scored += score([row for row in every if row["source"] == source], own)
    return _ranking(scored, "each source predicted with coefficients fitted to the others")


def _ranking(scored: Sequence[Scored], what: str) -> str:
    good = [s for s in scored if s.skipped is None]
    rows = []
    for source in [*dict.fromkeys(s.source for s in good), "all"]:
        of = [s for s in good if source in (s.source, "all")]
        regrets = [_regret(group) for group in groups(of, RANKED)]
        if regrets:
            spearman = spearman_within(of)
            rank = "–" if spearman is None else f"{spearman:.2f}"
            rows.append((source, str(len(regrets)), rank, f"{np.median(regrets):.1%}", f"{max(regrets):.1%}"))
    return (
        f"Published runs, {what}: groups of at least {RANKED} plans of one model, accelerator, number of devices, batch,"
        " sequence and precision. Regret: measured step of the plan predicted fastest over that of the plan measured fastest"
        " (to reach: Spearman ≥ 0.8, regret median ≤ 1 %, worst ≤ 10 %).\n\n"
        + markdown_table(("source", "groups", "Spearman", "median regret", "worst regret"), rows)
    )


def _pairs(scored: Sequence[Scored]) -> str:
    """Of every two plans of a group, whether they ran in the predicted order: by how far apart they were predicted to be, and by whether
    their 80 % intervals overlap. Pairs that are predicted to take equally long, or did, are left out."""
    found = np.array([_pair(a, b) for group in groups([s for s in scored if s.skipped is None], 2) for a, b in combinations(group, 2)])
    found = found[(found[:, 0] > 0) & np.isfinite(found[:, 1])]
    rows = []
    for low, high in zip(APART, (*APART[1:], np.inf), strict=True):
        of = found[(found[:, 0] >= low) & (found[:, 0] < high)]
        rows.append((f"{low:.0%} to {high:.0%}" if np.isfinite(high) else f"more than {low:.0%}", *_order(of)))
    rows.append(("intervals overlap", *_order(found[found[:, 2] == 1])))
    rows.append(("intervals apart", *_order(found[found[:, 2] == 0])))
    return (
        "Every two plans of a group (of two or more): by how much their predicted steps differ, and how often they ran in that order."
        " This is why a search calls plans equal whose intervals overlap:\n\n"
        + markdown_table(("predicted difference", "pairs", "in the predicted order"), rows)
    )


def _pair(a: Scored, b: Scored) -> tuple[float, float, bool]:
    """Predicted difference as a share, whether the measured order is the predicted one (NaN: measured alike), whether intervals overlap."""
    assert a.predicted is not None and b.predicted is not None
    fast, slow = sorted((a, b), key=lambda s: s.predicted.time_s if s.predicted is not None else np.inf)
    assert fast.predicted is not None and slow.predicted is not None
    right = np.nan if fast.measured_s == slow.measured_s else float(fast.measured_s < slow.measured_s)
    return slow.predicted.time_s / fast.predicted.time_s - 1, right, slow.predicted.low_s <= fast.predicted.high_s


def _order(pairs: np.ndarray) -> tuple[str, str]:
    return f"{len(pairs):,}", f"{pairs[:, 1].mean():.1%}" if len(pairs) else "–"


def groups(scored: Sequence[Scored], least: int) -> list[list[Scored]]:
    """Runs that differ in their plans alone, at least `least` of them."""
    found: dict[tuple[str, ...], list[Scored]] = {}
    for s in scored:
        key = tuple(s.row.get(k, "") for k in ("source", "model", "gpu", "n_gpus", "global_batch", "seq_len", "precision"))
        found.setdefault(key, []).append(s)
    return [members for members in found.values() if len(members) >= least]


def _regret(members: Sequence[Scored]) -> float:
    first = min(members, key=lambda s: s.predicted.time_s if s.predicted is not None else np.inf)
    return first.measured_s / min(s.measured_s for s in members) - 1


if __name__ == "__main__":
    raise SystemExit(main())
