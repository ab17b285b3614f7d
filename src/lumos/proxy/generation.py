"""A runnable benchmark from a trace: a folder with `benchmark.py`, `trace.json` and a README.

`benchmark.py` is the same file in every benchmark (that of `lumos.proxy.benchmark`), so that no text of a trace can become code. Names,
like everything else that was recorded, are data in `trace.json`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lumos.analyze.loop.spans import span_ends
from lumos.analyze.loop.steps import members, step_times
from lumos.diagnostics import Diagnostic
from lumos.errors import TraceError, UsageError
from lumos.graph.build import build
from lumos.graph.places import steps
from lumos.output_files import new_folder
from lumos.proxy import choose
from lumos.proxy.compiled import SOURCE_NAME, take_sources
from lumos.proxy.executed import executed_rank, lend_arguments
from lumos.proxy.profiled import profiled_rank
from lumos.proxy.program import Program, RankProgram, is_operator
from lumos.proxy.splits import fill_splits
from lumos.result import as_json
from lumos.simulation.timeline import measured
from lumos.trace import execution_trace, read
from lumos.trace.blocks import head
from lumos.trace.kineto_values import RESERVED
from lumos.trace.read import EXECUTION_TRACE
from lumos.units import count

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from lumos.analyze.loop.steps import StepTime
    from lumos.graph.table import Graph, Step
    from lumos.trace.execution_trace import ExecutionTrace
    from lumos.trace.table import Job, Trace

#: The rank in a file's name.
_RANK = re.compile(r"rank\D?(\d{1,7})")


def generate_program(
    paths: Sequence[str],
    folder: str | os.PathLike[str],
    *,
    execution_traces: Sequence[str] = (),
    step: str | None = None,
    only: Sequence[str] = (),
    blocks: Sequence[str] = (),
    obfuscate: bool = False,
    kernel_sources: bool = False,
    max_memory_bytes: int = 0,
    repair: bool = False,
) -> tuple[Program, tuple[Diagnostic, ...]]:
    """Write a benchmark of one step of a job into `folder`. Returns the program, and diagnostics. The arguments are those of
    `lumos.proxy.generate`; UsageError where they cannot be met, TraceError where a file cannot be read or the step has no operators."""
    if obfuscate and kernel_sources:
        raise UsageError("--kernel-sources takes code of the job along, whose names --obfuscate hides: give one of the two")
    program, notes = _program(paths, execution_traces, step, blocks, kernel_sources, repair)
    notes = (*notes, *fill_splits(program))
    program.max_memory_bytes = max_memory_bytes
    if only:
        program = choose.only_blocks(program, only)
    if obfuscate:
        program = choose.obfuscated(program)
    if not any(True for rank in program.ranks for _ in rank.walk()):
        raise TraceError(f"{paths[0]}: the step holds no operators, so there is nothing to run; record with the CPU activity on")
    write_program(program, folder)
    return program, notes


def _program(
    paths: Sequence[str], execution_traces: Sequence[str], step: str | None, blocks: Sequence[str], kernel_sources: bool, repair: bool
) -> tuple[Program, tuple[Diagnostic, ...]]:
    """The program of the step that is taken of a recording, and diagnostics."""
    alone = {} if execution_traces else execution_traces_alone(paths)
    if alone and blocks:
        raise UsageError("--blocks needs a profiler's trace: an execution trace alone does not say when what ran")
    if alone:
        traces: Mapping[int, ExecutionTrace] = {rank: execution_trace.read(path) for rank, path in alone.items()}
        program, notes = from_execution_traces(traces, step)
    else:
        job = read(*paths, repair=repair)
        traces = executed_by_rank(job, paths, execution_traces)
        program, notes = from_job(job, step, traces, blocks)
    taken = [take_sources(rank, traces[rank.rank].path, kernel_sources) for rank in program.ranks if rank.rank in traces]
    program.sources = {file: source for sources, _ in taken for file, source in sources.items()}
    return program, (*notes, *(note for _, said in taken for note in said))


def executed_by_rank(job: Job, paths: Sequence[str], named: Sequence[str]) -> dict[int, ExecutionTrace]:
    """The execution trace of each rank: those named, in the order of ranks; else those in the folders, by the rank in their names."""
    if named:
        if len(named) != len(job.traces):
            raise UsageError(f"{len(named)} execution traces for {len(job.traces)} ranks: give one for each rank, in their order")
        return {trace.rank: execution_trace.read(path) for trace, path in zip(job.traces, named, strict=True)}
    files = [file for path in paths if Path(path).is_dir() for file in sorted(Path(path).iterdir()) if is_execution_trace(str(file))]
    if len(files) == len(job.traces) == 1:
        return {job.traces[0].rank: execution_trace.read(files[0])}
    numbered = {int(match[1]): file for file in files if (match := _RANK.search(file.name))}
    return {trace.rank: execution_trace.read(numbered[trace.rank]) for trace in job.traces if trace.rank in numbered}


def is_execution_trace(path: str) -> bool:
    """Whether a file is an execution trace, by its content."""
    return Path(path).is_file() and bool(EXECUTION_TRACE.sniff(head(Path(path))))


def execution_traces_alone(paths: Sequence[str]) -> dict[int, Path]:
    """The execution traces by rank, where the paths are files of these or one folder that holds nothing else; empty where there is another
    file. Ranks are those of the names, where all have one of their own, else they count in the order of the paths."""
    inside = sorted(Path(paths[0]).iterdir()) if len(paths) == 1 and Path(paths[0]).is_dir() else []
    beside = {file.name for file in inside if file.is_dir() and file.name.endswith("_resources")}  # sources of compiled kernels
    files = [file for file in inside if not file.name.startswith(".") and file.name not in beside] or [Path(path) for path in paths]
    if not all(is_execution_trace(str(file)) for file in files):
        return {}
    numbered = {int(match[1]): file for file in files if (match := _RANK.search(file.name))}
    return dict(sorted(numbered.items())) if len(numbered) == len(files) > 1 else dict(enumerate(files))


def from_job(
    job: Job, step: str | None = None, execution_traces: Mapping[int, ExecutionTrace] | None = None, blocks: Sequence[str] = ()
) -> tuple[Program, tuple[Diagnostic, ...]]:
    """The program of one step of every rank of a profiled job, and diagnostics.

    step: a name ("ProfilerStep#11") or its number ("11"); by default the one whose time is nearest to the mean. execution_traces: by rank.
    Raises UsageError where the job has no such step, GraphError where no step owns any work, TraceError where no profiler recorded it.
    """
    for trace in job.traces:
        if RESERVED & trace.metadata.keys():
            raise TraceError(f"{trace.path}: holds no calls of operators that could be run again; give the profiler's file of the same run")
    execution_traces = execution_traces or {}
    graph = build(job)
    chosen = choose_steps(graph, step)
    world = max([trace.world_size or 1 for trace in job.traces] + [len(job.traces)])
    groups = [group.ranks for group in job.groups] or [tuple(range(world))]
    numbers = {group.name: i for i, group in enumerate(job.groups)}
    whole = next((i for i, ranks in enumerate(groups) if len(ranks) in (0, world)), None)
    if whole is not None:
        numbers.setdefault("", whole)
    ranks = []
    for trace in job.traces:
        if trace.rank in chosen:
            times, spans = chosen[trace.rank], _spans(trace)
            ranks.append(profiled_rank(trace, graph, [spans[time.name] for time in times], times, numbers, blocks))
    used = {executed.path for executed in execution_traces.values()}
    of_job = (d for d in job.diagnostics if not (d.code == "execution-trace-set-aside" and d.message.split(": ")[0] in used))
    notes = [*of_job, *(d for trace in job.traces for d in trace.diagnostics)]
    for program in ranks:
        if program.rank in execution_traces:
            executed = execution_traces[program.rank]
            notes += executed.diagnostics
            paired = lend_arguments(program, executed, numbers)
            if paired < 0.99:
                message = f"rank {program.rank}: {paired:.1%} of its operators are in {executed.path}"
                notes.append(Diagnostic("execution-trace-differs", f"{message}; the others keep what the profiler printed"))
    notes += [note for program in ranks for note in _findings(program)]
    return Program(ranks, groups, world, "execution trace" if execution_traces else "profiler"), tuple(notes)


def _findings(program: RankProgram) -> list[Diagnostic]:
    """Diagnostics on operators without arguments, and on threads that worked at the same time, which the benchmark runs one after
    the other."""
    leaves = [o for o in program.walk() if is_operator(o.name)]
    unknown = sum(o.inputs is None for o in leaves)
    diagnostics = []
    if unknown:
        text = f"the arguments of {unknown} of {len(leaves)} operators were not recorded"
        remedy = "record with shapes (lumos.collect does), or give --execution-trace"
        diagnostics.append(Diagnostic("arguments-missing", f"rank {program.rank}: {text}; {remedy}"))
    busy = sum(o.duration_ns for o in program.operators)
    end, covered = 0, 0
    for root in sorted(program.operators, key=lambda o: o.start_ns):
        covered += max(0, root.start_ns + root.duration_ns - max(end, root.start_ns))
        end = max(end, root.start_ns + root.duration_ns)
    if busy > 1.02 * covered:
        text = f"{1 - covered / busy:.1%} of the operators' time ran beside other threads; here all run in turn"
        diagnostics.append(Diagnostic("threads-in-turn", f"rank {program.rank}: {text}"))
    return diagnostics


def from_execution_traces(traces: Mapping[int, ExecutionTrace], step: str | None = None) -> tuple[Program, tuple[Diagnostic, ...]]:
    """The program of execution traces alone, by rank. They have no times, so that a run cannot be compared with them and spins have no
    length. The job has as many ranks as its largest group, as an all-to-all has parts, and as there are traces at least."""
    groups = list(dict.fromkeys(group.ranks for trace in traces.values() for group in trace.groups))
    ranks = []
    for rank, trace in traces.items():
        numbers = {group.name: groups.index(group.ranks) for group in trace.groups}
        if trace.groups:
            numbers.setdefault("", numbers[trace.groups[0].name])
        ranks.append(executed_rank(trace, rank, numbers, step))
    parts = (len(o.collective.splits_in or o.collective.splits_out) for r in ranks for o in r.walk() if o.collective is not None)
    world = max([1, *map(len, groups), *parts, *(rank + 1 for rank in traces if len(traces) > 1)])
    notes = [*(note for trace in traces.values() for note in trace.diagnostics), *(note for rank in ranks for note in _findings(rank))]
    return Program(ranks, groups, world, "execution trace"), tuple(notes)


def choose_steps(graph: Graph, name: str | None) -> dict[int, list[StepTime]]:
    """By rank, the measured times of its steps, that of the step to take first. All ranks take the same step of the job."""
    owners = members(graph)
    times = step_times(measured(graph), owners)
    names = [step.name for step in owners.job]
    chosen = times.middle.name if name is None else next((n for n in names if name in (n, n.removeprefix("ProfilerStep#"))), None)
    if chosen is None:
        raise UsageError(f"--step {name}: no such step; the trace has {', '.join(names)}")
    out: dict[int, list[StepTime]] = {}
    for part in owners.job[names.index(chosen)].parts:
        rank = owners.steps[part].rank
        others = (time for i, time in enumerate(times.ranks) if owners.steps[i].rank == rank and i != part)
        out[rank] = [times.ranks[part], *others]
    return out


def _spans(trace: Trace) -> dict[str, Step]:
    """Each step by its name, from the begin of its mark to the end of its span."""
    marked = steps(trace)
    return {step.name: replace(step, end=int(end)) for step, end in zip(marked, span_ends(marked), strict=True)}


def write_program(program: Program, folder: str | os.PathLike[str]) -> None:
    """Write the benchmark into a folder, which is created if needed; files of an earlier benchmark in it are replaced."""
    with new_folder(folder) as draft:
        for file in ("benchmark.py", "kernels.py")[: 2 if program.sources else 1]:
            (draft / file).write_bytes((Path(__file__).with_name("benchmark") / file).read_bytes())
        (draft / "trace.json").write_bytes(as_json(program.json()))
        (draft / "README.md").write_text(_readme(program))
        for file, source in program.sources.items():
            (draft / SOURCE_NAME.format(file)).write_bytes(source)


def _readme(program: Program) -> str:
    """The README of a benchmark. It contains numbers only, and no text of the trace."""
    ranks: Sequence[int] = [rank.rank for rank in program.ranks]
    operators = sum(1 for _ in program.ranks[0].walk()) if program.ranks else 0
    launch = f"torchrun --nproc-per-node {len(ranks)} benchmark.py" if len(ranks) > 1 else "python benchmark.py"
    settings = "".join(f"{name}={value} " for name, value in program.ranks[0].malloc.items()) if program.ranks else ""
    recorded = program.ranks[0].recorded_ns if program.ranks else -1
    kernels = (
        f"""no data of the job.

`kernel-*.py` ({count(len(program.sources), "file")}) are kernels that torch.compile made for the job, and so code of the job. The benchmark
runs them on a GPU, with triton installed, if their SHA-256 is the one in `trace.json`."""
        if program.sources
        else "no data and no code of the job."
    )
    measured_line = f"The step took {recorded / 1e6:.3f} ms on the first of these ranks.\n" if recorded > 0 else ""
    return f"""# A proxy benchmark

One recorded training step as a benchmark: {len(ranks)} of {program.world_size} ranks, {operators} recorded operators on the first.
{measured_line}
    {settings}{launch}

`benchmark.py` needs torch and nothing else; `--help` lists its options. `trace.json` holds the operators, their shapes and
types, streams, waits and collectives; {kernels}
"""
