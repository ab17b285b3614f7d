"""Write the traces of an emulated job: one file a rank in Kineto's form and its execution trace, from the records of its processes.

The work of every rank is priced and simulated together, so that waiting for other ranks emerges. Each rank has a file of its own, copies
too, so that every verb answers for the whole job; where that would be more than `_MOST_ROWS` rows or `_MOST_RANKS` ranks, only those
that were run have files, and the answers say which ranks are absent.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from isal import igzip

from lumos.blocks.coefficients import kernel_by_kernel
from lumos.blocks.price import Pricer
from lumos.diagnostics import Diagnostic
from lumos.emulation.device.host import host_ns
from lumos.emulation.device.issue import issued
from lumos.emulation.device.kernels import Kernels
from lumos.emulation.device.ranks import all_ranks
from lumos.emulation.device.rows import DEVICE, Sheet
from lumos.emulation.execution_trace.nodes import Meeting, NodeSheet, execution_trace_name
from lumos.errors import LumosError
from lumos.graph.joined.one_job import EMULATED
from lumos.output_files import check_only_own, new_folder
from lumos.simulation import simulate
from lumos.simulation.durations import with_durations
from lumos.trace.kineto_rows import WrittenDevice, footer, header

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence

    from lumos.cost.cluster import Cluster
    from lumos.emulation.device.ranks import Ranks
    from lumos.emulation.record import Process
    from lumos.simulation import Timeline
    from lumos.trace.table import Int64

#: A job gets a file for each rank while its files hold at most so many rows together (some 2 GB of text, 200 MB compressed).
_MOST_ROWS = 20_000_000
#: And while it has so many ranks: each has two files, and reading them one by one takes longer than simulating what is in them.
_MOST_RANKS = 4096
#: Level of compression: the fastest, which a reader does not notice.
_LEVEL = 1


class WrittenTraces(NamedTuple):
    """What was written. files: paths, by rank; the execution trace of each is beside it. ranks: of the job. span_ns: from the first work
    of any rank to the last, None where work is not priced. diagnostics: what was priced without being known."""

    files: tuple[str, ...]
    ranks: int
    span_ns: int | None
    diagnostics: tuple[Diagnostic, ...]


def write_traces(
    folder: str | os.PathLike[str], processes: Sequence[Process], cluster: Cluster, times: Callable[[Ranks], Int64] | None = None
) -> WrittenTraces:
    """Write the traces of the job of `processes`, as it would run on `cluster`, to a folder, which is created if it is absent.

    processes: the records of the distinct processes of one job. times: gives the durations of the job's tasks, ns, in place of those that
    the models say. Raises LumosError for records that contradict each other, an accelerator
    whose data lack a number, or a folder that cannot be written, UsageError where the folder holds other traces.
    """
    if not processes:
        raise LumosError("no process was recorded, so there is no trace to write: emulate a script that uses its device")
    kernels, pricer = Kernels(cluster.accelerator), Pricer(cluster, kernel_by_kernel())
    cluster.check_size(max(process.world for process in processes))
    host = host_ns(cluster.accelerator)
    programs = [issued(process, kernels, host, cluster) for process in processes]
    job = all_ranks(programs, pricer)
    timeline = simulate(job.graph if times is None else with_durations(job.graph, times(job)))
    chosen, left_out = _chosen(job)
    names = [_name(rank) for rank in chosen]
    check_only_own(folder, "*.json*", [*names, *map(execution_trace_name, chosen)])
    with new_folder(folder) as draft:
        for program in range(len(programs)):
            ranks = [rank for rank in chosen if job.of[rank] == program]
            _write(draft, job, program, ranks, timeline, cluster)
            _write_execution_traces(draft, job, program, ranks)
    span = int(timeline.end.max(initial=0) - timeline.start.min(initial=0))
    found = (*_unknown(kernels), *pricer.diagnostics, *left_out)
    return WrittenTraces(tuple(str(Path(folder) / name) for name in names), len(job.of), span, tuple(dict.fromkeys(found)))


def _chosen(job: Ranks) -> tuple[list[int], tuple[Diagnostic, ...]]:
    """The ranks that get files."""
    rows = sum(2 * len(job.programs[i].tasks) + len(job.programs[i].process.operators) for i in job.of)
    if rows <= _MOST_ROWS and len(job.of) <= _MOST_RANKS:
        return list(range(len(job.of))), ()
    kept = sorted(program.process.rank for program in job.programs)
    note = f"{len(kept)} of {len(job.of):,} ranks are written, one of each kind: all would take {rows:,} rows in {2 * len(job.of):,} files"
    return kept, (Diagnostic("ranks-left-out", note),)


def _write(folder: Path, job: Ranks, program: int, ranks: Sequence[int], timeline: Timeline, cluster: Cluster) -> None:
    """The files of the ranks that run one program. Where their times are the same too, they share the text of most rows."""
    sheet, process = Sheet(job.programs[program]), job.programs[program].process
    start: list[int] = []
    end: list[int] = []
    shared = b""
    for rank in ranks:
        tasks = slice(int(job.first[rank]), int(job.first[rank + 1]))
        times = timeline.start[tasks].tolist(), timeline.end[tasks].tolist()
        if times != (start, end) or not shared:
            start, end = times
            shared = ",\n".join(sheet.common(start, end)).encode()
        device, a = rank % cluster.node.devices, cluster.accelerator
        described = WrittenDevice(device, a.name, int(a.memory_bytes or 0), a.cores or 0)
        groups = [(group.name, group.description, group.ranks) for group in process.groups if rank in group.ranks]
        with igzip.open(folder / _name(rank), "wb", compresslevel=_LEVEL) as file:  # type: ignore[no-untyped-call]
            file.write(header(EMULATED, rank, process.world, groups, described))
            file.write(shared.replace(DEVICE.encode(), str(device).encode()))
            for row in sheet.exchanges(start, end, job.facts[rank], device):
                file.write(b",\n" + row.encode())
            file.write(footer(rank))


def _write_execution_traces(folder: Path, job: Ranks, program: int, ranks: Sequence[int]) -> None:
    """The execution traces of the ranks that run one program, which differ in their groups and peers."""
    tasks, process = job.programs[program].tasks, job.programs[program].process
    sheet = NodeSheet(process)
    for rank in ranks:
        meetings = {tasks[number].exchange: Meeting(fact.group, fact.peer) for number, fact in job.facts[rank].items()}
        sheet.write(folder / execution_trace_name(rank), [group for group in process.groups if rank in group.ranks], meetings)


def _name(rank: int) -> str:
    return f"rank{rank}.json.gz"


def _unknown(kernels: Kernels) -> Iterator[Diagnostic]:
    """The operators that no rule prices."""
    if kernels.unknown:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(kernels.unknown.items(), key=lambda pair: -pair[1])[:8])
        more = f" and {len(kernels.unknown) - 8} more" if len(kernels.unknown) > 8 else ""
        yield Diagnostic("operators-unknown", f"priced by the bytes that they touch, as their kernels are not known: {names}{more}")
