"""What the collector costs: benchmarks/results/collect.md.

    python -m benchmarks.collect [--rounds 8]

A training loop of some 50 ms a step on the CPU, in processes of its own, with and without the collector in turn. Steps
in which another process took the core (CPU time under 97 % of wall time) are left out of both.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from typing import Any

from tools.document import ROOT, markdown_table
from tools.figures import write_result

#: CPU time over wall time from which a step had its core to itself.
UNDISTURBED = 0.97

#: Untouched steps on either side of the window, and the window.
OUTSIDE, WARMUP, STEPS = 20, 2, 4

KINDS = ("without the collector", "profile(…)", "profile(…, execution_trace=True)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.kind:
        print(json.dumps(loop(options.kind)))
        return 0
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for _ in range(options.rounds):
        for kind in KINDS:
            command = [sys.executable, "-m", "benchmarks.collect", "--kind", kind]
            environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
            done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, cwd=ROOT)
            found[kind].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"{kind}: {len(undisturbed(found[kind], 'outside'))} undisturbed steps so far", file=sys.stderr)
    if not all(undisturbed(of_kind, "outside") for of_kind in found.values()):
        print("another process took the core in every step; nothing was written: run it on a quiet machine", file=sys.stderr)
        return 1
    write_result("benchmarks/results/collect.md", section(found))
    return 0


def loop(kind: str) -> dict[str, Any]:
    """Train and time every step: wall and CPU seconds, those outside the window apart from recorded ones."""
    import torch

    import lumos.collect

    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(512, 512), torch.nn.GELU())]
    model, batch = torch.nn.Sequential(*layers), torch.randn(400, 512)
    optimizer = torch.optim.AdamW(model.parameters())
    steps: dict[str, list[tuple[float, float]]] = {"outside": [], "recorded": []}
    calls: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        recording = None
        if kind != KINDS[0]:
            recording = lumos.collect.profile(folder, STEPS, WARMUP, wait=OUTSIDE, execution_trace=kind == KINDS[2]).__enter__()
        for number in range(2 * OUTSIDE + WARMUP + STEPS):
            wall, cpu = time.perf_counter(), time.process_time()
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            took = time.perf_counter() - wall, time.process_time() - cpu
            before = time.perf_counter()
            if recording is not None:
                recording.step()
            call = time.perf_counter() - before
            outside = 2 <= number < OUTSIDE - 1 or number >= OUTSIDE + WARMUP + STEPS + 1
            if outside:
                steps["outside"].append(took)
                calls.append(call)
            elif OUTSIDE + WARMUP < number < OUTSIDE + WARMUP + STEPS:  # the first recorded one carries the execution trace
                steps["recorded"].append(took)
            if number == OUTSIDE + WARMUP:
                first = took
            if number == OUTSIDE + WARMUP + STEPS - 1:
                closing = call
    return {**steps, "calls": calls, "first": [first], "closing": closing}


def undisturbed(rounds: Sequence[dict[str, Any]], part: str) -> list[float]:
    return [wall for one in rounds for wall, cpu in one[part] if cpu >= UNDISTURBED * wall]


def section(found: dict[str, list[dict[str, Any]]]) -> str:
    import torch

    rows = []
    for kind in KINDS:
        calls = [seconds for one in found[kind] for seconds in one["calls"]]
        closing = [one["closing"] for one in found[kind]]
        outside = undisturbed(found[kind], "outside")
        with_it = kind != KINDS[0]
        rows.append(
            (
                kind,
                str(len(outside)),
                f"{statistics.median(outside) * 1e3:.2f}",
                against(zip(found[kind], found[KINDS[0]], strict=True), "outside") if with_it else "–",
                f"{statistics.median(calls) * 1e6:.1f}" if with_it else "–",
                against(zip(found[kind], found[kind], strict=True), "recorded") if with_it else "–",
                against(zip(found[kind], found[kind], strict=True), "first") if with_it else "–",
                f"{statistics.median(closing) * 1e3:.0f}" if with_it else "–",
            )
        )
    head = ("loop", "steps", "step outside, ms", "against none", "call, µs", "recorded steps", "first recorded step", "closing, ms")
    text = [
        f"Generated by `python -m benchmarks.collect` (torch {torch.__version__}, {os.cpu_count()} cores, one thread): medians over"
        f" {len(found[KINDS[0]])} rounds, in each of which the three run one after the other, each in a process of its own. *Outside*:"
        " steps before and after the window; *against none*: their median in a process against that of the process without the collector"
        " in the same round. Recorded steps are compared with those outside in the same process. ± is half of the interval that holds the"
        " median of rounds with 95 %, so it has in it what two processes differ by. *Call*: `recording.step()` outside, which is all that"
        " the collector does there. Figure to reach: ≤ 1 % outside the profiled steps; where ± is larger than that, the comparison cannot"
        " tell, and the call says it.",
        "",
        markdown_table(head, rows),
    ]
    return "\n".join(text)


def against(pairs: Iterable[tuple[dict[str, Any], dict[str, Any]]], part: str) -> str:
    """By how much steps take longer than those outside the window of the other process: the median of the rounds, and its interval."""
    steps = [(undisturbed([one], part), undisturbed([other], "outside")) for one, other in pairs]
    ratios = [statistics.median(one) / statistics.median(other) - 1 for one, other in steps if one and other]
    return f"{statistics.median(ratios):+.1%} ± {noise(ratios):.1%}" if len(ratios) > 1 else "–"


def noise(values: list[float]) -> float:
    """Half of the 95 % interval of the median (order statistics)."""
    ordered, n = sorted(values), len(values)
    reach = 1.96 * math.sqrt(n) / 2
    low, high = max(0, math.floor(n / 2 - reach)), min(n - 1, math.ceil(n / 2 + reach) - 1)
    return (ordered[high] - ordered[low]) / 2


if __name__ == "__main__":
    sys.exit(main())
