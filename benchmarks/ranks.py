"""Many ranks in one graph: the rank table of docs/performance.md.

    python -m benchmarks.ranks [--ranks 512] [--tasks 100000]

Columns in memory of `ranks` ranks, each a repetition of one recorded rank's work with its own jitter, are built into one
joined graph, swept and simulated. Memory is the process's peak, less what it held before the graph was built.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from dataclasses import replace

from benchmarks.repeat import repeated, stretched
from tools.document import ROOT, markdown_table, write_section

from lumos.graph.concatenate import concatenate
from lumos.graph.joined.ranks import join
from lumos.graph.one_rank import rank_graph
from lumos.graph.table import Graph
from lumos.simulate import freeze, simulate, sweep
from lumos.trace import read
from lumos.trace.table import Trace

#: Ranks differ in speed by this much.
JITTER = 0.001


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--tasks", type=int, default=100_000, help="tasks a rank")
    args = parser.parse_args()
    write_section("docs/performance.md", "many-ranks", table(args.ranks, args.tasks))
    return 0


def table(ranks: int, tasks: int) -> str:
    """Build, freeze, sweep and simulate; one row each."""
    recorded = read(str(ROOT / "examples" / "gpt-2rank-cpu" / "rank0.json.gz")).traces[0]
    base = repeated(recorded, max(1, round(tasks / len(rank_graph(recorded)))))
    traces = [stretched(base, 1 + JITTER * rank) for rank in range(min(ranks, 4))]
    held = _peak()
    began = time.perf_counter()
    graph = build_many(traces, ranks)
    seconds = {"build (columns to joined graph)": time.perf_counter() - began}
    began = time.perf_counter()
    frozen = freeze(graph)
    seconds["freeze"] = time.perf_counter() - began
    began = time.perf_counter()
    sweep(frozen)
    seconds["sweep"] = time.perf_counter() - began
    del frozen
    began = time.perf_counter()
    simulate(graph)
    seconds["event loop"] = time.perf_counter() - began
    used = _peak() - held
    n = len(graph)
    limits = {"build (columns to joined graph)": "≤ 60 s", "sweep": "≤ 1 s", "event loop": "≤ 8 s"}
    rows = [(what, f"{s:.2f} s", f"{s / n * 1e9:.0f} ns", limits.get(what, "–")) for what, s in seconds.items()]
    rows.append(("graph, by its columns", f"{nbytes(graph) / 1e9:.2f} GB", f"{nbytes(graph) / n:.0f} bytes", "≤ 64 bytes a task"))
    rows.append(("peak memory above the input", f"{used / 1e9:.2f} GB", f"{used / n:.0f} bytes", "≤ 16 GB"))
    head = f"{len(graph.ranks)} ranks × {n // len(graph.ranks):,} tasks, {len(graph.rendezvous_task):,} members of rendezvous"
    return f"Written by `python -m benchmarks.ranks`. {head}.\n\n" + markdown_table(("what", "all", "a task", "to reach"), rows)


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
