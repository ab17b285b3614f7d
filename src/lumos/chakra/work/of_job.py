"""The graph of a job with what its tasks compute and move, wherever that is known from; and the cluster that the job ran on."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from lumos.chakra.build import timed
from lumos.chakra.gather import folder_of, gather
from lumos.chakra.system_files import network_of
from lumos.chakra.work.amounts import Amounts, main_type
from lumos.chakra.work.recorded import recorded_work
from lumos.cost.from_trace import cluster_of
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.trace.chakra.et import FORMAT
from lumos.trace.table import ABSENT
from lumos.vocabulary import DType

if TYPE_CHECKING:
    from lumos.chakra.workload import Workload
    from lumos.cost.cluster import Cluster
    from lumos.graph.table import Graph
    from lumos.trace.table import Job


def amounts_of(graph: Graph, job: Job) -> Amounts:
    """What the tasks of a job's graph compute and move: as a set states it, or from the shapes that a profiler recorded."""
    if job.traces[0].metadata.get("format") == FORMAT:
        return stated_work(timed(gather(job), network_of(folder_of(job))))
    return recorded_work(graph, job)


def stated_work(workload: Workload) -> Amounts:
    """What a set itself says about its nodes, in their order."""
    detail = np.full(len(workload), ABSENT, np.int32) if workload.detail is None else workload.detail
    table = workload.details
    types = [_first_type(t.inputs.types) if t.inputs is not None else None for t in table]
    weight: Counter[DType | None] = Counter()
    for place in np.flatnonzero((detail >= 0) & (workload.operations > 1)).tolist():
        weight[types[detail[place]]] += int(workload.operations[place])
    return Amounts(workload.operations, workload.bytes, detail, table, main_type(weight))


def _first_type(text: str) -> DType | None:
    """The type of the first tensor in a list such as `["Tensor(float)", "Int"]`."""
    for word in text.strip("[]").split(","):
        found = DType.parse(word.strip(" \"'").removeprefix("Tensor(").removesuffix(")"))
        if found is not None:
            return found
    return None


def recorded_on(job: Job) -> tuple[Cluster | None, tuple[Diagnostic, ...]]:
    """The cluster with the device that the job's first trace names, and a diagnostic that says so; None where it names none."""
    try:
        cluster = cluster_of(job.traces[0], "--cluster")
    except LumosError:
        return None, ()
    text = f"no cluster was named: the simulator's files describe {cluster.name}, which has the device that the traces name"
    return cluster, (Diagnostic("cluster-by-device", text),)
