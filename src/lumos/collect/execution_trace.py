"""The execution trace of one step: operators with the identity of each tensor, which the profiler's rows do not have.

It has the same record function ids as the profiler's rows of that step, so that the two can be linked exactly. torch writes
plain JSON to a temporary file; the compressed file appears under its final name only when it is complete. The sources of the
compiled kernels that it names are copied into a folder beside it.

torch.compile writes each Triton kernel to a file of torch's cache and loads it as a module, and the execution trace names that file
(`kernel_file`, torch 2.5 and later). The cache is lost with the machine, so what a trace names is copied into the folder where torch's
own observer would put it (`set_extra_resource_collection`), from which `lumos proxy generate --kernel-sources` takes it. The observer
itself is not asked to: it would import the compiler in every job, and copy every module that it ever made.
"""

from __future__ import annotations

import gzip
import mmap
import re
import shutil
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Bytes of one source, and of all that are copied: as much as a generated benchmark takes.
LARGEST_SOURCE, LARGEST_ALL = 1 << 20, 64 << 20

_NAMED = re.compile(rb'"name": *"kernel_file", *"type": *"string", *"value": *"(\w{1,128}\.py)"', re.ASCII)


def copy_sources(trace: Path, folder: Path) -> int:
    """Copy the sources that an execution trace, a plain file, names and that this process has loaded into `folder`; return how many.

    The folder is made where there is one at least. Files above the limits are left out. Raises OSError.
    """
    loaded = _loaded()
    copied, room = 0, LARGEST_ALL
    for name in _named(trace) if loaded else ():
        source = loaded.get(name)
        size = source.stat().st_size if source is not None and source.is_file() else None
        if source is None or size is None or size > min(LARGEST_SOURCE, room):
            continue
        folder.mkdir(exist_ok=True)
        shutil.copyfile(source, folder / name)
        copied, room = copied + 1, room - size
    return copied


def _named(trace: Path) -> list[str]:
    """The files that an execution trace names, each once."""
    if not trace.stat().st_size:
        return []
    with trace.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return list(dict.fromkeys(match[1].decode() for match in _NAMED.finditer(text)))


def _loaded() -> dict[str, Path]:
    """The compiled modules of this process by the names of their files; none where nothing was compiled."""
    codecache: Any = sys.modules.get("torch._inductor.codecache")
    files = [getattr(module, "__file__", None) for module in getattr(getattr(codecache, "PyCodeCache", None), "modules", ())]
    return {Path(file).name: Path(file) for file in files if file}


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
