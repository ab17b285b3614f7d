"""Replay every recording of examples/record_suite.py, and state how far profiling itself stretched the steps.

    python -m validation.gpu

For each examples/*/steps.csv, every trace is replayed by the installed `lumos replay --json`, and one table per device
goes into validation/results/gpu.md. Stretch: median traced step over median
untraced step of the same program in the same process, minus one. Errors: replayed against traced step.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.document import ROOT
from tools.figures import write_result

NONE_YET = (
    "No GPU recording yet. `python examples/record_suite.py --out examples/NAME` makes one on any CUDA device; "
    "`python -m validation.gpu` then fills this section."
)
HEAD = "| setting | untraced | spread | traced | stretch | replay error | worst | start error p95 | kept wait | unexplained idle | scored |"


@dataclass(frozen=True)
class Replayed:
    """One setting's replay: of the contracted JSON's steps those that count, or the reason why there are none."""

    row: dict[str, str]
    steps: tuple[dict[str, Any], ...]
    failure: str = ""

    @property
    def stretch(self) -> float:
        return int(self.row["traced_median_ns"]) / int(self.row["untraced_median_ns"]) - 1

    @property
    def scored(self) -> list[dict[str, Any]]:
        return [step for step in self.steps if step["scored"]]


def replay(lumos: str, folder: Path, row: dict[str, str]) -> Replayed:
    """Replay the trace that `row` of folder/steps.csv names."""
    done = subprocess.run([lumos, "replay", "--json", str(folder / row["trace"])], capture_output=True, text=True)
    if done.returncode != 0:
        return Replayed(row, (), (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    answer = json.loads(done.stdout)
    return Replayed(row, tuple(step for step in answer["steps"] if step["counts"]))


def section(folder: Path, replays: list[Replayed]) -> str:
    """One device's heading, summary and table."""
    recording = json.loads((folder / "recording.json").read_text())
    versions = ", ".join(f"{key} {recording[key]}" for key in ("driver", "torch", "cuda") if recording.get(key))
    errors = [abs(step["error"]) for r in replays for step in r.scored]
    steps = sum(len(r.steps) for r in replays)
    lines = [f"## {recording['device']} (`{folder.name}`)", "", f"{versions}. Recorded by `{recording['command']}`.", ""]
    if errors:
        lines += [f"Mean absolute replay error {_percent(statistics.mean(errors))} over {len(errors)} scored of {steps} steps,"]
        lines += [f"worst {_percent(max(errors))}. Profiling stretches the median setting by {_stretch(replays)}.", ""]
    else:
        lines += [f"No step is scored, of {steps} replayed. Profiling stretches the median setting by {_stretch(replays)}.", ""]
    return "\n".join([*lines, HEAD, "|---" + "|---:" * (HEAD.count("|") - 2) + "|", *map(_line, replays)])


def _stretch(replays: list[Replayed]) -> str:
    return _percent(statistics.median(r.stretch for r in replays))


def _line(r: Replayed) -> str:
    measured = [
        _ms(r.row["untraced_median_ns"]),
        _percent(float(r.row["untraced_spread"])),
        _ms(r.row["traced_median_ns"]),
        _percent(r.stretch),
    ]
    if r.failure:
        return "| " + " | ".join([r.row["setting"], *measured, f"not replayed: {r.failure.replace('|', '/')}", *[""] * 4, "0"]) + " |"
    errors = [abs(step["error"]) for step in r.scored]
    figures = [
        _percent(statistics.mean(errors) if errors else None),
        _percent(max(errors, default=None)),
        _worst(step["kernel_start_error"]["p95"] for step in r.scored),
        _worst(step["kept_wait"] for step in r.scored),
        _worst(step["unexplained_idle"] for step in r.steps),
    ]
    return "| " + " | ".join([r.row["setting"], *measured, *figures, f"{len(r.scored)} of {len(r.steps)}"]) + " |"


def _worst(values: Any) -> str:
    return _percent(max((v for v in values if v is not None), default=None))


def _ms(nanoseconds: str) -> str:
    return f"{int(nanoseconds) / 1e6:.2f} ms"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.2%}"


def main() -> None:
    options = _arguments()
    sections = []
    for table in sorted(options.examples.glob("*/steps.csv")):
        with table.open(newline="") as file:
            rows = list(csv.DictReader(file))
        if rows:
            sections.append(section(table.parent, [replay(options.lumos, table.parent, row) for row in rows]))
    text = "\n\n".join(sections) or NONE_YET
    write_result(options.result, text)
    print(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=Path, default=ROOT / "examples", help="folder of recordings")
    parser.add_argument("--result", type=Path, default=ROOT / "validation" / "results" / "gpu.md", help="file that is written")
    beside = Path(sys.executable).with_name("lumos")
    parser.add_argument("--lumos", default=str(beside) if beside.exists() else shutil.which("lumos"), help="the command to hold to account")
    options = parser.parse_args()
    if options.lumos is None:
        parser.error("no `lumos` command beside this Python or on the PATH: install the project, or name one with --lumos")
    return options


if __name__ == "__main__":
    main()
