"""Speed of the GEMM model: evaluations a second on one core (figure: at least one million).

python -m benchmarks.cost
"""

from __future__ import annotations

import time

import numpy as np
from tools.document import markdown_table
from tools.figures import write_result

from lumos.cost.cluster import load_cluster
from lumos.cost.gemm_model import gemm

COUNT = 500_000


def main() -> None:
    """Evaluate random shapes, the best of five repeats."""
    accelerator = load_cluster("h100").accelerator
    m, n, k = np.exp2(np.random.default_rng(0).uniform(5, 15, (3, COUNT))).astype(int)
    best = min(_seconds(lambda: gemm(m, n, k, accelerator)) for _ in range(5))
    limit = min(_seconds(lambda: 2.0 * m * n * k / 1e15) for _ in range(5))
    write_result(
        "benchmarks/results/cost.md",
        "Written by `python -m benchmarks.cost`: random shapes on one core, best of five. To reach: 1 M/s. The limit beside it computes"
        " nothing but the FLOP of each shape.\n\n"
        + markdown_table(
            ("what", "evaluations a second", "of the limit"),
            [("GEMM model", f"{COUNT / best / 1e6:.1f} M", f"{limit / best:.1%}")],
        ),
    )


def _seconds(work: object) -> float:
    start = time.process_time()
    assert callable(work)
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()
