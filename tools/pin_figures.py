"""What the replay of every public trace says, as the table that tests hold it to.

    LUMOS_TRACES=... python -m tools.pin_figures

Run it after a change that is meant to move a figure, and look at what moved before it is committed.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, get_type_hints

import lumos
from lumos.analyze.replay import ReplayResult
from lumos.errors import LumosError

TABLE = Path(__file__).resolve().parents[1] / "tests" / "data" / "pinned-figures.csv"
#: Folders that are one job; every other file is a job of its own.
JOBS = ("dlrm-8xv100", "incomplete/sampled", "pipeline-8gpu", "straggler-8gpu")


class Figures(NamedTuple):
    """A job's replay in a few figures; shares of the step are the worst over the steps that count.

    job: file or folder, from the folder of the public traces. basis: of the step time. step_ns: the job's step as measured. counted,
    scored: numbers of steps over all ranks. error: the largest absolute step error. start_p95: the 95th percentile of kernel start
    errors, 0 without kernels. kept, unexplained: shares of the step. grade: how far answers can be trusted.
    """

    job: str
    basis: str
    step_ns: int
    counted: int
    scored: int
    error: float
    start_p95: float
    kept: float
    unexplained: float
    grade: str


def jobs(root: Path) -> Iterator[str]:
    """The names of the public jobs under a folder, in order."""
    yield from JOBS
    for path in sorted(root.rglob("*.json.gz")):
        name = str(path.relative_to(root))
        if not name.startswith(JOBS):
            yield name


def paths(root: Path, job: str) -> list[Path]:
    """The files of a job."""
    if job == "incomplete/sampled":
        return sorted(root.glob("incomplete/sampled-rank*.json.gz"))
    return [root / job]


def figures(root: Path, job: str) -> Figures:
    """Read and replay a job. Raises LumosError where it cannot be replayed."""
    return of_replay(job, lumos.replay(lumos.build(lumos.read(*paths(root, job)))))


def of_replay(job: str, found: ReplayResult) -> Figures:
    """The figures of a replay."""
    steps = found.counted
    return Figures(
        job=job,
        basis=found.basis.value,
        step_ns=found.step_time_ns,
        counted=len(steps),
        scored=sum(step.scored for step in steps),
        error=round(max(abs(step.error or 0.0) for step in steps), 5),
        start_p95=round(max(step.kernel_start_error.p95 or 0.0 for step in steps), 5),
        kept=round(max(step.kept_wait for step in steps), 5),
        unexplained=round(max(step.unexplained_idle for step in steps), 5),
        grade=str(found.trust.grade),
    )


def pinned() -> list[Figures]:
    """The table as it was last written."""
    kinds = get_type_hints(Figures)
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [Figures(*(kind(row[key]) for key, kind in kinds.items())) for row in csv.DictReader(file)]


def main() -> int:
    """Write the table."""
    root = os.environ.get("LUMOS_TRACES")
    if not root:
        print("LUMOS_TRACES is not set: the public traces are not here", file=sys.stderr)
        return 1
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(Figures._fields)
        for job in jobs(Path(root)):
            try:
                table.writerow(figures(Path(root), job))
            except LumosError as error:
                print(f"{job}: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
