"""The verbs of `lumos proxy` as functions: `lumos.proxy.generate` and `lumos.proxy.run`.

lumos.proxy.generate("traces/rank0.json.gz", "proxy")
lumos.proxy.run("proxy")["error"]
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lumos.choices import check_choice
from lumos.errors import UsageError
from lumos.proxy.generation import generate_program as generate_program
from lumos.proxy.running import run_benchmark as run_benchmark
from lumos.result import Shown
from lumos.trace.source import Source, keep_inputs, paths_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.diagnostics import Diagnostic

_MODES = ("full", "compute", "communication")
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True, repr=False)
class Generated(Shown):
    """A benchmark that was written. operators: number of those of the first rank. recorded_step_ns: the measured time of the step on that
    rank, by its own completions (its period where the recording shows one); None where its source has no times. source: where its
    arguments come from, "profiler" or "execution trace"."""

    ranks: int
    world_size: int
    step: str
    recorded_step_ns: int | None
    operators: int
    source: str
    folder: str
    diagnostics: tuple[Diagnostic, ...]


def generate(
    paths: Source,
    output: str | os.PathLike[str],
    *,
    execution_trace: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    step: str | None = None,
    only: Sequence[str] = (),
    blocks: Sequence[str] = (),
    obfuscate: bool = False,
    kernel_sources: bool = False,
    max_memory: float = 0,
    repair: bool = False,
) -> Generated:
    """Write a runnable benchmark of one recorded step into the folder `output`: benchmark.py, trace.json and a README.

    paths: a recorded job, its files, a folder, or execution traces alone. execution_trace: one for each rank, in the order of ranks.
    step: name of the step (default: the typical one, of median time). only: globs of operators to include. blocks: globs of ranges
    (modules, labels) whose operators to include. obfuscate: hash names that are not PyTorch's own. kernel_sources: take the sources of
    compiled kernels along that lie beside the execution trace. max_memory: bytes that tensors may take (0: no limit but the device's).
    Raises UsageError for an unknown step, TraceError where the step has no operators.
    """
    keep_inputs([*paths_of(paths), *paths_of(execution_trace)], output)
    program, notes = generate_program(
        paths_of(paths),
        output,
        execution_traces=paths_of(execution_trace),
        step=step,
        only=only,
        blocks=blocks,
        obfuscate=obfuscate,
        kernel_sources=kernel_sources,
        max_memory_bytes=int(max_memory),
        repair=repair,
    )
    first = program.ranks[0]
    return Generated(
        ranks=len(program.ranks),
        world_size=program.world_size,
        step=first.step,
        recorded_step_ns=first.recorded_ns if first.recorded_ns > 0 else None,
        operators=sum(1 for _ in first.walk()),
        source=program.source,
        folder=os.fspath(output),
        diagnostics=notes,
    )


def run(
    folder: str | os.PathLike[str],
    *,
    processes: int | None = None,
    mode: str = "full",
    device: str | None = None,
    rank: int | None = None,
    warmup: int = 3,
    repeat: int = 10,
    max_memory: float | None = None,
    threads: int | None = None,
    profile: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Run a generated benchmark in processes of its own, and compare its step with the recorded one.

    processes: how many (default: one for each rank if all ranks were recorded, else one). mode: "full", "compute" or "communication".
    device: "cpu" or "cuda" (default: a GPU if there is one). rank: the recorded rank to run. warmup, repeat: number of steps before the
    measured ones, and of measured steps. max_memory: bytes that tensors may take. threads: intra-op threads on the CPU (default: as
    recorded). profile: folder to write a profile of this run to.

    The result has the keys that docs/proxy.md lists. Raises UsageError for an invalid argument, LumosError where the folder has no
    benchmark, torch is not installed, or the run failed.
    """
    check_choice(mode, _MODES, "a value of --mode")
    if warmup < 0 or repeat < 1 or (processes is not None and processes < 1):
        raise UsageError(f"--warmup {warmup} --repeat {repeat} --processes {processes}: at least 0, 1 and 1")
    if device is not None:
        check_choice(device, DEVICES, "a value of --device")
    options = ["--mode", mode, "--warmup", str(warmup), "--repeat", str(repeat)]
    given = {"--device": device, "--rank": rank, "--max-memory": max_memory, "--threads": threads, "--profile": profile}
    options += [str(part) for name, value in given.items() if value is not None for part in (name, value)]
    return run_benchmark(folder, processes, tuple(options))
