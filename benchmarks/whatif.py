"""How fast a what-if is on a job of a million tasks: benchmarks/results/whatif.md.

    python -m benchmarks.whatif

Changes of durations are tried on a synthetic job; the change of a plan on the recorded example, repeated in time. Times are
those that the process spent on its core, best of several. They are compared with one pass of NumPy over the column of
durations (multiply and round) in the same run, because every answer needs at least that.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from benchmarks.load import busy
from benchmarks.repeat import repeated
from benchmarks.simulate import synthetic
from tools.document import ROOT, markdown_table
from tools.figures import write_result

from lumos.analyze.loop.steady import SweptLoop, steady
from lumos.analyze.loop.steps import members
from lumos.changes.changes import Changes
from lumos.changes.durations import Durations, matching
from lumos.changes.grid import scaled_steps
from lumos.changes.layout.measured_layout import measured_layout
from lumos.changes.layout.place import assemble_pieces
from lumos.changes.structure import changed_layout
from lumos.graph.build import build
from lumos.graph.table import Graph, Kind
from lumos.segment.segment import segment
from lumos.simulation import simulate, sweep
from lumos.trace import read
from lumos.trace.table import Job

TASKS = 1_000_000
CONFIGURATIONS = 200
EXAMPLE = ROOT / "examples" / "gpt-2rank-cpu"


def main() -> int:
    numpy_pass, rows = _durations()
    rows += _plan()
    table = [(what, f"{s * 1e3:,.1f} ms", f"{s / numpy_pass:.1f}", goal) for what, s, goal in rows]
    text = markdown_table(("a job of 1 M tasks", "time of one core", "passes of NumPy", "to reach"), table)
    text += f"\n\nMade by `python -m benchmarks.whatif` on {platform.machine()}, Python {platform.python_version()} ({busy()})."
    print(text)
    write_result("benchmarks/results/whatif.md", text)
    return 0


def _durations() -> tuple[float, list[tuple[str, float, str]]]:
    """Seconds of the pass of NumPy, and the rows of changes of durations."""
    graph = synthetic(TASKS)
    graph = replace(graph, names=tuple(kind.name.lower() for kind in Kind), name=graph.kind.astype(np.int32))
    job, ready = Job(()), SweptLoop(steady(members(graph)))

    def one() -> int:
        changed = Durations.parse(["kernel=0.5"], (), (), ()).apply(graph, job)
        return int(sweep(ready.frozen, changed.duration).end.max())

    def many() -> list[float]:
        masks = {name: matching(graph, job, name) for name in ("kernel", "collective")}
        factors = [{"kernel": i / CONFIGURATIONS, "collective": 1 - i / CONFIGURATIONS} for i in range(CONFIGURATIONS)]
        return scaled_steps(ready, masks, factors)

    rows = [
        ("one change of durations, swept", seconds(one), "≤ 20 ms"),
        ("the same by the event loop, where it may reorder work", seconds(lambda: _reordered(graph, job)), "–"),
        (f"1,000 changes in batches (measured over {CONFIGURATIONS})", seconds(many, 2) * 1000 / CONFIGURATIONS, "≤ 3,000 ms"),
    ]
    return seconds(lambda: np.rint(graph.duration * 0.5)), rows


def _reordered(graph: Graph, job: Job) -> int:
    return int(simulate(Durations.parse(["kernel=0.5"], (), (), ()).apply(graph, job)).end.max())


def _plan() -> list[tuple[str, float, str]]:
    """A change of the layers of the example, repeated until it has a million tasks."""
    recorded = read(str(EXAMPLE))
    times = -(-TASKS // len(build(recorded)))
    job = replace(recorded, traces=tuple(repeated(t, times) for t in recorded.traces))
    graph = build(job)
    layout = measured_layout(segment(graph, job))

    def change(**settings: str) -> Callable[[], object]:
        return lambda: assemble_pieces(changed_layout(layout, unasked(job), Changes(settings)))

    size = f"{len(graph) / 1e6:.1f} M tasks"
    return [
        (f"change of the plan (microbatches × 2, {size}): assembled", seconds(change(microbatches="2"), 2), "≤ 2,000 ms"),
        ("change of sizes (sequence × 2): assembled", seconds(change(seq="256"), 2), "≤ 2,000 ms"),
        ("the answer's replay of it: simulated", seconds(lambda: simulate(graph), 2), "–"),
    ]


def unasked(job: Job) -> Job:
    """The same job, of whose traces nothing was asked before: what is computed of a trace once is computed again."""
    return replace(job, traces=tuple(map(replace, job.traces)))


def seconds(call: Callable[[], object], repeats: int = 5) -> float:
    """Time of the process on a core, the best of several runs."""
    best = float("inf")
    for _ in range(repeats):
        begin = time.process_time()
        call()
        best = min(best, time.process_time() - begin)
    return best


if __name__ == "__main__":
    sys.exit(main())
