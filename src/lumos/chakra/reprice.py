"""A set whose communication costs what a network file says, whatever times were recorded: the two side by side.

Where the system file asks for it, compute on devices takes what its operations and bytes cost. Other compute, host work,
dependencies and the order on each stream stay as recorded. As in simulators, the communication of a rank runs one after
another, and a send does not wait for its receiver.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.chakra.build import graph_of
from lumos.chakra.gather import gather
from lumos.chakra.simulated import of_roofline
from lumos.chakra.system_files import read_network
from lumos.diagnostics import Diagnostic
from lumos.errors import UsageError
from lumos.trace.chakra.companions import Companion, companions
from lumos.trace.chakra.et import FORMAT
from lumos.trace.table import ABSENT

if TYPE_CHECKING:
    from pathlib import Path

    from lumos.graph.table import Graph
    from lumos.trace.table import Job


def priced_job(job: Job, network: Path) -> Graph:
    """The graph of a set on the network of a file, and of the system file beside that; its measured times are the recorded ones.

    Raises UsageError where the job is no Chakra set, LumosError where the file cannot be understood, GraphError as `build`.
    """
    if job.traces[0].metadata.get("format") != FORMAT:
        raise UsageError(f"{network}: only a Chakra set is priced on a network file; `lumos chakra export` makes one of a job first")
    if not network.is_file():
        raise UsageError(f"{network}: no such file; name a network file (topology, npus_count, bandwidth, latency)")
    net = read_network(network, companions(network.parent).get(Companion.SYSTEM))
    workload = gather(job)
    node = workload.communication.node
    recorded = workload.duration
    duration = recorded.copy()
    duration[node] = ABSENT
    compute = of_roofline(workload) if net.roofline else node[:0]
    duration[compute] = ABSENT
    graph = graph_of(replace(workload, duration=duration), net)
    finding = Diagnostic(
        "priced", f"{len(node)} communication nodes take what they cost on the network of {network}, not what was recorded"
    )
    roof = Diagnostic("priced-by-roofline", f"{len(compute)} compute nodes take what the system file allows for their operations and bytes")
    diagnostics = (*(d for d in graph.diagnostics if d.code != "costed"), finding, *([roof] if len(compute) else []))
    if (workload.start == ABSENT).any() or graph.measured_end is None:
        return replace(graph, diagnostics=diagnostics)
    measured_end = np.where(recorded == ABSENT, graph.measured_end, workload.start + recorded)
    return replace(graph, measured_end=measured_end, diagnostics=diagnostics)
