"""Speed of the search: plans a second of the coarse form on one core, two whole searches, and workers of a cluster.

    python -m benchmarks.search [rates] [searches] [workers]        default: the first two

Figures: at least 10,000 plans a second and core; all plans of GPT-3 175B on 512 GPUs in 20 s, of Llama 3 405B on 16,384 in
90 s, in 2 GB; two workers 1.5 times as fast as one on a search of at least 60 s. `workers` needs Ray (extra `distributed`) and
a quiet machine with two cores or more. Calculon's search (Isaev et al. 2023) has no package, so it cannot be timed in the same
run: PyPI's `calculon` is a library of producers and consumers. About 500 plans a second are reported for it.
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np
from tools.document import markdown_table
from tools.figures import write_result

from lumos.blocks.price import Pricer
from lumos.cost.cluster import load_cluster
from lumos.model import load_model
from lumos.plan.profiles import framework_profile
from lumos.searching.bounds import peak_bytes
from lumos.searching.coarse import coarse_step_times
from lumos.searching.engine import Ray
from lumos.searching.prices import block_columns
from lumos.searching.search import Found, search_problem
from lumos.searching.space import Problem, Space, enumerate_plans, passes

GPT3 = Problem(load_model("gpt3-175b"), framework_profile("megatron-core"), load_cluster("h100"), 512, 1536, 2048)
LLAMA = Problem(load_model("llama3-405b"), framework_profile("megatron-core"), load_cluster("h100"), 16384, 2048, 8192)
#: Plans simulated in full by the search that is spread over workers.
REFINED = 80
NOTE = "on a machine that others use too, so process time is given besides wall-clock time"
CALCULON = (
    "Calculon could not be timed in the same run, because it has no package (PyPI's `calculon` is another project);"
    " about 500 plans a second are reported for it."
)


def main() -> int:
    parts = sys.argv[1:] or ["rates", "searches"]
    sections = {"rates": ("search-rates", rates), "searches": ("search", searches), "workers": ("search-workers", workers)}
    if unknown := [part for part in parts if part not in sections]:
        print(f"{', '.join(unknown)}: not known; valid: {', '.join(sections)}", file=sys.stderr)
        return 2
    for part in parts:
        name, run = sections[part]
        write_result(f"benchmarks/results/{name}.md", run())
    return 0


def rates() -> str:
    head = ("stage", "plans", "CPU s", "plans a second")
    tables = [f"{_named(p)}:\n\n{markdown_table(head, _pieces(p))}" for p in (GPT3, LLAMA)]
    return (
        f"Written by `python -m benchmarks.search`, {NOTE}. {CALCULON}"
        " Every plan, nothing pruned, coarse form on one core (to reach: 10,000 plans/s):\n\n" + "\n\n".join(tables)
    )


def searches() -> str:
    rows = []
    for problem in (GPT3, LLAMA):
        start = time.process_time()
        found = search_problem(problem)
        rows.append(_row(problem, found, time.process_time() - start))
    head = ("search", "plans", "too large", "proved slower", "timed", "s", "CPU s", "peak memory")
    return (
        f"Written by `python -m benchmarks.search`, {NOTE}. Whole searches (to reach: 20 s and 90 s, 2 GB); the plans that they find are in"
        " `validation/results/searches.md`:\n\n" + markdown_table(head, rows)
    )


def workers() -> str:
    """One search on one worker of a Ray cluster and on two."""
    spans = {count: _on_workers(count) for count in (1, 2)}
    rows = [(str(count), f"{span:.1f}", f"{spans[1] / span:.2f}") for count, span in spans.items()]
    return (
        f"Written by `python -m benchmarks.search workers`. Every plan of {_named(LLAMA)} timed, none left out, the best"
        f" {REFINED} simulated in full, on Ray workers of one processor each (to reach: two workers 1.5 times as fast as one,"
        " search ≥ 60 s):\n\n" + markdown_table(("workers", "s", "times as fast"), rows)
    )


def _on_workers(count: int) -> float:
    import ray

    ray.init(num_cpus=count, include_dashboard=False, log_to_driver=False)
    try:
        engine = Ray(LLAMA)
        search_problem(LLAMA, Space(tp=(8,), pp=(16,), micro_batch=(1,)), refine=2 * count, engine=engine)  # workers start
        return search_problem(LLAMA, refine=REFINED, prune=False, engine=engine).seconds_s
    finally:
        ray.shutdown()


def _named(problem: Problem) -> str:
    return f"{problem.model.name}, {problem.gpus:,} GPUs"


def _pieces(problem: Problem) -> list[tuple[str, ...]]:
    """Enumeration and memory of all plans, prices and times of those that fit."""
    clock = [time.process_time()]
    plans = enumerate_plans(problem, Space())
    clock.append(time.process_time())
    peak = peak_bytes(plans)
    clock.append(time.process_time())
    capacity = problem.cluster.accelerator.memory_bytes
    assert capacity is not None
    fits = plans.take(np.flatnonzero(peak <= capacity))
    pricer = Pricer(problem.cluster)
    columns = block_columns(fits, pricer)
    clock.append(time.process_time())
    passes.cache_clear()
    coarse_step_times(fits, columns, pricer.coefficients)
    clock.append(time.process_time())
    coarse_step_times(fits, columns, pricer.coefficients)
    clock.append(time.process_time())
    spans = np.diff(clock)
    names = ("enumerate", "memory", "price the blocks", "time the steps, orders of passes made anew", "time the steps again")
    counts = (len(plans), len(plans), len(fits), len(fits), len(fits))
    rows = [(name, f"{n:,}", f"{s:.2f}", f"{n / max(s, 1e-9):,.0f}") for name, n, s in zip(names, counts, spans, strict=True)]
    whole = float(spans[:-1].sum())
    return [*rows, ("all of it, cold", f"{len(plans):,}", f"{whole:.2f}", f"{len(plans) / whole:,.0f}")]


def _row(problem: Problem, found: Found, cpu: float) -> tuple[str, ...]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    counts = (found.plans, found.infeasible, found.pruned, found.evaluated)
    return (_named(problem), *(f"{n:,}" for n in counts), f"{found.seconds_s:.1f}", f"{cpu:.1f}", f"{peak / 1e9:.2f} GB")


if __name__ == "__main__":
    raise SystemExit(main())
