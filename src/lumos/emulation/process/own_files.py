"""Which files an emulated script may change: temporary ones that it made itself. All others stay as they were."""

from __future__ import annotations

import os
import tempfile
from typing import Any

_DEVICES = ("/dev", "/proc")
_temporary = os.path.realpath(tempfile.gettempdir())
_made: set[str] = set()
_unwritten: set[str] = set()


def may_change(file: Any) -> bool:
    """Whether a file or folder is the script's own: below the folder for temporary files, and not there before, or no file at all.
    One that does not exist yet counts as made from then on."""
    if not isinstance(file, (str, bytes, os.PathLike)):
        return True
    path = os.path.realpath(os.fsdecode(file))
    if _is_below(path, _DEVICES):
        return True
    if not _is_below(path, (_temporary,)):
        return False
    if not os.path.lexists(path):
        _made.add(path)
    return _is_made(path)


def is_unwritten(file: Any) -> bool:
    """Whether the script wrote a file that is not there (`leave_unwritten`)."""
    if not isinstance(file, (str, bytes, os.PathLike)):
        return False
    path = os.path.realpath(os.fsdecode(file))
    return path in _unwritten and not os.path.lexists(path)


def leave_unwritten(file: Any) -> None:
    """Let a file count as written by the script that is not there, such as a checkpoint, so that the script may rename it."""
    if isinstance(file, (str, bytes, os.PathLike)):
        _unwritten.add(os.path.realpath(os.fsdecode(file)))


def _is_made(path: str) -> bool:
    """Whether the script made a path or a folder that it lies in."""
    while path != _temporary:
        if path in _made:
            return True
        path = os.path.dirname(path)  # noqa: PTH120  # paths as the operating system gave them
    return False


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path.startswith(folder + os.sep) for folder in folders)
