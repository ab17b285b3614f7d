"""Is the first plan of a search the right one? Coarse against full form, and the ranking of published runs.

    LUMOS_MEASURED=... python -m validation.ranking [agreement] [published] [left-out]        default: the first two

The coarse form is held to the full simulation on random plans that fit. On the published runs, plans of one model, accelerator,
number of devices, batch, sequence and precision are ranked by their predicted steps; the regret is what the first choice costs over the
best that was measured, and of every pair of plans it is counted whether they ran in the predicted order. `left-out` predicts every
source with coefficients fitted to the others (minutes more). Each writes its own
result file.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
from tools import fit_step as fitting
from tools.document import markdown_table
from tools.figures import write_result
from validation.composed import described

from lumos.blocks.price import Pricer, StepCoefficients, shipped_step_coefficients
from lumos.cost.cluster import load_cluster
from lumos.model import load_model
from lumos.plan.profiles import framework_profile
from lumos.prediction.step_time import central_time
from lumos.prediction.validate import RANKED, Scored, read_tables, score, spearman_within
from lumos.reports.text.predict import plan_words
from lumos.searching.bounds import peak_bytes
from lumos.searching.coarse import coarse_step_times
from lumos.searching.prices import block_columns
from lumos.searching.space import Problem, Space, enumerate_plans

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
#: How rows of NVIDIA's tables state the release of the framework.
_RELEASE = re.compile(r"(\d\d\.\d\d[.\d]*) NeMo Container")
#: As in validation.runs: of the largest tables, only every so many rows one is used in the fit.
THINNED = {"vtrain": 8, "llm_foundry": 2}


def main() -> int:
    parts = sys.argv[1:] or list(PARTS[:2])
    if unknown := [part for part in parts if part not in PARTS]:
        print(f"{', '.join(unknown)}: not known; valid: {', '.join(PARTS)}", file=sys.stderr)
        return 2
    folder = os.environ.get("LUMOS_MEASURED")
    if "agreement" in parts:
        write_result("validation/results/ranking.md", _agreement())
    if folder is None:
        print("LUMOS_MEASURED is not set: the published runs are left out", file=sys.stderr)
        return 0
    if "published" in parts:
        write_result("validation/results/ranking-published.md", _published(folder, False))
    if "left-out" in parts:
        write_result("validation/results/ranking-left-out.md", _published(folder, True))
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
    worst = np.argmax(np.abs(coarse / full - 1))
    named = [words for part in every for words in part[3]][worst]
    return (
        "Written by `python -m validation.ranking`. Coarse form of the search against the full simulation, random plans that fit"
        " (to reach: median ≤ 2 %, Spearman ≥ 0.98 over ≥ 500 plans). With ZeRO 2 passes wait for the reductions of passes before them, of"
        " which the coarse form knows the sum over a stage; the search simulates in full what it may have taken for too fast.\n\n"
        + markdown_table(("plans of", "plans", "median error", "90th percentile", "worst", "Spearman"), rows)
        + f"\n\nThe worst: {named}, {coarse[worst]:.2f} s in coarse form, {full[worst]:.2f} s in full."
    )


def _both(problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """Steps in coarse and in full form, the ZeRO stages, and the plans in words, of random plans that fit."""
    plans = enumerate_plans(problem, Space())
    capacity = problem.cluster.accelerator.memory_bytes
    assert capacity is not None
    fits = np.flatnonzero(peak_bytes(plans) <= capacity)
    plans = plans.take(np.random.default_rng(0).choice(fits, min(PLANS, len(fits)), replace=False))
    pricer = Pricer(problem.cluster)
    coarse = coarse_step_times(plans, block_columns(plans, pricer), pricer.coefficients)
    full = np.array([central_time(problem.job(plans.plan(row)), pricer) for row in range(len(plans))])
    words = [f"{problem.model.name}, {plan_words(plans.plan(row))}" for row in range(len(plans))]
    return coarse, full, plans["zero"], words


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
    every = groups([s for s in scored if s.skipped is None], RANKED)
    alike = [group for group in every if len({_release(s) for s in group}) == 1]
    rows = []
    for source in [*dict.fromkeys(group[0].source for group in alike), "all"]:
        of = [group for group in alike if source in (group[0].source, "all")]
        spearman = spearman_within([s for group in of for s in group])
        first, best_of_three = ([_regret(group, tried) for group in of] for tried in (1, 3))
        figures = (f"{np.median(first):.1%}", f"{max(first):.1%}", f"{np.mean(np.array(first) > 0.1):.0%}", f"{max(best_of_three):.1%}")
        rows.append((source, str(len(of)), "–" if spearman is None else f"{spearman:.2f}", *figures))
    mixed = [_regret(group, 1) for group in every if group not in alike]
    left_out = (
        f"\n\nNot in the table: {len(mixed)} groups whose rows say that they ran on different releases of a framework. Their plans differ"
        f" less than their releases do (worst regret {max(mixed):.0%}), and a search compares plans under one release. With them, Spearman"
        f" is {spearman_within([s for group in every for s in group]) or 0.0:.2f} over all."
        if mixed
        else ""
    )
    return (
        f"Published runs, {what}: groups of at least {RANKED} plans of one model, accelerator, number of devices, batch,"
        " sequence and precision. Regret: measured step of the plan predicted fastest over that of the plan measured fastest"
        " (to reach: Spearman ≥ 0.8, regret median ≤ 1 %, worst ≤ 10 %). Best of three: the same where the three plans predicted fastest"
        " are measured and the fastest of them is taken.\n\n"
        + markdown_table(("source", "groups", "Spearman", "median regret", "worst regret", "above 10 %", "worst, best of three"), rows)
        + "\n\n"
        + "\n".join(_choice(max((g for g in alike if g[0].source == source), key=lambda g: _regret(g, 1))) for source, *_ in rows[:-1])
        + left_out
        + "".join(f"\n\n{text}" for text in described(s.row for s in scored))
    )


def _choice(members: Sequence[Scored]) -> str:
    """What was predicted and measured for the first choice of a group, and for the plan that was measured fastest."""
    first = min(members, key=lambda s: s.predicted.time_s if s.predicted is not None else np.inf)
    best = min(members, key=lambda s: s.measured_s)
    said = [
        f"{s.row['id']} (predicted {s.predicted.time_s if s.predicted is not None else np.nan:.3g} s, measured {s.measured_s:.3g} s)"
        for s in (first, best)
    ]
    return f"- Worst of {members[0].source}: {said[0]} was chosen, {said[1]} is the fastest of {len(members)}."


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


def _release(s: Scored) -> str:
    """The release of the framework's container that a row states, "" if it states none."""
    found = _RELEASE.search(s.row.get("notes", ""))
    return found.group(1) if found else ""


def _regret(members: Sequence[Scored], tried: int) -> float:
    """What the best of the `tried` plans that are predicted fastest costs over the best."""
    ranked = sorted(members, key=lambda s: s.predicted.time_s if s.predicted is not None else np.inf)
    return min(s.measured_s for s in ranked[:tried]) / min(s.measured_s for s in members) - 1


if __name__ == "__main__":
    raise SystemExit(main())
