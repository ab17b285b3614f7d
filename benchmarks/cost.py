"""Speed of the GEMM model: evaluations a second on one core (figure: at least one million).

python benchmarks/cost.py
"""

from __future__ import annotations

import time

import numpy as np

from lumos.cost.cluster import load_cluster
from lumos.cost.gemm import gemm

COUNT = 500_000


def main() -> None:
    """Evaluate random shapes, the best of five repeats."""
    accelerator = load_cluster("h100").accelerator
    m, n, k = np.exp2(np.random.default_rng(0).uniform(5, 15, (3, COUNT))).astype(int)
    best = min(_seconds(lambda: gemm(m, n, k, accelerator)) for _ in range(5))
    print(f"GEMM model: {COUNT / best / 1e6:.2f} M evaluations/s on one core")


def _seconds(work: object) -> float:
    start = time.process_time()
    assert callable(work)
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()
