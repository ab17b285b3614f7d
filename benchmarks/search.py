"""Speed of the search: plans a second of the coarse form on one core, and two whole searches.

    python -m benchmarks.search

Figures: at least 10,000 plans a second and core; all plans of GPT-3 175B on 512 GPUs in 20 s, of Llama 3 405B on 16,384 in
90 s, in 2 GB. Calculon is timed beside it where it is installed.
"""

from __future__ import annotations

import resource
import time
from importlib.util import find_spec

import numpy as np
from tools.document import markdown_table, write_section

from lumos.cost.cluster import load_cluster
from lumos.layout.framework import profile
from lumos.layout.price import Pricer
from lumos.model import load_model
from lumos.report.search_text import describe
from lumos.search.coarse import step_times
from lumos.search.memory import peak_bytes
from lumos.search.prices import Prices
from lumos.search.search import Found, search
from lumos.search.space import Problem, Space, enumerate_plans


def main() -> None:
    gpt3 = Problem(load_model("gpt3-175b"), profile("megatron-core"), load_cluster("h100"), 512, 1536, 2048)
    llama = Problem(load_model("llama3-405b"), profile("megatron-core"), load_cluster("h100"), 16384, 2048, 8192)
    pieces = _pieces(gpt3)
    searches, tops = [], []
    for problem in (gpt3, llama):
        start = time.process_time()
        found = search(problem)
        cpu = time.process_time() - start
        searches.append(_row(problem, found, cpu))
        tops.append(_top(problem, found))
    calculon = "" if find_spec("calculon") else " Calculon is not installed here, so it is not timed beside it."
    write_section(
        "docs/performance.md",
        "search",
        f"Written by `python -m benchmarks.search`, on a machine that others use too: process time beside the clock's.{calculon}"
        " Every plan of GPT-3 175B on 512 GPUs, nothing pruned, coarse form on one core (to reach: 10,000 plans/s):\n\n"
        + markdown_table(("stage", "plans", "CPU s", "plans a second"), pieces)
        + "\n\nWhole searches (to reach: 20 s and 90 s, 2 GB):\n\n"
        + markdown_table(("search", "plans", "too large", "proved slower", "timed", "s", "CPU s", "peak memory"), searches)
        + "\n\n"
        + "\n\n".join(tops),
    )


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
    columns = Prices(pricer).columns(fits)
    clock.append(time.process_time())
    step_times(fits, columns, pricer.coefficients)
    clock.append(time.process_time())
    step_times(fits, columns, pricer.coefficients)
    clock.append(time.process_time())
    spans = np.diff(clock)
    names = ("enumerate", "memory", "price the blocks", "time the steps, orders of passes made anew", "time the steps again")
    counts = (len(plans), len(plans), len(fits), len(fits), len(fits))
    return [(name, f"{n:,}", f"{s:.2f}", f"{n / max(s, 1e-9):,.0f}") for name, n, s in zip(names, counts, spans, strict=True)]


def _row(problem: Problem, found: Found, cpu: float) -> tuple[str, ...]:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    counts = (found.plans, found.infeasible, found.pruned, found.evaluated)
    name = f"{problem.model.name}, {problem.gpus:,} GPUs"
    return (name, *(f"{n:,}" for n in counts), f"{found.seconds_s:.1f}", f"{cpu:.1f}", f"{peak / 1e9:.2f} GB")


def _top(problem: Problem, found: Found) -> str:
    rows = [
        (describe(p.job.plan), f"{p.time.time_s:.3f}", f"{p.time.low_s:.2f} – {p.time.high_s:.2f}", f"{p.model_flops_utilization:.1%}",
         f"{p.memory.peak_bytes / 1e9:.1f}")
        for p in found.best
    ]  # fmt: skip
    heading = f"The first ten of {problem.model.name} on {problem.gpus:,} H100, {problem.global_batch} sequences of {problem.seq_len}:"
    return f"{heading}\n\n" + markdown_table(("plan", "step s", "80 % interval s", "MFU", "peak GB"), rows)


if __name__ == "__main__":
    main()
