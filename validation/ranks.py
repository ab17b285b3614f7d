"""What joining the ranks is worth: validation/results/ranks.md.

    LUMOS_TRACES=... python -m validation.ranks

Jobs of several ranks are replayed joined, and by the rules of published tools: each rank alone with its collectives'
durations as measured (waiting included), and without waits between streams. The step error alone says little, since
measured durations contain the waiting; how much the other ranks slow when one does is what a copy cannot answer.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tools.document import ROOT, markdown_table
from tools.figures import write_result

from lumos.analyze.replay import probes, replay
from lumos.graph.build import build
from lumos.graph.concatenate import concatenate
from lumos.graph.table import DEPENDENCY_NAMES, Graph
from lumos.simulation import simulate
from lumos.trace import read


@dataclass(frozen=True)
class Row:
    """One job under one rule. Errors are fractions of the step, over the steps that count; None over nothing."""

    job: str
    rule: str
    step: float | None
    exposed: float | None
    collective: float | None
    slow: tuple[float | None, ...]


def main() -> int:
    jobs: list[tuple[str, str]] = []
    if folder := os.environ.get("LUMOS_TRACES"):
        jobs.append(("dlrm-8xv100", str(Path(folder) / "dlrm-8xv100")))
    else:
        print("LUMOS_TRACES is not set: only the project's own recording is replayed", file=sys.stderr)
    jobs.append(("examples/gpt-2rank-cpu", str(ROOT / "examples" / "gpt-2rank-cpu")))
    rows = [row for name, path in jobs for row in _rows(name, path)]
    write_result("validation/results/ranks.md", _section(rows))
    return 0


def _rows(name: str, path: str) -> list[Row]:
    job = read(path)
    joined = build(job)
    alone = concatenate([build(replace(job, traces=(trace,))) for trace in job.traces])
    no_waits = replace(joined, ignored=frozenset(DEPENDENCY_NAMES["stream-wait"]))
    return [
        _row(name, "ranks joined", joined),
        _row(name, "each rank alone, durations as measured", alone),
        _row(name, "joined, no waits between streams", no_waits),
    ]


def _row(name: str, rule: str, graph: Graph) -> Row:
    timeline = simulate(graph)
    result = replay(graph, timeline)
    errors = [abs(s.error) for s in result.counted if s.error is not None]
    exposed = [
        abs(s.breakdown.replayed.exposed_communication_ns - s.breakdown.measured.exposed_communication_ns) / s.measured_ns
        for s in result.counted
        if s.measured_ns
    ]
    return Row(
        name,
        rule,
        statistics.fmean(errors) if errors else None,
        statistics.fmean(exposed) if exposed else None,
        result.collective_start_error.median,
        probes(graph).slow_rank,
    )


def _section(rows: Sequence[Row]) -> str:
    joined = next((r for r in rows if r.job == "dlrm-8xv100" and r.rule == "ranks joined"), None)
    parts = [
        "Written by `python -m validation.ranks` with `LUMOS_TRACES` set. slow rank: that rank's CPU work × 1.5, the other ranks'"
        " mean step as a multiple of the plain replay; mean over the ranks, and its range. A replay that copies waiting answers 1.00.",
    ]
    if joined is not None:
        parts.append(
            markdown_table(
                ("DLRM, 8 ranks", "to reach", "reached"),
                [
                    ("mean absolute step error", "≤ 0.3 %", _percent(joined.step)),
                    ("exposed communication error", "≤ 1 % of the step", _percent(joined.exposed)),
                    ("collective start error, median", "≤ 0.5 %", _percent(joined.collective)),
                    ("`slow_rank` of rank 2", "1.1 to 1.3", _multiple(joined.slow[2])),
                ],
            )
        )
    parts.append(
        markdown_table(
            ("job", "rule", "step error", "exposed communication", "collective start", "slow rank"),
            [
                (r.job, r.rule, _percent(r.step), _percent(r.exposed), _percent(r.collective), _slow([s for s in r.slow if s is not None]))
                for r in rows
            ],
        )
    )
    return "\n\n".join(parts)


def _slow(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})" if values else "–"


def _multiple(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f} %"


if __name__ == "__main__":
    sys.exit(main())
