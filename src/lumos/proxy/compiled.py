"""Kernels that torch.compile made for a job: how each was launched, and the sources that lie beside its execution trace.

An execution trace of torch 2.5 or later names the source of each Triton kernel (`kernel_backend`, `kernel_file`). Where its observer
was told to (`set_extra_resource_collection`), it copies the sources into a folder whose name is that of the trace without its ending,
and `_resources`. Behind the kernel's own arguments stand the grid, as text, up to torch 2.6, and the stream
(`handleKernelBackendInfo` in torch/csrc/profiler/standalone/execution_trace_observer.cpp).

Sources are code of the job. They are taken along only where that is asked for, and nothing here runs them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumos.diagnostics import Diagnostic
from lumos.proxy.program import CompiledKernel, KernelSource
from lumos.units import count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.proxy.program import RankProgram, RecordedOperator

#: Bytes of one source, and of all that a benchmark takes. Those of a kernel have a few kilobytes, those of a whole graph some hundred.
LARGEST_SOURCE, LARGEST_ALL = 1 << 20, 64 << 20

#: How a source is called in a benchmark. Because of the hyphen no import statement finds it, whatever its name was.
SOURCE_NAME = "kernel-{}"

_FILE = re.compile(r"\w{1,128}\.py\Z", re.ASCII)
_GRID = re.compile(r"(\w+)\(([\d, ]*)\)\Z", re.ASCII)


def compiled_kernel(attrs: Mapping[str, Any], inputs: Sequence[Any] | None) -> tuple[CompiledKernel | None, list[Any] | None]:
    """How a node's kernel was launched, and the arguments of the kernel itself; (None, inputs) for every other node."""
    file = attrs.get("kernel_file")
    if attrs.get("kernel_backend") != "triton" or not isinstance(file, str) or not _FILE.match(file):
        return None, None if inputs is None else list(inputs)
    own = None if inputs is None else list(inputs[:-1])  # without the stream
    stated = _GRID.match(own[-1]) if own and isinstance(own[-1], str) else None
    if stated is None or own is None:
        return CompiledKernel(file), own
    return CompiledKernel(file, (stated[1], tuple(int(size) for size in stated[2].split(",") if size.strip()))), own[:-1]


def sources_beside(trace: str, wanted: Sequence[str]) -> dict[str, KernelSource]:
    """The wanted sources that lie beside an execution trace, by file name. Links, and files above the limits, are left out."""
    path = Path(trace)
    folders = [path.with_name(f"{stem}_resources") for stem in _stems(path.name)]
    found: dict[str, KernelSource] = {}
    room = LARGEST_ALL
    for name in dict.fromkeys(wanted):
        file = next((folder / name for folder in folders if (folder / name).is_file() and not (folder / name).is_symlink()), None)
        if file is None or file.stat().st_size > min(LARGEST_SOURCE, room):
            continue
        found[name] = KernelSource(file.read_bytes())
        room -= len(found[name].text)
    return found


def _stems(name: str) -> list[str]:
    """A file's name without its last ending, without the last two, and so on."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]


def take_sources(rank: RankProgram, trace: str, take: bool) -> tuple[dict[str, KernelSource], list[Diagnostic]]:
    """The sources of a rank's compiled kernels where `take`, and a diagnostic about kernels that no source is taken of.

    trace: the path of the rank's execution trace.
    """
    kernels = [operator for operator in rank.walk() if operator.compiled is not None]
    beside = sources_beside(trace, [kernel.compiled.file for kernel in kernels if kernel.compiled is not None])
    left = [kernel for kernel in kernels if not take or (kernel.compiled is not None and kernel.compiled.file not in beside)]
    if not left:
        return beside if take else {}, []
    why = (
        "their sources lie beside the execution trace; --kernel-sources takes these along, which are code of the job"
        if beside and not take
        else "their sources are not beside the execution trace: record with lumos collect --execution-trace, which copies them"
    )
    message = f"rank {rank.rank}: {count(len(left), 'compiled kernel')}{_share(rank, left)} will be stand-ins: {why}"
    return beside if take else {}, [Diagnostic("compiled-kernels", message)]


def _share(rank: RankProgram, kernels: Sequence[RecordedOperator]) -> str:
    """What part of the device's time is that of these kernels, as text; nothing where no times were recorded."""
    total = sum(operator.device_ns for operator in rank.walk())
    return f" ({sum(kernel.device_ns for kernel in kernels) / total:.1%} of the device's time)" if total else ""
