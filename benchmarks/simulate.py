"""How fast a graph is simulated: ns a task of the sweep, the batched sweep and the event loop, beside two alternatives.

Run `python -m benchmarks.simulate` to measure and to write benchmarks/results/simulate.md.
"""

from __future__ import annotations

import gc
import heapq
import importlib.util
import platform
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from tools.figures import write_result

from lumos.graph.table import Dependency, Graph, Kind, Processor, Waits
from lumos.simulation import Frozen, freeze, simulate, sweep, sweep_many

SIZES = (100_000, 1_000_000, 10_000_000)
CONFIGURATIONS = 16  # of the batched sweep
RANKS = 8

# One layer of one rank: (processor of the rank, kind, launched by, handed off or stream-waiting for) in id order. Processors: 0 and 1 are
# threads (forward and backward), 2 and 3 compute streams, 4 the communication stream.
LAYER: Sequence[tuple[int, Kind, int | None, int | None]] = (
    (0, Kind.OPERATOR, None, None),
    (0, Kind.LAUNCH, None, None),
    (2, Kind.KERNEL, 1, None),
    (0, Kind.OPERATOR, None, None),
    (0, Kind.LAUNCH, None, None),
    (2, Kind.KERNEL, 4, None),
    (1, Kind.OPERATOR, None, 3),
    (1, Kind.LAUNCH, None, None),
    (3, Kind.KERNEL, 7, 5),
    (0, Kind.LAUNCH, None, None),
    (4, Kind.COLLECTIVE, 9, 5),
    (0, Kind.LAUNCH, None, None),
    (2, Kind.KERNEL, 11, 10),
    (0, Kind.OPERATOR, None, 7),
    (0, Kind.SYNC, None, None),
    (0, Kind.RETURN, None, None),
)
SYNC_EVERY = 32  # layers


def synthetic(tasks: int) -> Graph:
    """About `tasks` tasks on RANKS ranks: hand-offs, launches to three streams, stream waits, collectives, syncs."""
    layers = tasks // (len(LAYER) * RANKS)
    width, n = len(LAYER), layers * len(LAYER) * RANKS
    random = np.random.default_rng(0)
    processor, kind, launched, awaited = (np.array([-1 if v is None else v for v in column]) for column in zip(*LAYER, strict=True))
    base = np.arange(layers * RANKS)[:, None] * width  # rank after rank, layer after layer
    has = np.stack([launched >= 0, awaited >= 0], axis=1)
    pred = np.broadcast_to(np.stack([launched, awaited], axis=1), (layers * RANKS, width, 2)) + base[:, :, None]
    keep = np.broadcast_to(has, pred.shape)
    second = np.where(processor >= 2, Dependency.STREAM_WAIT, Dependency.HAND_OFF)
    kinds = np.broadcast_to(np.stack([np.full(width, Dependency.LAUNCH), second], axis=1).astype(np.uint8), pred.shape)
    lag = np.zeros((RANKS, len(Dependency)), np.int64)
    lag[:, [Dependency.LAUNCH, Dependency.STREAM_ORDER, Dependency.SYNC]] = 1500, 1000, 2000
    # Bounds of a uniform duration by kind, ns. Kernels last longer than their launches, as in most training jobs.
    low = np.array([3000, 3000, 4000, 1000, 1000, 0, 10000, 0, 0, 20000])
    high = np.array([9000, 9000, 7000, 2000, 2000, 1, 30000, 1, 1, 40000])
    all_kinds = np.tile(kind, layers * RANKS).astype(np.uint8)
    collective = np.arange(n).reshape(RANKS, layers, width)[:, :, 10]
    returns = np.arange(n).reshape(RANKS, layers, width)[:, SYNC_EVERY - 1 :: SYNC_EVERY, 15].reshape(-1)
    return Graph(
        ranks=tuple(range(RANKS)),
        processors=tuple(
            Processor(r, p >= 2, f"{'stream' if p >= 2 else 'thread'} {p}", 0 if p >= 2 else -1) for r in range(RANKS) for p in range(5)
        ),
        names=("task",),
        duration=random.integers(low[all_kinds], high[all_kinds]),
        processor=(np.tile(processor, layers * RANKS) + np.repeat(np.arange(RANKS), layers * width) * 5).astype(np.int32),
        kind=all_kinds,
        name=np.zeros(n, np.int32),
        event=np.full(n, -1, np.int32),
        pred_offset=np.concatenate([[0], np.cumsum(np.tile(has.sum(axis=1), layers * RANKS))]).astype(np.int64),
        pred=pred[keep].astype(np.int32),
        pred_kind=kinds[keep],
        lag=lag,
        rendezvous_offset=np.arange(layers + 1, dtype=np.int64) * RANKS,
        rendezvous_task=collective.T.reshape(-1).astype(np.int32),
        queue_depth=np.full(RANKS, 1022, np.int32),
        waits=Waits(returns.astype(np.int32), np.full(len(returns), -1, np.int32)),
    )


def seconds(call: Callable[[], object], repeats: int = 3) -> float:
    """The best of several runs."""
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return best


def edges(frozen: Frozen) -> Iterator[tuple[int, int]]:
    """(task, predecessor) of every edge."""
    tasks = np.repeat(frozen.edges.order, np.diff(frozen.edges.pred_offset)).tolist()
    return zip(tasks, frozen.edges.pred.tolist(), strict=True)


def python_heap(graph: Graph) -> Callable[[], int]:
    """A plain event loop over the edges of the frozen graph: lists, a heap, no queues; the least that Python can do."""
    frozen = freeze(graph)
    n = len(graph)
    successors: list[list[int]] = [[] for _ in range(n)]
    counts = [0] * n
    for t, pred in edges(frozen):
        successors[pred].append(t)
        counts[t] += 1
    durations = graph.duration.tolist()

    def run() -> int:
        remaining = list(counts)
        heap = [(durations[t], t) for t in range(n) if not remaining[t]]
        heapq.heapify(heap)
        end = 0
        while heap:
            end, task = heapq.heappop(heap)
            for t in successors[task]:
                remaining[t] -= 1
                if not remaining[t]:
                    heapq.heappush(heap, (end + durations[t], t))
        return end

    return run


def networkx_sweep(graph: Graph) -> Callable[[], float]:
    """Longest path over the edges of the frozen graph, as tools that keep graphs in networkx compute it."""
    import networkx as nx

    frozen = freeze(graph)
    durations = graph.duration.tolist()
    net = nx.DiGraph()
    net.add_nodes_from(range(len(graph)))
    for t, pred in edges(frozen):
        net.add_edge(pred, t, weight=durations[t])
    return lambda: float(nx.dag_longest_path_length(net))


def measure(size: int) -> list[tuple[str, str, float]]:
    """(what, tasks, ns a task) of each way to simulate one size."""
    graph = synthetic(size)
    n, label = len(graph), f"{size / 1e6:g} M"
    frozen = freeze(graph)
    rows = np.repeat(graph.duration[None], CONFIGURATIONS, axis=0)
    figures = [
        ("sweep", label, seconds(lambda: sweep(frozen)) * 1e9 / n),
        (
            f"batched sweep, a configuration ({CONFIGURATIONS} together)",
            label,
            seconds(lambda: sweep_many(frozen, rows)) * 1e9 / n / CONFIGURATIONS,
        ),
        ("event loop", label, seconds(lambda: simulate(graph)) * 1e9 / n),
        ("freeze, once", label, seconds(lambda: freeze(graph)) * 1e9 / n),
    ]
    if size <= 1_000_000:
        figures.append(("plain-Python heap", label, seconds(python_heap(graph), 1) * 1e9 / n))
    if size <= 100_000 and importlib.util.find_spec("networkx"):
        figures.append(("networkx longest path", label, seconds(networkx_sweep(graph), 1) * 1e9 / n))
    gc.collect()
    return figures


def table() -> str:
    """The measured figures as a Markdown table, ns a task, each beside the event loop of its size."""
    figures = [figure for size in SIZES for figure in measure(size)]
    loop = {label: value for what, label, value in figures if what == "event loop"}
    names = list(dict.fromkeys(what for what, _, _ in figures))
    by = {(what, label): value for what, label, value in figures}
    lines = ["| ns a task | " + " | ".join(loop) + " | against the event loop |", "|---|" + "---|" * (len(loop) + 1)]
    for name in names:
        values = [by.get((name, label)) for label in loop]
        known = [(value, label) for label in loop if (value := by.get((name, label))) is not None]
        ratio = known[-1][0] / loop[known[-1][1]]
        text = f"{1 / ratio:.1f} x faster" if ratio < 1 else f"{ratio:.0f} x slower" if ratio > 1 else "1"
        lines.append(f"| {name} | " + " | ".join("–" if v is None else f"{v:.1f}" for v in values) + f" | {text} |")
    if not importlib.util.find_spec("networkx"):
        lines.append("| networkx longest path | " + "not installed | " * (len(loop) + 1))
    machine = f"{platform.machine()}, Python {platform.python_version()}, one core, best of three (Python rows: one run)"
    return "\n".join([*lines, "", f"Made by `python -m benchmarks.simulate` on {machine}."])


def main() -> None:
    """Measure, print, and write the table."""
    text = table()
    print(text)
    write_result("benchmarks/results/simulate.md", text)


if __name__ == "__main__":
    main()
