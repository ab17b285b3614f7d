"""The machine that a job was recorded on, and the one that the changed job is to run on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumos.changes.hardware import network as with_links
from lumos.changes.layout.exchange import NO_LINK
from lumos.cost.cluster import Accelerator, Cluster, load_cluster
from lumos.cost.from_trace import cluster_of
from lumos.errors import LumosError
from lumos.graph.table import Evidence
from lumos.vocabulary import Grade

if TYPE_CHECKING:
    from lumos.graph.table import Graph
    from lumos.trace.table import Job


def has_device(graph: Graph) -> bool:
    """Whether the job ran on devices."""
    return any(p.is_stream for p in graph.processors)


def recorded_cluster(job: Job, graph: Graph, base_cluster: str | None) -> Cluster:
    """The cluster that the trace ran on, by --base-cluster or the device that its header names."""
    if base_cluster is not None:
        return load_cluster(base_cluster)
    if not has_device(graph):
        return load_cluster("host")
    return cluster_of(job.traces[0], "--base-cluster")


def other_device(job: Job, graph: Graph, base_cluster: str | None) -> tuple[Evidence, ...]:
    """The finding that --base-cluster names another accelerator than the one that the trace's header describes; () where it does not."""
    if base_cluster is None or not has_device(graph):
        return ()
    stated = load_cluster(base_cluster).accelerator
    try:
        described = cluster_of(job.traces[0], "--base-cluster").accelerator
    except LumosError:
        return ()
    if described.name == stated.name:
        return ()
    message = (
        f"--base-cluster says that the job was recorded on {stated.name}, and the header of {job.traces[0].path} says {described.name}:"
        f" the answer takes {stated.name}"
    )
    return (Evidence("other-device", message, Grade.LIMITED),)


@dataclass(frozen=True, slots=True)
class Machine:
    """Where `job`, whose graph is `graph`, ran and where it is to run.

    base_cluster: where it was recorded, for traces that do not say. cluster: where it is to run; None where that does not change. network:
    factors on the links of that cluster (`hardware.network`).
    """

    job: Job
    graph: Graph
    base_cluster: str | None = None
    cluster: str | None = None
    network: tuple[str, ...] = ()

    @property
    def recorded(self) -> Cluster:
        """The cluster that the job ran on. Raises LumosError where neither its files nor --base-cluster say."""
        return recorded_cluster(self.job, self.graph, self.base_cluster)

    @property
    def goal(self) -> Cluster:
        """The cluster that the changed job is to run on. Raises LumosError where nothing says."""
        recorded = self.recorded
        return self.target(recorded) or recorded

    @property
    def accelerator(self) -> Accelerator | None:
        """The accelerator that the changed job is to run on; None for a job on CPUs. Raises LumosError where the trace does not say."""
        return self.goal.accelerator if has_device(self.graph) else None

    @property
    def known(self) -> Cluster | None:
        """The cluster that the job ran on; None where neither its files nor --base-cluster say, and for processes on a CPU."""
        if self.base_cluster is None and not has_device(self.graph):
            return None
        try:
            return self.recorded
        except LumosError:
            return None

    @property
    def stated(self) -> bool:
        """Whether somebody said over which links its ranks exchange."""
        return bool(self.base_cluster or self.cluster or self.network)

    @property
    def alone(self) -> bool:
        """Whether the job is one process that exchanges nothing."""
        facts = self.graph.collectives
        return len(self.job.traces) == 1 and (self.job.traces[0].world_size or 1) == 1 and (facts is None or not len(facts.task))

    def target(self, base: Cluster) -> Cluster | None:
        """The cluster that a job on `base` is to run on; None where that does not change."""
        if self.cluster is None and not self.network:
            return None
        return with_links(load_cluster(self.cluster) if self.cluster else base, self.network)

    @property
    def fabric(self) -> Cluster | None:
        """The cluster whose links are to connect the replicas. None for a CPU job of one process without a stated cluster: it exchanged
        nothing whose time could be scaled."""
        if len(self.job.traces) > 1 or (self.job.traces[0].world_size or 1) > 1:
            return self.goal
        if not has_device(self.graph) and self.base_cluster is None and self.cluster is None:
            return None
        return self.goal

    def link(self, key: str) -> Cluster:
        """The cluster over whose links the ranks of a job of one process would exchange. key: the setting that makes them exchange.
        Raises LumosError where nothing says."""
        cluster = self.fabric
        if cluster is None:
            raise LumosError(NO_LINK.replace("--set dp", f"--set {key}"))
        return cluster
