"""Link all ranks of a job: find each rank's execution trace, and write one set whose nodes have times, tensors and collectives.

A rank's execution trace is the one that names the rank's process; where several or none do, the one that the facts of the pair
confirm best (`votes`). The set is built from the profiler's files of all ranks together. So its collectives are communication
with their groups and meet their peers, which a rank that is linked alone does not show.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumos.chakra.linking.link import Linked, link_traces
from lumos.chakra.linking.linked_file import fields_of, without_tensors
from lumos.chakra.linking.votes import processes
from lumos.chakra.lower import lower
from lumos.chakra.work.recorded import recorded_work
from lumos.chakra.write import write_set
from lumos.errors import LumosError, UsageError
from lumos.graph.build import build
from lumos.result import Shown, plain
from lumos.trace.blocks import head
from lumos.trace.execution_trace import ExecutionTrace
from lumos.trace.execution_trace import read as read_observed
from lumos.trace.read import EXECUTION_TRACE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.trace.table import Job, Trace


@dataclass(frozen=True, slots=True, eq=False)
class LinkedRank:
    """A rank with its execution trace and the links between that and its profiler file."""

    rank: int
    observed: ExecutionTrace
    trace: Trace
    found: Linked


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LinkedJob(Shown):
    """The linked ranks of a job, ascending by rank."""

    ranks: tuple[LinkedRank, ...]

    def to_dict(self) -> dict[str, Any]:
        """The keys of `lumos chakra link --json` without its times: sums over the ranks, and `ranks` with those of each."""
        found = [r.found for r in self.ranks]
        shared = sum(f.shared for f in found)
        linked = sum(f.linked for f in found)
        known = [f.confidence for f in found if f.confidence is not None]
        return {
            "kernels": sum(f.kernels for f in found),
            "shared": shared,
            "linked": linked,
            "link_rate": min(linked / shared, 1.0) if shared else None,
            "by_method": dict(sum((Counter(f.by_method) for f in found), Counter({"id": 0}))),
            "operators": sum(f.operators for f in found),
            "confidence": min(known) if len(known) == len(found) else None,
            "ranks": [
                {"rank": r.rank, "execution_trace": r.observed.path, "profiler_file": r.trace.path, **r.found.to_dict()} for r in self.ranks
            ],
            "diagnostics": plain([d for f in found for d in f.diagnostics]),
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


def _linked(observed: Sequence[ExecutionTrace], trace: Trace, other_window: bool) -> LinkedRank:
    own = [one for one in observed if one.pid in processes(trace)] or list(observed)
    pairs = [(one, link_traces(one, trace, other_window=other_window)) for one in own]
    good = [(one, found) for one, found in pairs if not found.refuted]
    if not good:
        why = "; ".join(f"{Path(one.path).name}: {', '.join(found.refuted)}" for one, found in pairs)
        raise LumosError(f"{trace.path}: no execution trace is of this rank and run ({why}); add the one that is")
    best = max(good, key=lambda pair: (pair[1].confidence or 0.0, pair[1].linked))
    return LinkedRank(trace.rank, best[0], trace, best[1])


def write_linked_job(folder: Path, job: Job, linked: LinkedJob) -> int:
    """Write the job as a set whose nodes have the tensors of their operators. Returns how many nodes were written.

    Raises GraphError where the job has no schedule, LumosError where the folder cannot be written, UsageError for a set as input.
    """
    if len(linked.ranks) != len(job.traces):
        raise UsageError("every rank of the job needs its execution trace")
    graph = build(job)
    workload = lower(graph, without_tensors(recorded_work(graph, job)))
    events, offset = workload.event, workload.rank_offset
    assert events is not None  # lowering a measured graph keeps the row of every node
    more = [fields_of(r.observed, r.found, events[offset[i] : offset[i + 1]]) for i, r in enumerate(linked.ranks)]
    write_set(workload, folder, more=more)
    return len(workload)
