"""What `trace.read` needs to know of the reader of a file format; and the formats that hold what Lumos reads, but packed or encoded in a
way that it does not, recognised by their first bytes to name the command that converts them."""

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
    sniff: Callable[[bytes], object]
    read: ReadFile | None
    remedy: str = ""
    is_companion: bool = False
    is_original: bool = False
    repair: ReadFile | None = None


def _refused(name: str, starts: tuple[bytes, ...], remedy: str, at: int = 0) -> Reader:
    """The format of files with one of these bytes `at` a place, which are to be converted first."""
    return Reader(name, lambda first: first[at:].startswith(starts), None, remedy)


def _compressed(name: str, magic: bytes, command: str) -> Reader:
    """The format of files that are compressed in a way that is not unpacked here: gzip and zstd are."""
    return _refused(f"compressed with {name}", (magic,), f"unpack it ({command}) and give what comes out")


def _encoded(bits: int, starts: tuple[bytes, ...]) -> Reader:
    """JSON in wider characters than UTF-8's: a byte order mark, or an ASCII character beside zero bytes."""
    return _refused(f"text in UTF-{bits}", starts, f"convert it (iconv -f UTF-{bits} -t UTF-8 FILE > NEW)")


#: Asked in this order: the mark of UTF-32 begins with that of UTF-16. The header of a tar archive says at 257 what it is (POSIX.1-2017,
#: pax, "ustar Interchange Format").
TO_CONVERT = (
    _compressed("xz", b"\xfd7zXZ\x00", "xz -d FILE"),
    _compressed("LZMA", b"\x5d\x00\x00", "xz -d --format=lzma FILE"),
    _compressed("bzip2", b"BZh", "bzip2 -d FILE"),
    _compressed("zip", b"PK\x03\x04", "unzip FILE"),
    _compressed("LZ4", b"\x04\x22\x4d\x18", "lz4 -d FILE"),
    _compressed("7-Zip", b"7z\xbc\xaf\x27\x1c", "7z x FILE"),
    _compressed("RAR", b"Rar!\x1a\x07", "unrar x FILE"),
    _compressed("compress", b"\x1f\x9d", "uncompress FILE"),
    _refused("a tar archive", (b"ustar",), "unpack it (tar -xf FILE) and give the folder that comes out", at=257),
    _encoded(32, (b"\xff\xfe\0\0", b"\0\0\xfe\xff", b"{\0\0\0", b"\0\0\0{", b"[\0\0\0", b"\0\0\0[")),
    _encoded(16, (b"\xff\xfe", b"\xfe\xff", b"{\0", b"\0{", b"[\0", b"\0[")),
)
