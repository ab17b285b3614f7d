"""Copies of the sources of compiled kernels, beside the execution trace that names them.

torch.compile writes each Triton kernel to a file of torch's cache and loads it as a module, and the execution trace names that file
(`kernel_file`, torch 2.5 and later). The cache is lost with the machine, so what a trace names is copied into the folder where torch's
own observer would put it (`set_extra_resource_collection`), from which `lumos proxy generate --kernel-sources` takes it. The observer
itself is not asked to: it would import the compiler in every job, and copy every module that it ever made.
"""

from __future__ import annotations

import mmap
import re
import shutil
import sys
from pathlib import Path
from typing import Any

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
