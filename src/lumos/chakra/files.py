"""The files of a Chakra set: which of a folder's files belong to it, and in what order."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lumos.errors import LumosError

if TYPE_CHECKING:
    from pathlib import Path

_NAME = re.compile(r"^(?P<prefix>.*?)\.(?P<rank>\d{1,7})\.et(?P<packed>\.gz)?$")


def rank_files(folder: Path) -> dict[int, Path]:
    """The `.et` files of a folder by rank. LumosError: no folder, no such files, two sets or two files of one rank."""
    if not folder.is_dir():
        raise LumosError(f"{folder}: no folder of .et files; name the folder that holds PREFIX.0.et, PREFIX.1.et, …")
    try:
        matches = [(m, p) for p in sorted(folder.iterdir()) if (m := _NAME.match(p.name))]
    except OSError as error:
        raise LumosError(f"{folder}: cannot be listed ({error.strerror or error}); check its permissions") from error
    if not matches:
        raise LumosError(f"{folder}: holds no PREFIX.RANK.et; name the folder of a Chakra set")
    prefixes = sorted({m["prefix"] for m, _ in matches})
    if len(prefixes) > 1:
        raise LumosError(f"{folder}: holds several sets ({', '.join(prefixes[:4])}); give each a folder of its own")
    out: dict[int, Path] = {}
    for match, path in matches:
        rank = int(match["rank"])
        if rank in out:
            raise LumosError(f"{out[rank]} and {path} are both of rank {rank}; keep one")
        out[rank] = path
    return dict(sorted(out.items()))
