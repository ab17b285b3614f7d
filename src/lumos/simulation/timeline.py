"""Timelines: when every task of a graph ran, as measured or as simulated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lumos.errors import GraphError
from lumos.graph.concatenate import nearest_left
from lumos.graph.table import Graph, Kind
from lumos.result import Described
from lumos.units import count, duration

if TYPE_CHECKING:
    from lumos.trace.table import Int64, Job


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Timeline(Described):
    """Start and end of every task of `graph`, int64[n] ns. A collective's start is its arrival, so it includes waiting."""

    graph: Graph
    start: Int64
    end: Int64
    source: str  # "measured" or "replayed"

    def described(self) -> str:
        """Its source, length, and number of ranks and tasks."""
        lasts = duration(int(self.end.max() - self.start.min())) if len(self.start) else "0 ns"
        return f"{self.source}, {lasts}, {count(len(self.graph.ranks), 'rank')}, {len(self.graph):,} tasks"

    @property
    def job(self) -> Job | None:
        """The job that this is a run of; None where that was changed, as by durations of its own."""
        alone = self.graph.kind != Kind.COLLECTIVE  # the others' time holds waiting
        as_it_was = self.source == "measured" or bool(((self.end - self.start) == self.graph.duration)[alone].all())
        return self.graph.job if as_it_was else None

    @property
    def nbytes(self) -> int:
        """Memory of the columns, bytes."""
        return self.start.nbytes + self.end.nbytes


def measured(graph: Graph) -> Timeline:
    """The timeline that was measured. Raises GraphError where the graph was assembled from a configuration."""
    if graph.measured_start is None or graph.measured_end is None:
        raise GraphError("this graph was assembled from a configuration and was never measured: simulate it instead")
    return Timeline(graph, graph.measured_start, graph.measured_end, "measured")


def replayed(graph: Graph, start: Int64, end: Int64) -> Timeline:
    """The timeline that was simulated. Tasks that the graph leaves out stand where the work before them on their thread or stream ended,
    the first at time zero."""
    if graph.left_out is not None:
        gone = np.flatnonzero(graph.left_out)
        before = nearest_left(graph, np.argsort(graph.processor, kind="stable"))[gone]
        start[gone] = end[gone] = np.where(before >= 0, end[before], 0)
    return Timeline(graph, start, end, "replayed")
