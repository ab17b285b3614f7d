"""A file read as blocks of bytes, decompressed where it is gzip or zstd, in bounded memory."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING

from lumos.errors import TraceError

if TYPE_CHECKING:
    from pathlib import Path

#: Called with the bytes read so far and the bytes of all files together.
Progress = Callable[[int, int], None]

#: Bytes of a block. Small enough to stay in a core's second-level cache between decompressing and scanning.
_BLOCK = 1 << 18

#: Compressed bytes read at a time.
_PACKED = 1 << 16

#: Profiler traces decompress to 10–40 times their size, repetitive ones to 100 times; deflate's limit is 1,032. A file beyond
#: MAX_EXPANSION is refused once it has decompressed to more than FREE_EXPANSION bytes.
MAX_EXPANSION = 250
FREE_EXPANSION = 64 << 20

_GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

#: Compressed bytes of zstd that are unpacked at a time. Four bytes can stand for a block of 128 KiB (RFC 8878, section 3.1.1.2), so
#: that no more than 128 MiB come out at once, whatever the file.
_ZSTD_PACKED = 1 << 12


def head(path: Path, size: int = 1 << 16) -> bytes:
    """The first `size` bytes (unpacked), or all where the file is shorter. Raises TraceError where it cannot be read."""
    parts: list[bytes] = []
    try:
        for block in unpacked_blocks(path):
            parts.append(block)
            if sum(map(len, parts)) >= size:
                break
    except TruncatedError:
        pass
    return b"".join(parts)[:size]


class TruncatedError(TraceError):
    """A compressed file ends before its compressed data is complete; the blocks before the end were good."""


def unpacked_blocks(path: Path, progress: Callable[[int], None] | None = None) -> Iterator[bytes]:
    """The file's bytes in blocks, unpacked where it starts with the magic bytes of gzip, or of zstd where Python's zstandard is
    installed.

    `progress` is called with the bytes of the file itself read so far. Raises TraceError: no such file, no permission, a
    directory, a pipe or a device, damaged compressed data, a file that unpacks beyond all reason; TruncatedError at the end
    of a cut-off compressed file.
    """
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a pipe without a writer would block for ever
            raise TraceError(f"{path}: a pipe or a device, not a file; write the trace to a file and give that")
        with path.open("rb", buffering=0) as file:
            first = file.read(_PACKED)
            if first.startswith(_GZIP_MAGIC):
                yield from _unpack(path, first, lambda: file.read(_PACKED), progress)
                return
            if first.startswith(ZSTD_MAGIC) and find_spec("zstandard"):
                yield from _unpack_zstd(path, chain((first,), iter(lambda: file.read(_PACKED), b"")), progress)
                return
            done = len(first)
            while first:
                if progress is not None:
                    progress(done)
                yield first
                first = file.read(_BLOCK)
                done += len(first)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror or error}); check the path and its permissions") from error


def _unpack(path: Path, packed: bytes, read: Callable[[], bytes], progress: Callable[[int], None] | None) -> Iterator[bytes]:
    from isal import igzip_lib

    taken = len(packed)  # bytes of the file read so far
    made = 0  # bytes unpacked so far
    if progress is not None:
        progress(taken)
    while True:  # one member of the file at a time
        member = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        while not member.eof:
            if member.needs_input and not packed:
                packed = read()
                taken += len(packed)
                if progress is not None:
                    progress(taken)
                if not packed:
                    raise _cut_off(path, "gzip", taken, made)
            try:
                block = member.decompress(packed, _BLOCK)
            except igzip_lib.IsalError as error:  # type: ignore[misc]  # declared as an instance in its stub
                raise _damaged(path, "gzip", taken, made, error) from error
            packed = b""
            made += len(block)
            _check_expansion(path, made, taken)
            if block:
                yield block
        packed = member.unused_data or read()
        if not member.unused_data:
            taken += len(packed)
        while packed and not packed.strip(b"\0"):  # zero padding after the last member, which gzip allows
            packed = read()
            taken += len(packed)
        if not packed:
            return
        packed = packed.lstrip(b"\0")
        if not packed.startswith(_GZIP_MAGIC[: len(packed)]):
            raise TraceError(f"{path}: bytes behind the end of the gzip data, before byte {taken} of the file; copy the file again")


def _unpack_zstd(path: Path, packed: Iterable[bytes], progress: Callable[[int], None] | None) -> Iterator[bytes]:
    import zstandard

    taken = made = 0
    frame = None  # the frame that is being unpacked; a file may have several
    for read in packed:
        taken += len(read)
        if progress is not None:
            progress(taken)
        for begin in range(0, len(read), _ZSTD_PACKED):
            left = read[begin : begin + _ZSTD_PACKED]
            while left:
                frame = frame or zstandard.ZstdDecompressor().decompressobj()
                try:
                    block = frame.decompress(left)
                except zstandard.ZstdError as error:
                    raise _damaged(path, "zstd", taken, made, error) from error
                left = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
                made += len(block)
                _check_expansion(path, made, taken)
                for i in range(0, len(block), _BLOCK):
                    yield block[i : i + _BLOCK]
    if frame is not None:
        raise _cut_off(path, "zstd", taken, made)


def _check_expansion(path: Path, made: int, taken: int) -> None:
    """Raise TraceError where `taken` compressed bytes have become more bytes than any trace's would."""
    if made > FREE_EXPANSION and made > MAX_EXPANSION * taken:
        raise TraceError(
            f"{path}: unpacks to more than {MAX_EXPANSION} times its size ({made} bytes from the first {taken}), which no "
            "profiler trace does: refused; unpack it yourself if you trust it"
        )


def _cut_off(path: Path, format: str, taken: int, made: int) -> TruncatedError:
    return TruncatedError(
        f"{path}: the {format} data ends at byte {taken} of the file (byte {made} unpacked) before it is complete: "
        "the file was cut off; copy or record it again"
    )


def _damaged(path: Path, format: str, taken: int, made: int, error: Exception) -> TraceError:
    return TraceError(
        f"{path}: the {format} data is damaged before byte {taken} of the file (byte {made} unpacked): {error}; "
        "copy or record the file again"
    )
