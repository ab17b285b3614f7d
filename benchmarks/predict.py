"""Speed of predictions: whole commands, and published rows a second in coarse form; writes benchmarks/results/predict.md.

    LUMOS_MEASURED=... python -m benchmarks.predict

Figures: 16,384-GPU Llama 3 405B in at most 2 s and 1 GB, 512-GPU GPT-3 175B in at most 0.5 s, whole command; all published
rows in at most 5 minutes.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from tools.document import markdown_table
from tools.figures import write_result

from lumos.prediction.validate import read_tables, score

COMMANDS = {
    "llama3-405b on 16,384 H100": "--model llama3-405b --cluster llama3-h100 --gpus 16384 --global-batch 2048 --seq 8192 "
    "--tp 8 --pp 16 --vpp 8 --recompute full",
    "gpt3-175b on 512 H100": "--model gpt3-175b --cluster h100 --gpus 512 --global-batch 512 --seq 2048 --tp 8 --pp 8 --vpp 4",
}
REPEATS = 5


def main() -> int:
    folder = os.environ.get("LUMOS_MEASURED")
    if folder is None:
        print("LUMOS_MEASURED is not set: the published rows are not at hand", file=sys.stderr)
        return 1
    rows = []
    for (name, options), figure in zip(COMMANDS.items(), ("≤ 2 s", "≤ 0.5 s"), strict=True):
        command = [sys.executable, "-c", "from lumos.cli import main; main()", "predict", *options.split(), "--json"]
        best, cpu = min(_run(command) for _ in range(REPEATS))
        rows.append((f"{name}, whole command", figure, f"{best:.2f} s ({cpu:.2f} s of CPU)"))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    rows.append(("peak memory of either", "≤ 1 GB", f"{peak:.0f} MB"))
    rows.append(_published(folder))
    write_result("benchmarks/results/predict.md", markdown_table(("what", "figure", "reached"), rows))
    return 0


def _published(folder: str) -> tuple[str, str, str]:
    names = ("vtrain", "llm_foundry", "internevo", "simumax_b200", "nemo_legacy", "torchtitan")
    rows = list(read_tables([str(Path(folder) / f"{name}.csv") for name in names]))
    start = time.process_time()
    score(rows)
    seconds = time.process_time() - start
    return f"{len(rows):,} published rows", "≤ 5 min", f"{seconds:.1f} s of CPU, {len(rows) / seconds:.0f} rows a second on one core"


def _run(command: list[str]) -> tuple[float, float]:
    """Seconds of wall clock and of CPU, of a command whose modules are compiled already, as installing Lumos leaves them."""
    compiled = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=compiled)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())
