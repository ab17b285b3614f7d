"""The dependency graph of a job, from its traces.

The graph of each rank is built on its own (`one_rank`); then the ranks are joined by their collectives and transfers, and the earliest
start becomes time zero. Recordings of whole operations, and formats that state their dependencies, have builders of their own.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from lumos.errors import GraphError
from lumos.graph.concatenate import concatenate
from lumos.graph.joined.one_job import job_evidence, modelled_origin
from lumos.graph.joined.ranks import join
from lumos.graph.one_rank import rank_graph
from lumos.graph.operations.graph import operations_graph
from lumos.stages import stage
from lumos.trace.operations import is_operations

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.graph.table import Graph
    from lumos.trace.table import Job

#: The group of entry points under which packages register builders for formats that state their dependencies. An entry is
#: named like the `format` in the metadata of its traces; `pyproject.toml` has Lumos' own.
BUILDERS = "lumos.graph_builders"


@stage("building the graph")
def build(job: Job) -> Graph:
    """The dependency graph of a job, its ranks joined. Raises GraphError where a trace contains no work, or no builder knows its format."""
    graph = _built(job)
    of_job = (finding for finding in job.diagnostics if finding not in graph.diagnostics)
    evidence = (*graph.evidence, *modelled_origin(job.origin))
    graph = replace(graph, diagnostics=(*of_job, *graph.diagnostics), evidence=evidence)
    object.__setattr__(graph, "job", job)  # a graph that is made of this one is of another job
    return graph


def _built(job: Job) -> Graph:
    if written := job.traces[0].metadata.get("format"):
        return _registered(str(written))(job)
    if is_operations(job.traces[0]):
        return operations_graph(job)
    world = max((trace.world_size for trace in job.traces if trace.world_size is not None), default=None)
    graph = _from_zero(join(concatenate([rank_graph(trace) for trace in job.traces]), world))
    return replace(graph, evidence=(*graph.evidence, *job_evidence(job.traces, graph)))


def _registered(written: str) -> Callable[[Job], Graph]:
    """The builder of a format. GraphError where none is registered."""
    for entry in entry_points(group=BUILDERS, name=written):
        builder: Callable[[Job], Graph] = entry.load()
        return builder
    raise GraphError(f"no builder is registered for traces of the format {written!r}; install Lumos again, or the package that reads them")


def _from_zero(graph: Graph) -> Graph:
    """The graph with the earliest measured start as its time zero, so that a task without predecessors starts with the job."""
    if graph.measured_start is None or graph.measured_end is None:
        return graph
    origin = int(graph.measured_start.min())
    return replace(
        graph,
        measured_start=graph.measured_start - origin,
        measured_end=graph.measured_end - origin,
        release_time=graph.release_time - origin,
        steps=tuple(replace(s, start=s.start - origin, end=s.end - origin) for s in graph.steps),
        origin=origin,
    )
