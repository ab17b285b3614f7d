"""Many ranks in one graph: benchmarks/results/many-ranks.md.

    python -m benchmarks.ranks [--ranks 512] [--tasks 100000]

Columns in memory of `ranks` ranks, each a repetition of one recorded rank's work with its own jitter, are built into one
joined graph, swept and simulated. Memory is the process's peak, less what it held before the graph was built.

Times are those that the process spent on its core. Apart from Lumos' own, they hold what the operating system needs to hand out memory,
which depends on the machine and on who else uses it: of every call that share is given. What it is of a sweep shows beside it, in columns
that are only filled, and in a sweep into columns that were written before.
"""

from __future__ import annotations

import argparse
import resource
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
from benchmarks.load import busy
from benchmarks.repeat import repeated, stretched
from tools.document import ROOT, markdown_table
from tools.figures import write_result

from lumos.graph.concatenate import concatenate
from lumos.graph.joined.ranks import join
from lumos.graph.one_rank import rank_graph
from lumos.graph.table import Graph
from lumos.simulation import freeze, simulate, sweep
from lumos.trace import read
from lumos.trace.table import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

#: Ranks differ in speed by this much.
JITTER = 0.001

Result = TypeVar("Result")


class Spent(NamedTuple):
    """Time of the process on its core, seconds. system: the operating system's part, for memory that is handed out."""

    all: float
    system: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--tasks", type=int, default=100_000, help="tasks a rank")
    args = parser.parse_args()
    write_result("benchmarks/results/many-ranks.md", table(args.ranks, args.tasks))
    return 0


def table(ranks: int, tasks: int) -> str:
    """Build, freeze, sweep and simulate; one row each."""
    recorded = read(str(ROOT / "examples" / "gpt-2rank-cpu" / "rank0.json.gz")).traces[0]
    base = repeated(recorded, max(1, round(tasks / len(rank_graph(recorded)))))
    traces = [stretched(base, 1 + JITTER * rank) for rank in range(min(ranks, 4))]
    held = _peak()
    graph, build = timed(lambda: build_many(traces, ranks))
    freezing, swept, filled, again = sweeps(graph)
    _, simulated = timed(lambda: simulate(graph))
    used = _peak() - held
    n = len(graph)
    rows = [
        *(
            (what, f"{spent.all:.2f} s", f"{spent.system:.2f} s", f"{spent.all / n * 1e9:.0f} ns", limit)
            for what, spent, limit in (
                ("build (columns to joined graph)", build, "≤ 60 s"),
                ("freeze", freezing, "–"),
                ("sweep", swept, "≤ 1 s"),
                ("its columns only filled with zeros", filled, "–"),
                ("sweep into columns written before", again, "–"),
                ("event loop", simulated, "≤ 8 s"),
            )
        ),
        ("graph, by its columns", f"{nbytes(graph) / 1e9:.2f} GB", "–", f"{nbytes(graph) / n:.0f} bytes", "≤ 64 bytes a task"),
        ("peak memory above the input", f"{used / 1e9:.2f} GB", "–", f"{used / n:.0f} bytes", "≤ 16 GB"),
    ]
    size = f"{len(graph.ranks)} ranks × {n // len(graph.ranks):,} tasks, {len(graph.rendezvous_task):,} members of rendezvous"
    head = f"Written by `python -m benchmarks.ranks`. {size}. Times of one core; *system*: memory handed out ({busy()})."
    return f"{head}\n\n" + markdown_table(("what", "all", "system", "a task", "to reach"), rows)


def sweeps(graph: Graph) -> tuple[Spent, Spent, Spent, Spent]:
    """To freeze a graph, to sweep it, to fill such columns as it returns, and to sweep into them again, the best of three."""
    frozen, freezing = timed(lambda: freeze(graph))
    timeline, swept = timed(lambda: sweep(frozen))
    _, filled = timed(lambda: np.full((2, len(graph)), 0))
    again = [timed(lambda: frozen.edges.sweep(graph.duration, timeline.start, timeline.end))[1] for _ in range(3)]
    return freezing, swept, filled, min(again)


def timed(call: Callable[[], Result]) -> tuple[Result, Spent]:
    """What a call returns, and the time that it takes."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    result = call()
    after = resource.getrusage(resource.RUSAGE_SELF)
    system = after.ru_stime - before.ru_stime
    return result, Spent(after.ru_utime - before.ru_utime + system, system)


def build_many(traces: list[Trace], ranks: int) -> Graph:
    """A joined graph of many ranks from few distinct recordings: every rank is built, one at a time."""
    graphs = []
    for rank in range(ranks):
        source = traces[rank % len(traces)]
        graphs.append(rank_graph(replace(source, rank=rank, world_size=ranks)))
    return join(concatenate(graphs), ranks)


def nbytes(graph: Graph) -> int:
    """Bytes of a graph's columns."""
    columns = [
        graph.duration, graph.processor, graph.kind, graph.name, graph.event, graph.pred_offset, graph.pred, graph.pred_kind,
        graph.rendezvous_task, graph.measured_start, graph.measured_end,
    ]  # fmt: skip
    return sum(c.nbytes for c in columns if c is not None)


def _peak() -> int:
    """Peak resident memory of this process, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
