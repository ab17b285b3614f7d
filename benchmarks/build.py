"""From columns to a graph: benchmarks/results/build.md.

    LUMOS_TRACES=... python -m benchmarks.build

The recordings are repeated to about a million events. The time is compared with what graph tools in Python do with the
finished result alone: put the same tasks and edges into a networkx graph.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from benchmarks.repeat import repeated
from tools.document import ROOT, markdown_table
from tools.figures import write_result

from lumos.graph.build import build
from lumos.graph.table import Graph
from lumos.trace import read
from lumos.trace.table import Job, Trace

EVENTS = 1_000_000
PUBLIC = ("resnet-ddp-a100", "dlrm-a100-rank3", "resnet-v100", "resnet-ddp-mi300x")
#: Tasks that networkx is given; its rate does not depend on the size.
PEER_TASKS = 200_000


def main() -> int:
    write_result("benchmarks/results/build.md", table())
    return 0


def table() -> str:
    """One row a recording; the best of three builds each."""
    rows = []
    for name, trace in _recordings():
        long = repeated(trace, max(1, EVENTS // len(trace)))
        best = min(_timed(long) for _ in range(3))
        graph = build(Job((trace,)))
        peer = _networkx(graph)
        rate = len(long) / best
        tasks = len(graph) / len(trace)
        rows.append(
            (
                name,
                f"{len(long):,}",
                f"{rate / 1e6:.1f} M/s",
                f"{rate * tasks / 1e6:.1f} M/s",
                "–" if peer is None else f"{peer / 1e6:.2f} M/s",
                "–" if peer is None else f"{rate * tasks / peer:.0f} ×",
            )
        )
    return (
        "Written by `python -m benchmarks.build` with `LUMOS_TRACES` set: one core, best of three. To reach: 2 M events/s."
        " networkx: the same tasks and edges added to a DiGraph, no inference.\n\n"
        + markdown_table(("recording, repeated", "events", "events", "tasks", "networkx, tasks", "ratio"), rows)
    )


def _recordings() -> list[tuple[str, Trace]]:
    folder = os.environ.get("LUMOS_TRACES")
    found = [(name, read(str(Path(folder) / name)).traces[0]) for name in PUBLIC] if folder else []
    return [*found, ("examples/gpt-2rank-cpu", read(str(ROOT / "examples" / "gpt-2rank-cpu" / "rank0.json.gz")).traces[0])]


def _timed(trace: Trace) -> float:
    began = time.process_time()
    build(Job((trace,)))
    return time.process_time() - began


def _networkx(graph: Graph) -> float | None:
    """Tasks a second that networkx takes in; None where it is not installed."""
    try:
        import networkx
    except ImportError:
        return None
    count = min(len(graph), PEER_TASKS)
    edges = [(int(p), t) for t in range(count) for p in graph.pred[graph.pred_offset[t] : graph.pred_offset[t + 1]]] + [
        (t, t + 1) for t in range(count - 1)
    ]
    began = time.process_time()
    peer = networkx.DiGraph()
    peer.add_nodes_from((t, {"duration": int(graph.duration[t])}) for t in range(count))
    peer.add_edges_from(edges)
    return count / (time.process_time() - began)


if __name__ == "__main__":
    sys.exit(main())
