from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lumos.trace.table import Int32, Int64

#: What a key of an event's args may fill instead of a column.
CORRELATION: int
EXTERNAL_ID: int

class ScanError(ValueError):
    """The text is not JSON: `args` is (byte offset, reason, whether it is legal but beyond what the scanner takes)."""

class SparseColumn:
    """An argument that some rows have: int32 rows, ascending, and their values (int64, of a text its number among the strings;
    or float64); and how many values were left out, unreadable or beyond 64 bits."""

    @property
    def rows(self) -> Int32: ...
    @property
    def values(self) -> NDArray[Any]: ...
    @property
    def unreadable(self) -> int: ...
    @property
    def overflow(self) -> int: ...

class Texts:
    """Distinct texts, one behind the other: text i is the bytes from offsets[i] to offsets[i + 1]."""

    @property
    def text(self) -> NDArray[np.uint8]: ...
    @property
    def offsets(self) -> Int64: ...

class Scanned:
    """What a scanner made of a document. By row: start and duration in ns (int64), correlation and external_id (int64, -1 none), and
    the numbers of its name, lane and class (int32) among the texts. Of a lane (pid, tid) and a class (ph, cat) the two parts have the
    byte 255 between them. counts: rows and ids that were not as they should be, by what was wrong. header: every top-level value
    but the events, key and JSON. repairs: what was mended, by what it was."""

    @property
    def start(self) -> Int64: ...
    @property
    def duration(self) -> Int64: ...
    @property
    def name(self) -> Int32: ...
    @property
    def lane(self) -> Int32: ...
    @property
    def correlation(self) -> Int64: ...
    @property
    def external_id(self) -> Int64: ...
    @property
    def class_(self) -> Int32: ...
    @property
    def columns(self) -> Sequence[SparseColumn]: ...
    @property
    def strings(self) -> Texts: ...
    @property
    def lanes(self) -> Texts: ...
    @property
    def classes(self) -> Texts: ...
    @property
    def counts(self) -> Mapping[str, int]: ...
    @property
    def header(self) -> Sequence[tuple[bytes, bytes]]: ...
    @property
    def repairs(self) -> Mapping[str, int]: ...

class Scanner:
    """Profiler JSON to columns; see native/scan_document.hpp. Not for use by several threads at once.

    kinds: "int", "float" or "string", by column. keys: (spelling in args, column, or CORRELATION or EXTERNAL_ID). id_column: takes the
    `id` of events that are no flows. repair: mend what is not quite JSON. ValueError where a kind or column does not exist.
    """

    def __init__(self, kinds: Sequence[str], keys: Sequence[tuple[str, int]], id_column: int, repair: bool = False) -> None: ...
    def feed(self, block: bytes | bytearray | memoryview) -> None:
        """Read a block of the document. ScanError where it is malformed."""
    def finish(self) -> bool:
        """Read what is left; whether the document is whole. ScanError where it is malformed."""
    def take(self) -> Scanned:
        """The columns, handed over: RuntimeError at any further use."""
    @property
    def offset(self) -> int:
        """Bytes fed."""
    @property
    def complete_offset(self) -> int:
        """Bytes of what has been read whole."""
    @property
    def rows(self) -> int: ...
    @property
    def saw_document(self) -> bool: ...
    @property
    def saw_events(self) -> bool: ...
