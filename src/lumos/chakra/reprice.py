"""A set whose communication costs what a network file says, whatever times were recorded: the two side by side.

The set is played as a simulator would: where the system file asks for it, compute on devices takes what its operations and
bytes cost; other compute and host work take what was recorded. On each rank one compute node, one host operator and one
communication run at a time, whatever streams they ran on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.chakra.build import assembled, timed
from lumos.chakra.gather import gather
from lumos.chakra.simulated import as_run
from lumos.chakra.system_files import read_network
from lumos.diagnostics import Diagnostic
from lumos.errors import UsageError
from lumos.graph.evidence import NEVER_MEASURED
from lumos.trace.chakra.companions import companions
from lumos.trace.chakra.et import FORMAT
from lumos.trace.chakra.schema import NodeType
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
    net = read_network(network, companions(network.parent))
    recorded = gather(job)
    unpriced = as_run(recorded, net)
    unknown = np.full(len(recorded), ABSENT)
    ordered = timed(replace(unpriced, start=unknown, event=np.arange(len(recorded), dtype=np.int32)), net)
    measured = ordered
    if (recorded.start != ABSENT).all() and ordered.event is not None:
        measured = replace(ordered, start=recorded.start[ordered.event], duration=recorded.duration[ordered.event])
    graph = assembled(ordered, measured)
    nodes = f"{len(recorded.communication)} communication nodes"
    findings = [Diagnostic("priced", f"{nodes} take what they cost on the network of {network}, not what was recorded")]
    compute = int(((recorded.type == NodeType.COMP) & (unpriced.duration == ABSENT)).sum())
    if compute:
        text = f"{compute} compute nodes take what the system file allows for their operations and bytes"
        findings.append(Diagnostic("priced-by-roofline", text))
    kept = (d for d in graph.diagnostics if d.code not in ("costed", NEVER_MEASURED))
    return replace(graph, diagnostics=(*kept, *findings))
