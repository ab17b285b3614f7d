"""The verbs of `lumos chakra` as functions: `lumos.chakra.export`, `check`, `import_`, `link` and `stat`.

    lumos.chakra.export("traces/", "set", astra_sim=True, cluster="h100")
    lumos.chakra.check("set").ok

Jobs are given as for `lumos.read`. `export` also takes a graph, whether measured, changed or predicted.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumos.analyze.loop.steps import JobTime, members, step_times
from lumos.chakra.exporting import Exported, export_graph
from lumos.chakra.gather import gather
from lumos.chakra.linked_job import LinkedJob, link_job, linked_nodes, observed_in
from lumos.chakra.lower import lower
from lumos.chakra.recorded import amounts_of
from lumos.chakra.statistics import Stat, stat_workload
from lumos.chakra.write import write_again, write_set
from lumos.cost.cluster import load_cluster
from lumos.cost.from_trace import cluster_of
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError, UsageError
from lumos.graph.build import build
from lumos.graph.table import Graph
from lumos.result import Shown, plain
from lumos.simulation import Timeline, simulate
from lumos.trace.chakra.et import FORMAT
from lumos.trace.execution_trace import read as read_execution_trace
from lumos.trace.source import Source, as_job, keep_inputs

if TYPE_CHECKING:
    import os

    from lumos.trace.table import Job


def export(
    job: Source | Graph,
    output: str | os.PathLike[str],
    *,
    astra_sim: bool = False,
    cluster: str | None = None,
    roofline: bool = False,
    exact_ns: bool = False,
    repair: bool = False,
) -> Exported:
    """Write a job's graph into the folder `output`: one .et file per rank, and the communicators.

    astra_sim: also write the files that ASTRA-sim needs to run it. cluster: the cluster that these describe (a name or a .toml file), that
    of the recorded device otherwise. roofline: let the simulator price compute by its operations and bytes. exact_ns: keep nanoseconds.
    Raises UsageError for options that contradict each other, GraphError where the job has no schedule, LumosError where the folder cannot
    be written.
    """
    described, notes = None if cluster is None else load_cluster(cluster), tuple[Diagnostic, ...]()
    asked: dict[str, Any] = {"exact_ns": exact_ns, "astra_sim": astra_sim, "roofline": roofline}
    if isinstance(job, Graph):
        graph = job
    else:
        keep_inputs(job, output)
        recorded = as_job(job, repair=repair)
        graph = build(recorded)
        asked |= {"amounts": amounts_of(graph, recorded), "origin": recorded.origin}
        if cluster is None and astra_sim:
            with suppress(LumosError):  # the traces name no device that is known
                described = cluster_of(recorded.traces[0], "--cluster")
                text = f"no cluster was named: the simulator's files describe {described.name}, which has the device that the traces name"
                notes = (Diagnostic("cluster-by-device", text),)
    exported = export_graph(graph, Path(output), cluster=described, **asked)
    return replace(exported, diagnostics=(*exported.diagnostics, *notes))


def link(
    execution_traces: str | os.PathLike[str],
    kineto: Source,
    *,
    output: str | os.PathLike[str] | None = None,
    repair: bool = False,
    other_window: bool = False,
) -> LinkedJob:
    """Join execution traces, which have tensors, with the profiler's files of the same ranks and run, which have times.

    execution_traces: that of one rank, or a folder with one for each rank. output: write the linked nodes as a set into this folder; of all
    ranks, its collectives meet their peers. other_window: link two windows of one process too. Raises UsageError where one trace is given
    for several ranks, LumosError, with the reasons, where a rank has none of its run, TraceError where a file cannot be read, GraphError
    where the job has no schedule.
    """
    keep_inputs([execution_traces], output)
    keep_inputs(kineto, output)
    source, job = Path(execution_traces), as_job(kineto, repair=repair)
    if not source.is_dir() and len(job.traces) != 1:
        path = job.traces[0].path
        raise UsageError(f"{path}: the first of {len(job.traces)} ranks; an execution trace is linked with the file of its own rank")
    linked = link_job(observed_in(source) if source.is_dir() else [read_execution_trace(source)], job, other_window=other_window)
    if output is not None:
        write_set(linked_nodes(job, linked), Path(output))
    return linked


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Imported(Shown):
    """A set that was read as a job, its graph, the simulated timeline, and the time of its step in it."""

    job: Job
    graph: Graph
    timeline: Timeline
    time: JobTime

    def to_dict(self) -> dict[str, Any]:
        """The keys of `lumos chakra import --json`."""
        return {
            "ranks": len(self.graph.ranks),
            "tasks": len(self.graph),
            "step_time_ns": self.time.step_time_ns,
            "latency_ns": self.time.latency_ns,
            "basis": self.time.basis,
            "diagnostics": plain(self.graph.diagnostics),
        }


def import_(source: Source, *, output: str | os.PathLike[str] | None = None) -> Imported:
    """Read a set that any tool wrote as a job, and simulate it.

    output: write the set again into this folder, every node as it was read. Raises TraceError where the set is broken, GraphError where
    its ranks wait for each other for ever.
    """
    keep_inputs(source, output)
    job = as_job(source)
    graph = build(job)
    timeline = simulate(graph)
    if output is not None:
        write_again(job, Path(output))
    return Imported(job, graph, timeline, step_times(timeline, members(graph)).headline)


def stat(source: Source) -> Stat:
    """Summarise a set, or any job as it would be exported: nodes, operators, communication, dependencies, how alike ranks are."""
    job = as_job(source)
    return stat_workload(gather(job) if job.traces[0].metadata.get("format") == FORMAT else lower(build(job)))
