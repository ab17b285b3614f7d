"""A job's graph to a Chakra set, with what a simulator needs beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lumos.chakra.lower import lower
from lumos.chakra.write import write
from lumos.diagnostics import Diagnostic
from lumos.graph.table import Graph


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written. communication: nodes of it. groups: communicators."""

    folder: str
    ranks: int
    nodes: int
    communication: int
    groups: int
    diagnostics: tuple[Diagnostic, ...]


def export(graph: Graph, folder: Path, *, exact_ns: bool = False) -> Exported:
    """Write the graph, measured, changed or assembled, as `job.R.et` and groups.json.

    exact_ns: keep nanoseconds (see `write`). GraphError where the graph has no schedule, LumosError where the folder
    cannot be written.
    """
    workload = lower(graph)
    write(workload, folder, exact_ns=exact_ns)
    return Exported(
        str(folder), len(workload.ranks), len(workload), len(workload.communication), len(workload.groups), workload.diagnostics
    )
