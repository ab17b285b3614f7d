"""What `make demo` shows: a fault that was injected into a recorded job is found, the job is replayed, a job of eight GPUs is changed, and
a large run is predicted.

    python -m tools.demo [FOLDER]

The report is written into FOLDER (default: build). Nothing is asked of the network.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import NamedTuple

from tools.document import ROOT

JOB, EIGHT_GPUS = "examples/faults/extra-work", "examples/llama-8gpu"
LLAMA = (
    *("--model", "llama3-405b", "--cluster", "h100", "--gpus", "16384", "--global-batch", "2048", "--seq", "8192"),
)
CHANGE = ("whatif", EIGHT_GPUS, "--micro-batch", "2")
#: The columns of an ordinary terminal.
WIDTH = 80


class Shown(NamedTuple):
    """A command, what it answers, and how many lines of its output are shown."""

    question: str
    command: tuple[str, ...]
    lines: int


def shown(folder: str) -> tuple[Shown, ...]:
    """What the demonstration runs, one after the other. folder: where the report goes."""
    return (
        Shown("Three processes train together, one of them with ten multiplications too many. What is wrong?", ("diagnose", JOB), 8),
        Shown("Does the simulated job take as long as the recorded one?", ("replay", JOB), 3),
        Shown("Eight H100s train a small Llama (emulated, without a GPU). What would twice the batch cost?", CHANGE, 15),
        Shown("Which plan is fastest for Llama 3 405B on 16,384 GPUs? (Its paper reports 400 TFLOP/s a GPU.)", ("predict", *LLAMA), 8),
        Shown("The first job as a page for the browser:", ("report", JOB, "-o", f"{folder}/demo.html"), 9),
    )


def typed(command: tuple[str, ...]) -> str:
    """A command as one types it into a shell, continued in further lines where it is long."""
    lines = textwrap.wrap(f"$ lumos {' '.join(command)}", WIDTH - 2, subsequent_indent="    ", break_on_hyphens=False)
    return " \\\n".join(lines)


def main() -> int:
    folder = sys.argv[1] if len(sys.argv) > 1 else "build"
    Path(ROOT / folder).mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    for each in shown(folder):
        print(f"{textwrap.fill(each.question, WIDTH)}\n\n{typed(each.command)}", flush=True)
        start = (sys.executable, "-c", "from lumos.cli import main; main()")
        done = subprocess.run((*start, *each.command), cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            return done.returncode
        print("\n".join(done.stdout.splitlines()[: each.lines]), end="\n\n", flush=True)
    lumos = os.path.relpath(Path(sys.executable).with_name("lumos"))
    print(f"{time.perf_counter() - began:.1f} seconds. {lumos} --help lists the verbs. Open in a browser:\n{ROOT / folder / 'demo.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
