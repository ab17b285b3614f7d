"""A runnable benchmark from a trace: a folder with `benchmark.py`, `trace.json` and a README.

`benchmark.py` is the same file in every benchmark (this package's own `benchmark.py`), so no text of a trace can ever
become code: names, like everything else recorded, are data in `trace.json`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lumos.analyze.steps import members, spans
from lumos.errors import UsageError
from lumos.graph.build import build
from lumos.graph.table import Graph, Step
from lumos.proxy.executed import executed_rank
from lumos.proxy.profiled import profiled_rank
from lumos.proxy.program import Program
from lumos.simulate.timeline import measured
from lumos.trace.execution_trace import ExecutionTrace
from lumos.trace.table import Job


def from_job(job: Job, step: str | None = None) -> Program:
    """The program of one step of every rank of a profiled job.

    step: a name ("ProfilerStep#11") or the end of one ("11"); by default the step whose duration is the median.
    Raises UsageError where no rank has such a step.
    """
    graph = build(job)
    chosen = choose_steps(graph, step)
    world = max([trace.world_size or 1 for trace in job.traces] + [len(job.traces)])
    groups = [group.ranks for group in job.groups] or [tuple(range(world))]
    numbers = {group.name: i for i, group in enumerate(job.groups)}
    whole = next((i for i, ranks in enumerate(groups) if len(ranks) in (0, world)), None)
    if whole is not None:
        numbers.setdefault("", whole)
    ranks = [profiled_rank(trace, graph, *chosen[trace.rank], numbers) for trace in job.traces if trace.rank in chosen]
    return Program(ranks, groups, world, "profiler")


def from_execution_trace(trace: ExecutionTrace, rank: int = 0, step: str | None = None) -> Program:
    """The program of an execution trace alone. It has no times: nothing to compare a run with, and no spins."""
    groups = [group.ranks for group in trace.groups]
    world = max((len(ranks) for ranks in groups), default=1)
    numbers = {group.name: i for i, group in enumerate(trace.groups)}
    if groups:
        numbers.setdefault("", 0)
    return Program([executed_rank(trace, rank, numbers, step)], groups, world, "execution trace")


def choose_steps(graph: Graph, name: str | None) -> dict[int, tuple[Step, int]]:
    """Rank -> the step to take and its measured duration. All ranks take the step of the first rank's choice."""
    owners = members(graph)
    start, end = spans(measured(graph), owners)
    found = {(s.rank, s.name): (s, int(e - b)) for s, b, e in zip(owners.steps, start, end, strict=True)}
    first = [s.name for s in owners.steps if s.rank == owners.steps[0].rank]
    if name is None:
        durations = [found[owners.steps[0].rank, n][1] for n in first]
        name = first[int(np.argsort(durations, kind="stable")[(len(first) - 1) // 2])]
    else:
        matching = [n for n in first if n == name or n.removeprefix("ProfilerStep#") == name]
        if not matching:
            raise UsageError(f"--step {name}: no such step; the trace has {', '.join(first)}")
        name = matching[0]
    return {rank: value for (rank, step), value in found.items() if step == name}


def write(program: Program, folder: str | os.PathLike[str]) -> Path:
    """Write the benchmark into a folder, which is made; files of an earlier benchmark there are replaced."""
    import msgspec

    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    (target / "benchmark.py").write_text(Path(__file__).with_name("benchmark.py").read_text())
    (target / "trace.json").write_bytes(msgspec.json.encode(program.json()))
    (target / "README.md").write_text(_readme(program))
    return target


def _readme(program: Program) -> str:
    """Numbers only: no text of the trace."""
    ranks: Sequence[int] = [rank.rank for rank in program.ranks]
    operators = sum(1 for _ in program.ranks[0].walk()) if program.ranks else 0
    launch = f"torchrun --nproc-per-node {len(ranks)} benchmark.py" if len(ranks) > 1 else "python benchmark.py"
    recorded = program.ranks[0].recorded_ns if program.ranks else -1
    measured_line = f"Its recorded step lasted {recorded / 1e6:.3f} ms on the first of these ranks.\n" if recorded > 0 else ""
    return f"""# A proxy benchmark

One recorded training step as a benchmark: {len(ranks)} of {program.world_size} ranks, {operators} recorded operators on the first.
{measured_line}
    {launch}

`benchmark.py` needs torch and nothing else; `--help` lists its options. `trace.json` holds the operators, their shapes and
types, streams, waits and collectives; no data and no code of the job.
"""
