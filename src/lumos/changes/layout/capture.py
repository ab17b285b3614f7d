"""CUDA graphs in a measured job: the passes over the layers, each launched by one call.

Each graph captures one pass (forward, or backward with what it recomputes) of one microbatch over the layers, on one thread. A
call that waits for the device splits the pass into two graphs, since a capture must not contain one. The operators and launch
calls of the pass, and the CPU time between them, are removed. One graph launch in their place enqueues all of its kernels,
which then follow each other in the order of their streams, with their measured gaps. What precedes the layers (data,
embedding), the head, the loss and the optimizer do not change.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.steps import assigned
from lumos.changes.settings import OFF, ON
from lumos.errors import LumosError
from lumos.graph.lists import numbered
from lumos.graph.table import Dependency, Graph, Kind
from lumos.prediction.cuda_graphs import graph_launch
from lumos.vocabulary import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from lumos.changes.layout.placed import Placed
    from lumos.segment.segment import Segmentation
    from lumos.trace.table import Int64

#: Calls that launch a graph, as CUDA and HIP name them.
GRAPH_LAUNCH = re.compile(r"(cuda|hip|cu)GraphLaunch", re.IGNORECASE)
#: Phases that are captured, and the pass that they belong to.
_PASS = {Phase.FORWARD: 0, Phase.BACKWARD: 1, Phase.RECOMPUTE: 1}


def wants_graphs(settings: Mapping[str, str], graph: Graph) -> bool:
    """Whether --set asks for graphs.

    Raises LumosError for "off" where the job of `graph` launches graphs: its trace does not show how long launching their kernels
    one by one takes.
    """
    value = settings.get("cuda_graphs")
    if value == OFF and launches_graphs(graph):
        raise LumosError(
            "--set cuda_graphs=off: the trace does not show how long launching the kernels of its graphs one by one takes; record a step"
            " without graphs"
        )
    return value == ON


def launches_graphs(graph: Graph) -> bool:
    """Whether the job launches graphs already."""
    return bool((graph.named(GRAPH_LAUNCH.match) & (graph.kind == Kind.LAUNCH)).any())


class Captured(NamedTuple):
    """A placed job with its passes captured. launches: bool[n], the tasks that launch graphs."""

    placed: Placed
    launches: NDArray[np.bool_]


def capture(placed: Placed, segmentation: Segmentation) -> Captured:
    """The job with every pass over its layers as one graph; in a job without layers, with all work of every pass as one graph.

    Raises LumosError where no pass launches anything, or graphs launch all of it already.
    """
    graph, owners = placed.graph, placed.owners
    host = np.flatnonzero(~owners.on_device)
    region = _regions(placed, segmentation, host)
    low, high, duration = placed.low.copy(), placed.high.copy(), graph.duration.copy()
    launch = owners.launch.astype(np.int64)
    nodes = np.bincount(launch[launch >= 0], minlength=len(graph))
    by_graph = graph.named(GRAPH_LAUNCH.match)
    launched_by = np.arange(len(graph))
    launches_graph = np.zeros(len(graph), bool)
    for number, tasks in _runs(graph, region, host):
        calls = tasks[nodes[tasks] > 0]
        if number < 0 or not len(calls) or by_graph[calls].any():
            continue
        for column, time in zip((duration, low, high), graph_launch(int(nodes[calls].sum())), strict=True):
            column[tasks] = 0
            column[calls[0]] = time
        launched_by[calls] = calls[0]
        launches_graph[calls[0]] = True
    if not launches_graph.any():
        raise LumosError("--set cuda_graphs=on: no pass launches device work of its own (lumos inspect --blocks shows the passes)")
    pred = graph.pred.copy()
    of_launch = graph.pred_kind == Dependency.LAUNCH
    pred[of_launch] = launched_by[pred[of_launch]]
    graph = replace(graph, duration=duration, pred=pred)
    owners = assigned(graph, owners.steps, owners.step, owners)
    return Captured(replace(placed, graph=graph, owners=owners, low=low, high=high), launches_graph)


def _regions(placed: Placed, segmentation: Segmentation, host: Int64) -> Int64:
    """The number of the captured pass to which each of the CPU tasks `host` belongs, -1 none."""
    inside_layers = [p.label.layer >= 0 for p in segmentation.pieces]
    captured = [inside or not any(inside_layers) for inside in inside_layers]
    of_piece = np.array(
        [
            (_PASS[p.label.phase], p.label.microbatch) if p.label.phase in _PASS and inside else (-1, -1)
            for p, inside in zip(segmentation.pieces, captured, strict=True)
        ],
        np.int64,
    )
    waits = np.isin(placed.graph.kind[host], (Kind.SYNC, Kind.RETURN))
    source = placed.source[host]
    direction, microbatch = of_piece[segmentation.piece[source]].T
    number = numbered(placed.owners.rank[host], placed.owners.step[host], direction, microbatch)
    return np.where((source >= 0) & ~waits & (direction >= 0), number, -1)


def _runs(graph: Graph, region: Int64, host: Int64) -> Iterator[tuple[int, Int64]]:
    """Consecutive CPU tasks of a thread in one pass: the number of the pass, and the tasks."""
    order = np.argsort(graph.processor[host], kind="stable")
    tasks, region = host[order], region[order]
    changes = (np.diff(region) != 0) | (np.diff(graph.processor[tasks]) != 0)
    bounds = [0, *(np.flatnonzero(changes) + 1).tolist(), len(tasks)]
    for low, high in pairwise(bounds):
        if high > low:
            yield int(region[low]), tasks[low:high]
