"""What a recording does not show, as far as findings depend on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.analyze.loop.steps import is_operation_level
from lumos.diagnostics import Diagnostic
from lumos.findings.launches import launches_seen
from lumos.findings.ranks import MOST_TRIED
from lumos.trace.table import Category
from lumos.units import count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.findings.case import Case


def lacks(case: Case) -> Iterator[Diagnostic]:
    """One diagnostic for each thing that a better recording would show."""
    traces, graph = case.job.traces, case.graph
    for asked, why in case.refused.items():
        yield Diagnostic("not-priced", f"what lumos whatif {asked} would save is not known: {why}")
    if len(graph.ranks) == 1:
        world = traces[0].world_size
        others = f"{count(world - 1, 'other rank')} of the job" if world and world > 1 else "others"
        yield Diagnostic("one-rank", f"the recording has one rank: whether it waits for {others} cannot be seen")
    elif len(graph.ranks) == 2:
        yield Diagnostic("two-ranks", "two ranks have no majority: which of them is off cannot be told; record a third")
    if len(graph.ranks) * len(graph) > MOST_TRIED:
        message = f"{len(graph.ranks)} ranks of {len(graph):,} tasks are too many to compare one by one here; ask lumos stragglers"
        yield Diagnostic("ranks-not-compared", message)
    if is_operation_level(graph):
        message = "the recording has whole operations only: launches, kernels, copies and loaders cannot be seen"
        yield Diagnostic("operations-only", message)
        return
    if not case.has_device:
        yield Diagnostic("no-device", "no device work is recorded: launches and kernels cannot be judged (ProfilerActivity.CUDA)")
    elif not launches_seen(case):
        yield Diagnostic("no-launches", "no launch calls are recorded (ProfilerActivity.CPU): why the devices idle cannot be seen")
    if len(case.times.counted) < 2:
        yield Diagnostic("few-steps", "one step counts: what happens only now and then cannot be seen; record four steps or more")
    if not any("Input Dims" in trace.args for trace in traces):
        yield Diagnostic("no-shapes", "no shapes are recorded (record_shapes=True): uneven inputs and slowed kernels cannot be told")
    if case.has_device and not any((trace.category == Category.SYNC).any() for trace in traces):
        yield Diagnostic("no-sync-rows", "no synchronisation rows (enable_cuda_sync_events): waits are inferred from the order of calls")
    if not any(trace.metadata.get("lumos_host") for trace in traces) and case.job.origin is None:
        yield Diagnostic("no-host-rows", "what processes got of their CPUs is not recorded (lumos.collect): starved ones cannot be told")
