"""How every file and folder that Lumos writes comes into being: beside its place, and renamed into it once it is complete.

A reader therefore never sees half a file, and where the disk is full, or the user interrupts, what was there before stays as it was.
A place that is no regular file, such as /dev/stdout, is written to directly. No output may take the place of an input.
"""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from lumos.errors import LumosError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_FILE_REMEDY = "free some space, or name a file in a folder that exists and is writable"
_FOLDER_REMEDY = "free some space, or name a folder that is writable"


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """An open file whose content becomes that of `path` when the block ends without an error; otherwise nothing changes.

    A link is followed, and a file that is replaced hands on its permissions. Raises LumosError where the file cannot be written.
    """
    target = Path(os.path.realpath(path))
    draft = target.with_name(_draft_name()) if target.is_file() or not target.exists() else None
    try:
        with (draft or target).open("xb" if draft else "wb") as file:
            yield file
        if draft is not None:
            if target.exists():
                shutil.copymode(target, draft)
            draft.replace(target)
    except BrokenPipeError:  # whoever read a pipe has enough of it
        raise
    except OSError as error:
        raise LumosError(f"{path}: cannot be written ({error.strerror or error}); {_FILE_REMEDY}") from error
    finally:
        if draft is not None:
            draft.unlink(missing_ok=True)


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """An empty folder whose files are in the folder `path` when the block ends without an error; otherwise nothing changes.

    A folder that was not there appears with all of its files at once. In one that was, files of the same names are replaced one by one,
    after all are complete. Raises LumosError where the folder cannot be written.
    """
    target = Path(os.path.realpath(path))
    draft = (target if target.is_dir() else target.parent) / _draft_name()
    try:
        draft.mkdir(parents=True)
        yield draft
        if target.is_dir():
            for file in sorted(draft.iterdir()):
                file.replace(target / file.name)
        else:
            draft.rename(target)
    except OSError as error:
        raise LumosError(f"{path}: cannot be written ({error.strerror or error}); {_FOLDER_REMEDY}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def check_outputs(outputs: Iterable[str | os.PathLike[str] | None], inputs: Iterable[str | os.PathLike[str]]) -> None:
    """Raise UsageError where an output is one of the input files under any name, a folder that holds one, or another output.

    None stands for an output that was not asked for.
    """
    wanted = [Path(output) for output in outputs if output is not None]
    for one, other in combinations(wanted, 2):
        if os.path.realpath(one) == os.path.realpath(other):
            raise UsageError(f"{one}: named for two outputs; give each a name of its own")
    for source in map(Path, inputs):
        for output in wanted:
            if _same(output, source):
                raise UsageError(f"{output}: is the input {source}, which would be lost; write to another file")
            if output.is_dir() and _same(output, Path(os.path.realpath(source)).parent):
                raise UsageError(f"{output}: holds the input {source}; write to a folder of its own")


def check_places(*files: str | os.PathLike[str] | None, folders: Iterable[str | os.PathLike[str] | None] = ()) -> None:
    """Raise LumosError where a file cannot be written because its folder does not exist or it is one, or a folder because a file has its
    name: before the work whose answer they are to hold.

    None stands for one that was not asked for.
    """
    for file in files:
        place = Path(os.path.realpath(file or "."))
        if file is not None and (place.is_dir() or not place.parent.is_dir()):
            why = "Is a directory" if place.is_dir() else "No such file or directory"
            raise LumosError(f"{file}: cannot be written ({why}); {_FILE_REMEDY}")
    for target in (Path(folder) for folder in folders if folder is not None):
        there = next(at for at in (target, *Path(os.path.realpath(target)).parents) if at.exists())
        if not there.is_dir():
            raise LumosError(f"{target}: cannot be written ({there} is a file); {_FOLDER_REMEDY}")


def check_only_own(folder: str | os.PathLike[str], pattern: str, names: Iterable[str]) -> None:
    """Raise UsageError where a folder holds files of `pattern` other than those to be written, `names`: a job is read with all of them."""
    target = Path(folder)
    foreign = sorted({p.name for p in target.glob(pattern)} - set(names)) if target.is_dir() else []
    if foreign:
        raise UsageError(f"{folder}: holds files of another set ({', '.join(foreign[:3])}); name an empty folder, or remove them")


def _same(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file or folder, also through links."""
    return one.exists() and other.exists() and one.samefile(other)


def _draft_name() -> str:
    return f".lumos-{secrets.token_hex(6)}.part"
