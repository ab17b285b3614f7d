"""The execution trace of one step: operators with the identity of each tensor, which the profiler's rows do not have.

It has the same record function ids as the profiler's rows of that step, so that the two can be linked exactly. torch writes
plain JSON to a temporary file; the compressed file appears under its final name only when it is complete. The sources of the
compiled kernels that it names are copied into a folder beside it.
"""

from __future__ import annotations

import gzip
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from lumos.collect.kernel_sources import copy_sources

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def _plain(final: Path) -> Path:
    """Where torch writes what is compressed into `final`."""
    return final.with_name(f".{final.name}.json")


@contextmanager
def compressing(final: Path) -> Iterator[Path]:
    """The plain file of a block, whose content is in `final`, compressed, when the block ends without an error: a file of that name is
    always complete."""
    plain, draft = _plain(final), final.with_name(f".{final.name}.partial")
    try:
        yield plain
        with plain.open("rb") as source, gzip.open(draft, "wb", compresslevel=6) as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
        draft.replace(final)
    finally:
        plain.unlink(missing_ok=True)
        draft.unlink(missing_ok=True)


class ExecutionTraceFile:
    """torch's execution trace observer, which writes into `folder`. sources: how many sources of compiled kernels were copied."""

    def __init__(self, torch: Any, folder: Path) -> None:
        self._torch, self._folder = torch, folder
        self._observer: Any = None
        self._final = self._plain = folder
        self.sources = 0

    @property
    def is_open(self) -> bool:
        return self._observer is not None

    @property
    def sources_folder(self) -> Path:
        """Where the sources of compiled kernels are copied to: rank<R>.et_resources."""
        return self._folder / f"{self._final.name.removesuffix('.json.gz')}_resources"

    def open(self, rank: int) -> None:
        """Start observing. Raises whatever torch raises."""
        self._final = self._folder / f"rank{rank}.et.json.gz"
        self._plain = _plain(self._final)
        observer = self._torch.profiler.ExecutionTraceObserver()
        observer.register_callback(str(self._plain))
        observer.start()
        self._observer = observer

    def discard(self) -> None:
        """Stop observing, and leave no file, whatever torch raises."""
        observer, self._observer = self._observer, None
        with suppress(Exception):
            observer.stop()
            observer.unregister_callback()
        self._plain.unlink(missing_ok=True)

    def close(self) -> Path:
        """Stop observing, and return the file that was written. Raises whatever torch raises, and OSError."""
        observer, self._observer = self._observer, None
        with compressing(self._final) as plain:
            observer.stop()
            observer.unregister_callback()
            self.sources = copy_sources(plain, self.sources_folder)
        return self._final
