"""Speed of the Chakra tools: the codec against protobuf, the export of a large job, linking and checking.

python -m benchmarks.chakra        writes benchmarks/results/chakra.md
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from tools.document import markdown_table
from tools.figures import write_result

from lumos.chakra.checks import check
from lumos.chakra.exporting import export_graph
from lumos.chakra.linked import link_traces
from lumos.graph.table import Collectives, Dependency, Graph, Kind, Processor
from lumos.trace import read
from lumos.trace.chakra.et import stream
from lumos.trace.chakra.schema import ChakraNode
from lumos.trace.chakra.wire import decode_node, encode_node
from lumos.trace.execution_trace import read as read_observed

RANKS, NODES = 1024, 2000
PAIRS = (
    ("resnet-2080ti", "resnet-2080ti/execution_trace", "resnet-2080ti/kineto"),
    ("vgg13-h100", "vgg13-h100/execution_trace", "vgg13-h100/kineto"),
    ("dlrm-8xv100, rank 0", "dlrm-8xv100/et-rank0", "dlrm-8xv100/kineto-rank0"),
)


def main() -> int:
    if sys.argv[1:] == ["--export"]:
        return _export_alone()
    parts = [
        "Written by `python -m benchmarks.chakra` with `LUMOS_TRACES` set: one core, processor time, best of three (for the"
        " export, wall-clock time).",
        markdown_table(("what", "to reach", "reached"), [*_export_rows(), *_link_rows()]),
        "Lumos has a codec of its own, which takes about as long as protobuf's objects in Python and checks every value. With it"
        " protobuf is not needed at run time and cannot clash with another installation, and fields that are not in the schema are"
        " preserved byte for byte.\n\n" + markdown_table(("codec, per node of the export", "own", "protobuf"), _codec_rows()),
    ]
    write_result("benchmarks/results/chakra.md", "\n\n".join(parts))
    return 0


def large_job(ranks: int = RANKS, nodes: int = NODES) -> Graph:
    """Every rank computes on a stream and reduces every twenty tasks, over eight neighbours or over all of its column."""
    rng = np.random.default_rng(0)
    per = nodes // 20
    comm = np.arange(19, nodes, 20)
    total = ranks * nodes
    local = np.tile(np.arange(nodes), ranks)
    rank = np.repeat(np.arange(ranks), nodes)
    is_comm = np.isin(local, comm)
    task = np.flatnonzero(is_comm).reshape(ranks, per)
    sets: list[Any] = []
    for k in range(per):
        grid = task[:, k].reshape(ranks // 8, 8)
        sets += list(grid if k % 2 else grid.T)
    members = np.concatenate(sets)
    after = np.flatnonzero(np.roll(is_comm, 1) & (local > 0))
    edges = np.concatenate((after - 1, task.reshape(-1) - 1))
    succ = np.concatenate((after, task.reshape(-1)))
    order = np.argsort(succ, kind="stable")
    count = len(members)
    return Graph(
        ranks=tuple(range(ranks)),
        processors=tuple(Processor(r, True, f"stream {s}", 0, s) for r in range(ranks) for s in (7, 20)),
        names=("gemm", "attention", "norm", "all-reduce"),
        duration=rng.integers(2_000, 400_000, total),
        processor=(2 * rank + is_comm).astype(np.int32),
        kind=np.where(is_comm, Kind.COLLECTIVE, Kind.KERNEL).astype(np.uint8),
        name=np.where(is_comm, 3, local % 3).astype(np.int32),
        event=np.full(total, -1, np.int32),
        pred_offset=np.concatenate(([0], np.cumsum(np.bincount(succ, minlength=total)))).astype(np.int64),
        pred=edges[order].astype(np.int32),
        pred_kind=np.full(len(edges), Dependency.DATA, np.uint8),
        lag=np.zeros((ranks, len(Dependency)), np.int64),
        rendezvous_offset=np.cumsum([0, *map(len, sets)]).astype(np.int64),
        rendezvous_task=members.astype(np.int32),
        collectives=Collectives(
            task=task.reshape(-1).astype(np.int32),
            kind=np.zeros(count, np.int32),
            nbytes=np.full(count, 1 << 24, np.int64),
            group=np.full(count, -1, np.int32),
            sequence=np.full(count, -1, np.int64),
            peer=np.full(count, -1, np.int32),
            kinds=("all-reduce",),
            groups=(),
        ),
    )


def _export_alone() -> int:
    """In a process of its own, so that its peak memory is the export's: prints seconds, those of the processor, and MB before and after."""
    graph = large_job()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    folder = Path(tempfile.mkdtemp())
    try:
        began, worked = time.perf_counter(), time.process_time()
        export_graph(graph, folder, astra_sim=True)
        seconds, worked = time.perf_counter() - began, time.process_time() - worked
        size = sum(file.stat().st_size for file in folder.iterdir())
    finally:
        shutil.rmtree(folder)
    print(seconds, worked, before / 1e3, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, size / 1e6)
    return 0


def _export_rows() -> list[tuple[str, str, str]]:
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.chakra", "--export"], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]
    )
    seconds, worked, _, peak, size = map(float, found.stdout.split())
    what = f"export of {RANKS:,} ranks × {NODES:,} nodes with `--astra-sim` ({size:,.0f} MB of files)"
    rows = [(what, "≤ 60 s, ≤ 2 GB", f"{seconds:.1f} s ({worked:.1f} s of processor time), {peak / 1e3:.2f} GB (the graph included)")]
    folder = Path(tempfile.mkdtemp())
    try:
        graph = large_job(64)
        export_graph(graph, folder)
        began = time.process_time()
        result = check(folder)
        rows.append(("check of 64 ranks × 2,000 nodes", "–", f"{result.nodes / (time.process_time() - began) / 1e3:,.0f} k nodes/s"))
        began = time.process_time()
        read(folder)
        rows.append(("the same read as a job", "–", f"{result.nodes / (time.process_time() - began) / 1e3:,.0f} k nodes/s"))
    finally:
        shutil.rmtree(folder)
    return rows


def _link_rows() -> list[tuple[str, str, str]]:
    root = os.environ.get("LUMOS_TRACES")
    if not root:
        return [("linking", "≥ 200 k events/s", "LUMOS_TRACES is not set")]
    rows = []
    for name, one, other in PAIRS:
        paths = (Path(root) / f"{one}.json.gz", Path(root) / f"{other}.json.gz")
        seconds, events = [], 0
        for _ in range(3):
            began = time.process_time()
            observed, trace = read_observed(paths[0]), read(paths[1]).traces[0]
            middle = time.process_time()
            link_traces(observed, trace, other_window=True)
            seconds.append((time.process_time() - began, time.process_time() - middle))
            events = len(observed) + len(trace)
        whole, alone = min(s[0] for s in seconds), min(s[1] for s in seconds)
        text = f"{events / alone / 1e3:,.0f} k events/s, {events / whole / 1e3:,.0f} k with reading both files"
        rows.append((f"linking {name} ({events:,} events)", "≥ 200 k events/s", text))
    return rows


def _codec_rows() -> list[tuple[str, str, str]]:
    folder = Path(tempfile.mkdtemp())
    try:
        export_graph(large_job(8), folder)
        nodes = [p.node for r in range(8) for p in stream(folder / f"job.{r}.et")[1]]
    finally:
        shutil.rmtree(folder)
    data = [encode_node(n) for n in nodes]
    rows = {"write": (_best(lambda: [encode_node(n) for n in nodes]), None), "read": (_best(lambda: [decode_node(d) for d in data]), None)}
    peer = _protobuf()
    if peer is not None:
        rows = {
            "write": (rows["write"][0], _best(lambda: [_rebuilt(peer, n).SerializeToString() for n in nodes])),
            "read": (rows["read"][0], _best(lambda: [_taken(peer, d) for d in data])),
        }
    per = 1e6 / len(nodes)
    return [
        (what, f"{own * per:.1f} µs", "not installed" if other is None else f"{other * per:.1f} µs") for what, (own, other) in rows.items()
    ]


def _best(run: Any) -> float:
    times = []
    for _ in range(3):
        began = time.process_time()
        run()
        times.append(time.process_time() - began)
    return min(times)


def _protobuf() -> Any:
    """Chakra's Node as a protobuf class; None where protobuf is not installed."""
    try:
        from tests.trace.chakra.chakra_schema import messages

        return messages()["Node"]
    except ImportError:
        return None


def _rebuilt(peer: Any, node: ChakraNode) -> Any:
    """The same node as protobuf's objects, as a program in Python would build it."""
    out = peer(id=node.id, name=node.name, type=node.type, data_deps=node.data_deps)
    out.start_time_micros, out.duration_micros = node.start_time_micros, node.duration_micros
    for name, kind, value, _ in node.attrs:
        attribute = out.attr.add(name=name)
        setattr(attribute, f"{kind}_val", value)
    return out


def _taken(peer: Any, data: bytes) -> tuple[Any, ...]:
    """All values that Lumos' codec returns for a node, read from protobuf's objects."""
    node = peer()
    node.ParseFromString(data)
    attrs = tuple((a.name, which, getattr(a, which)) for a in node.attr if (which := a.WhichOneof("value")))
    return node.id, node.name, node.type, tuple(node.data_deps), node.start_time_micros, node.duration_micros, attrs


if __name__ == "__main__":
    sys.exit(main())
