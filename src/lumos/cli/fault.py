"""What the command line does with an error that no part of Lumos foresaw: say that it is a fault of Lumos, and save what a report needs.

A wrong input or argument ends in a `LumosError`, which says what to do. Any other exception means that Lumos trusted something that
it should have checked. Its traceback is of no use to the user but of much to the maintainers, so it is saved to a file.
"""

import os
import platform
import shlex
import sys
import tempfile
import traceback
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lumos.characters import visible

#: EX_SOFTWARE of sysexits.h: an internal error of the program.
FAULT = 70

#: The packages whose versions a report of a fault names.
PACKAGES = ("lumos-trace", "numpy", "msgspec", "isal", "typer", "rich", "click")


def fault_message(error: BaseException) -> str:
    """What to say on standard error: what happened, and the file that was saved for the report."""
    what = visible(f"{type(error).__name__}: {error}".splitlines()[0][:200])
    saved = save(error)
    unsaved = "the traceback could not be saved: run again with space in the temporary folder"
    where = unsaved if saved is None else f"{saved} holds the traceback"
    return f"a fault of Lumos, not of your input ({what}); please report it: {where}"


def save(error: BaseException) -> Path | None:
    """A new file in the temporary folder, readable by its user alone, with the command, the versions and the traceback.

    None where no file can be written: an error about an error would hide the first.
    """
    try:
        handle, name = tempfile.mkstemp(prefix="lumos-fault-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write("\n".join((f"command: {shlex.join(sys.argv)}", *versions(), "", *traceback.format_exception(error))))
    except OSError:
        return None
    return Path(name)


def versions() -> list[str]:
    """The versions of Python, of the system and of the packages that the command line uses."""
    lines = [f"python {platform.python_version()} on {platform.platform()}"]
    for package in PACKAGES:
        try:
            lines.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            lines.append(f"{package} is not installed as a package")
    return lines
