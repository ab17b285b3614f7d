"""Link all ranks of a job, and write what was linked: the profiler's times and kernels with the execution trace's tensors.

A rank's execution trace is the one that names the rank's process; where several or none do, the one that the facts of the pair
confirm best. A set is built from the profiler's files of all ranks together, so its collectives meet their peers. In the file
of one rank they are compute of the time that they took.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.chakra.linked import Linked, link_traces, processes
from lumos.chakra.lower import lower
from lumos.chakra.recorded import recorded_work
from lumos.chakra.workload import Details
from lumos.errors import LumosError
from lumos.graph.build import build
from lumos.result import Shown, plain
from lumos.trace.blocks import head
from lumos.trace.chakra.schema import Attribute, IOInfo
from lumos.trace.execution_trace import ExecutionTrace
from lumos.trace.execution_trace import read as read_observed
from lumos.trace.read import EXECUTION_TRACE
from lumos.trace.table import ABSENT, Job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.chakra.workload import Workload
    from lumos.diagnostics import Diagnostic
    from lumos.trace.table import Trace

#: The attributes that are copied from an operator of the execution trace besides its tensors, and their types in Chakra.
_ATTRIBUTES = (("rf_id", "uint64"), ("seq_id", "int64"), ("fw_parent", "uint64"), ("op_schema", "string"), ("kernel_backend", "string"))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LinkedJob(Shown):
    """The linked ranks of a job, ascending by rank."""

    ranks: tuple[Linked, ...]

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Those of all ranks."""
        return tuple(diagnostic for rank in self.ranks for diagnostic in rank.diagnostics)

    @property
    def link_rate(self) -> float | None:
        """Linked kernels over those whose operator is in both files, of all ranks; None where there are none."""
        linked, shared = (sum(getattr(rank, name) for rank in self.ranks) for name in ("linked", "shared"))
        return min(linked / shared, 1.0) if shared else None

    def to_dict(self) -> dict[str, Any]:
        """The keys of `lumos chakra link --json`: sums over the ranks, and `ranks` with those of each."""
        known = [rank.confidence for rank in self.ranks if rank.confidence is not None]
        return {
            **{name: sum(getattr(rank, name) for rank in self.ranks) for name in ("kernels", "shared", "linked", "operators")},
            "link_rate": self.link_rate,
            "by_method": {how: sum(rank.by_method[how] for rank in self.ranks) for how in self.ranks[0].by_method},
            "confidence": min(known) if len(known) == len(self.ranks) else None,
            "ranks": [rank.to_dict() for rank in self.ranks],
            "diagnostics": plain(self.diagnostics),
        }


def observed_in(folder: Path) -> list[ExecutionTrace]:
    """The execution traces in a folder, by name. LumosError where there is none or one cannot be read."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and EXECUTION_TRACE.sniff(head(path))]
    if not files:
        raise LumosError(f"{folder}: holds no execution trace of PyTorch's observer; name the folder that does")
    return [read_observed(path) for path in files]


def link_job(observed: Sequence[ExecutionTrace], job: Job, *, other_window: bool = False) -> LinkedJob:
    """Link every rank of a job with its execution trace. other_window: as for `link_traces`. LumosError where a rank has none that is of
    its run, with the reasons."""
    return LinkedJob(tuple(_linked(observed, trace, other_window) for trace in job.traces))


def _linked(observed: Sequence[ExecutionTrace], trace: Trace, other_window: bool) -> Linked:
    own = [one for one in observed if one.pid in processes(trace)] or observed
    pairs = [link_traces(one, trace, other_window=other_window) for one in own]
    good = [pair for pair in pairs if not pair.refuted]
    if not good:
        why = "; ".join(f"{Path(pair.observed.path).name}: {', '.join(pair.refuted)}" for pair in pairs)
        raise LumosError(f"{trace.path}: no execution trace is of this rank and run ({why}); add the one that is")
    return max(good, key=lambda pair: (pair.confidence or 0.0, pair.linked))


def linked_nodes(job: Job, linked: LinkedJob) -> Workload:
    """The nodes of a job with their operations and bytes, and the tensors and attributes of the operators of its execution traces.

    A kernel has those of the operator that launched it. An operator that calls others becomes several nodes: the first gets its tensors.
    """
    graph = build(job)
    workload = lower(graph, recorded_work(graph, job))
    assert workload.event is not None  # lowering a measured graph keeps the row of every node
    detail = np.full(len(workload), ABSENT, np.int32)
    table: dict[Details, int] = {}
    for rank, (low, high) in zip(linked.ranks, pairwise(workload.rank_offset.tolist()), strict=True):
        node_of = rank.node.copy()
        node_of[rank.kernel] = rank.kernel_node
        rows, first = np.unique(workload.event[low:high], return_index=True)
        for row, node in zip(rows.tolist(), first.tolist(), strict=True):
            if row >= 0 and node_of[row] >= 0:
                detail[low + node] = table.setdefault(_details(rank.observed, int(node_of[row])), len(table))
    return replace(workload, detail=detail, details=tuple(table))


def _details(observed: ExecutionTrace, node: int) -> Details:
    said = observed.attrs[node]
    attributes = [Attribute("et_id", "uint64", int(observed.id[node]))]
    for name, kind in _ATTRIBUTES:
        value = said.get(name)
        if isinstance(value, str if kind == "string" else int) and value not in ("", None):
            attributes.append(Attribute(name, kind, value))
    return Details(IOInfo(*observed.inputs[node]), IOInfo(*observed.outputs[node]), tuple(attributes))
