"""What `trace.read` needs to know of the reader of a file format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lumos.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lumos.trace.table import Trace


class NotATraceError(TraceError):
    """A file turns out, once read, to be of another kind than its first bytes suggested."""


class ReadFile(Protocol):
    """Reads one file: one rank's trace, or the traces of all ranks in it. `progress` is called with the bytes read so far."""

    def __call__(self, path: Path, *, progress: Callable[[int], None] | None = None) -> Trace | tuple[Trace, ...]: ...


@dataclass(frozen=True, slots=True)
class Reader:
    """The reader of one file format.

    sniff: whether a file whose decompressed content starts with the given bytes may have this format. read: None for a format
    that is known but contains no timeline; `remedy` then says what to give instead. is_companion: such a file belongs to a trace
    in the same folder, whose reader opens it. is_original: other files in the same folder were derived from such a file, so they
    are left out. repair: reads a damaged file where the user asked for that; None where the format cannot be repaired.
    """

    name: str
    sniff: Callable[[bytes], bool]
    read: ReadFile | None
    remedy: str = ""
    is_companion: bool = False
    is_original: bool = False
    repair: ReadFile | None = None
