"""Kernels that torch.compile made for a job: how each was launched, and the sources that lie beside its execution trace.

An execution trace of torch 2.5 or later names the source of each Triton kernel (`kernel_backend`, `kernel_file`). Where its observer
was told to (`set_extra_resource_collection`), it copies the sources into a folder whose name is that of the trace without its ending,
and `_resources`. Behind the kernel's own arguments stand the grid, as text, up to torch 2.6, whose sources do not know theirs and are
not launched, and the stream (`handleKernelBackendInfo` in torch/csrc/profiler/standalone/execution_trace_observer.cpp).

Sources are code of the job. They are taken along only where that is asked for, and nothing here runs them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumos.collect.execution_trace import LARGEST_ALL, LARGEST_SOURCE
from lumos.diagnostics import Diagnostic
from lumos.proxy.program import RecordedOperator, is_operator
from lumos.units import count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.proxy.program import RankProgram

#: How a source is called in a benchmark. Because of the hyphen no import statement finds it, whatever its name was.
SOURCE_NAME = "kernel-{}"

_FILE = re.compile(r"\w{1,128}\.py\Z", re.ASCII)

#: What torch calls the ranges around code that torch.compile made.
_COMPILED = ("CompiledFunction", "## Call CompiledFxGraph")


def compiled_kernel(attrs: Mapping[str, Any], inputs: Sequence[Any] | None) -> tuple[str, list[Any] | None]:
    """The source of a node's kernel, and the arguments of the kernel itself; ("", inputs) for every node without such a kernel."""
    file = attrs.get("kernel_file")
    own = None if inputs is None else list(inputs)
    if attrs.get("kernel_backend") != "triton" or not isinstance(file, str) or not _FILE.match(file):
        return "", own
    if own is None:
        return file, None
    has_grid = len(own) > 1 and isinstance(own[-2], str)
    return ("", own) if has_grid else (file, own[:-1])


def put_compiled_code_between(operators: Sequence[RecordedOperator], inside: bool = False) -> None:
    """Give the ranges of code that torch.compile made for a CPU, whose kernels have no operators, one operator for every time between those
    that have. The operators are changed in place. inside: whether they are of such a range."""
    for one in operators:
        compiled = not is_operator(one.name) and (inside or one.name.startswith(_COMPILED))
        put_compiled_code_between(one.children, compiled)
        if compiled and one.start_ns >= 0:
            ends = [one.start_ns, *(child.start_ns + child.duration_ns for child in one.children)]
            begins = [*(child.start_ns for child in one.children), one.start_ns + one.duration_ns]
            spent = [
                RecordedOperator(one.name, start_ns=end, duration_ns=begin - end, kernel=True)
                for end, begin in zip(ends, begins, strict=True)
                if begin > end
            ]
            one.children = sorted([*one.children, *spent], key=lambda child: child.start_ns)
        elif compiled and not inside:
            one.children.append(RecordedOperator(one.name, kernel=True))


def sources_beside(trace: str, wanted: Sequence[str]) -> dict[str, bytes]:
    """The wanted sources that lie beside an execution trace, by file name. Links, and files above the limits, are left out."""
    path = Path(trace)
    parts = path.name.split(".")
    folders = [path.with_name(".".join(parts[:end]) + "_resources") for end in range(len(parts) - 1, 0, -1)]
    sources: dict[str, bytes] = {}
    room = LARGEST_ALL
    for name in dict.fromkeys(wanted):
        file = next((folder / name for folder in folders if (folder / name).is_file() and not (folder / name).is_symlink()), None)
        if file is not None and file.stat().st_size <= min(LARGEST_SOURCE, room):
            sources[name] = file.read_bytes()
            room -= len(sources[name])
    return sources


def take_sources(rank: RankProgram, trace: str, take: bool) -> tuple[dict[str, bytes], list[Diagnostic]]:
    """The sources of a rank's compiled kernels where `take`, and a diagnostic about kernels that no source is taken of.

    trace: the path of the rank's execution trace.
    """
    kernels = [operator for operator in rank.walk() if operator.compiled]
    beside = sources_beside(trace, [kernel.compiled for kernel in kernels])
    taken = beside if take else {}
    left = [kernel for kernel in kernels if kernel.compiled not in taken]
    if not left:
        return taken, []
    why = (
        "their sources lie beside the execution trace; --kernel-sources takes these along, which are code of the job"
        if beside and not take
        else "their sources are not beside the execution trace: record with lumos collect --execution-trace, which copies them"
    )
    total = sum(operator.device_ns for operator in rank.walk())
    share = f" ({sum(kernel.device_ns for kernel in left) / total:.1%} of the device's time)" if total else ""
    message = f"rank {rank.rank}: {count(len(left), 'compiled kernel')}{share} will be stand-ins: {why}"
    return taken, [Diagnostic("compiled-kernels", message)]
