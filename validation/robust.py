"""Hostile inputs × verbs: every command must end as expected, within the time and the memory of a small job.

    python -m validation.robust [--every N] [--at-once N] [--write]

Each case of `validation.robust_inputs` runs as a process of its own. A fault is an end other than the expected one: another exit
status, a message without what it must say, a traceback, more than TIME_S of processor time or MEMORY_MB at the peak. `--every N` runs one
case in N, `--at-once N` so many side by side; `--write` puts the table into docs/limits.md. Exit status 1 where there is a fault.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import NamedTuple

from tools.document import markdown_table, write_section
from validation.robust_inputs import Case, cases

#: What no case may exceed: seconds of processor time, and MiB of resident memory at the peak. A replay of a small file takes a fifth
#: of either.
TIME_S = 20.0
MEMORY_MB = 400.0

_START = "from lumos.cli import main; main()"

#: Starts the command that follows and writes its status, processor seconds and peak memory (bytes on macOS, KiB elsewhere) to a file.
#: Linux counts the memory of the process that starts another into the peak of the other: this one is small, the test runner is not.
_MEASURED = """
import json, os, sys
_, status, used = os.wait4(os.posix_spawn(sys.executable, [sys.executable, *sys.argv[2:]], os.environ), 0)
with open(sys.argv[1], "w") as file:
    json.dump([os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss], file)
"""


class Outcome(NamedTuple):
    """How a command ended."""

    case: Case
    status: int
    cpu_s: float
    peak_mb: float
    text: str

    @property
    def fault(self) -> str:
        """What is wrong with the end; "" where nothing is."""
        if "Traceback (most recent call last)" in self.text or self.status == 70:
            return f"a fault of Lumos: {self.text.strip()[-300:]}"
        if self.status != self.case.status:
            return f"status {self.status} instead of {self.case.status}: {self.text.strip()[-300:]}"
        if self.case.says not in self.text:
            return f"does not say {self.case.says!r}: {self.text.strip()[-300:]}"
        if self.cpu_s > TIME_S or self.peak_mb > MEMORY_MB:
            return f"took {self.cpu_s:.1f} s and {self.peak_mb:.0f} MB"
        return ""


def run(case: Case, folder: Path) -> Outcome:
    """Run one case with its input in `folder`, which is empty."""
    arguments = case.write(folder)
    measured = folder / "measured.json"
    command = [sys.executable, "-c", _MEASURED, str(measured), "-c", _START, *arguments]
    ended = subprocess.run(command, env={**os.environ, "TMPDIR": str(folder)}, stdout=PIPE, stderr=STDOUT, check=True)
    status, cpu_s, peak = json.loads(measured.read_text())
    unit = 1 if sys.platform == "darwin" else 1024
    return Outcome(case, status, cpu_s, peak * unit / 2**20, ended.stdout.decode(errors="replace"))


def run_all(chosen: Iterable[Case], at_once: int = 1) -> list[Outcome]:
    """Run the cases, so many at once, each in a folder of its own."""

    def alone(case: Case) -> Outcome:
        with tempfile.TemporaryDirectory() as folder:
            return run(case, Path(folder))

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(alone, chosen))


def table(outcomes: list[Outcome]) -> str:
    """How many cases ended how, and what the most expensive took."""
    ends = {0: "answered, what is unreadable named", 1: "refused: the input", 2: "refused: wrong usage"}
    rows = []
    for status, words in ends.items():
        some = [o for o in outcomes if o.case.status == status]
        if some:
            most = (f"{max(o.cpu_s for o in some):.1f} s", f"{max(o.peak_mb for o in some):.0f} MB")
            rows.append((words, str(len(some)), str(sum(not o.fault for o in some)), *most))
    return markdown_table(("expected end", "cases", "as expected", "most CPU time", "memory at most"), rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="run one case in so many")
    parser.add_argument("--at-once", type=int, default=1, help="run so many at once")
    parser.add_argument("--write", action="store_true", help="write the table into docs/limits.md")
    options = parser.parse_args()
    outcomes = run_all(list(cases())[:: options.every], options.at_once)
    for outcome in outcomes:
        if outcome.fault:
            print(f"{outcome.case.name}: {outcome.fault}")
    print(table(outcomes))
    if options.write:
        write_section("docs/limits.md", "robust", table(outcomes))
    return int(any(outcome.fault for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
