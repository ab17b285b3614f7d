"""What a reader of one file format is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lumos.errors import TraceError
from lumos.trace.table import Trace


class NotATraceError(TraceError):
    """A file turns out, once read, to be of another kind than its first bytes suggested."""


class ReadFile(Protocol):
    """Reads one file: one rank's trace, or those of all ranks that it holds. `progress` is called with the bytes read so far."""

    def __call__(self, path: Path, *, progress: Callable[[int], None] | None = None) -> Trace | tuple[Trace, ...]: ...


@dataclass(frozen=True, slots=True)
class Reader:
    """One format: its name, whether a file whose unpacked content starts with these bytes may be of it, how it is read.

    `read` is None for a format that is known but holds no timeline: `remedy` then says what to give instead. `beside`: such
    a file belongs to the trace beside it, whose reader opens it. `wins`: in a folder, the other files are derived from it. `mend`:
    how damaged files are read where that was asked for; None where nothing can be mended.
    """

    name: str
    sniff: Callable[[bytes], bool]
    read: ReadFile | None
    remedy: str = ""
    beside: bool = False
    wins: bool = False
    mend: ReadFile | None = None
