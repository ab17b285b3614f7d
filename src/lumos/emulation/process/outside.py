"""What the script would do to the world outside, which an emulated one must not: it learns nothing, so nothing of it is kept or told.

All of it is cut from the start of Python on, before the script imports torch. Files that it writes are swallowed, except temporary ones
that it made itself, and files are not removed or renamed; a database is a copy in memory; no connection is made; sleeps are short. A
program that is Python runs, since it is under the same roof; any other is as if it were not installed.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumos.collect.loading import when_loaded
from lumos.emulation.process.script import line_of_script

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

#: The functions that make files and folders, as they are before any is cut.
make_folder, open_file = os.mkdir, os.open
#: Functions of the operating system that change a file or a folder, the first argument, or two.
_CHANGING = (
    "mkdir", "makedirs", "remove", "unlink", "rename", "replace", "rmdir", "truncate", "symlink", "link", "chmod", "chown", "utime",
    "mkfifo", "mknod",
)  # fmt: skip
_LONGEST_SLEEP = 0.01  # seconds; not none at all, so that a thread that waits in a loop leaves the processor to others
_DEVICES = ("/dev/", "/proc/")
_temporary = os.path.realpath(tempfile.gettempdir())
_made: set[str] = set()
_unwritten: set[str] = set()


class Outside:
    """The functions that are cut, until they are given back."""

    def __init__(self) -> None:
        self._noted: list[tuple[str, str, str]] = []
        self.assume: Callable[..., None] = lambda code, message: self._noted.append((code, message, line_of_script()))
        self._before: list[tuple[Any, str, Any]] = []

    def cut(self) -> None:
        """Cut them."""
        self._files()
        self._programs()
        sleep = time.sleep
        self.replace(time, "sleep", lambda seconds: sleep(min(seconds, _LONGEST_SLEEP)))
        for name in ("connect", "connect_ex", "sendto", "sendmsg"):
            self.replace(socket.socket, name, _refuse)
        for name in ("getaddrinfo", "gethostbyname"):
            self.replace(socket, name, _of_this_machine(getattr(socket, name)))
        when_loaded("sqlite3", self._databases)

    def tell(self, assume: Callable[..., None]) -> None:
        """Let somebody note what is cut, from now on and until now: a code, a message and the line of the script."""
        self.assume = assume
        for noted in self._noted:
            assume(*noted)

    def give_back(self) -> None:
        """Let them do again what they did."""
        for owner, name, value in reversed(self._before):
            setattr(owner, name, value)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Let a function be another until all are given back."""
        self._before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def _files(self) -> None:
        opened, opened_low = io.open, os.open

        def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if set(mode) & set("wax+") and "opener" not in kwargs and not may_change(file):
                self.assume("not-written", "files that the script writes are not written")
                with tempfile.NamedTemporaryFile(prefix="lumos-swallowed-") as swallowed:  # what is written can be read again, and is lost
                    return opened(swallowed.name, mode.replace("x", "w"), *args, **kwargs)
            return opened(file, mode, *args, **kwargs)

        def open_low(file: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            # A lock says nothing, and a file without a name is opened by its folder.
            is_kept = os.fsdecode(file).endswith(".lock") or os.path.isdir(file)  # noqa: PTH112
            if flags & (os.O_WRONLY | os.O_RDWR) and not is_kept and not may_change(file):
                self.assume("not-written", "files that the script writes are not written")
                return opened_low(os.devnull, os.O_RDWR)
            return opened_low(file, flags, *args, **kwargs)

        for owner in (builtins, io):
            self.replace(owner, "open", open_)
        self.replace(os, "open", open_low)
        for owner, names in ((os, _CHANGING), (shutil, ("rmtree", "move"))):
            for name in names:
                self.replace(owner, name, _unless_others(getattr(owner, name)))

    def _programs(self) -> None:
        """Let only Python start, and what Python's own modules ask of the system."""
        begin = subprocess.Popen.__init__

        def popen(process: Any, command: Any, *args: Any, **kwargs: Any) -> None:
            first = command if isinstance(command, (str, bytes)) else command[0]
            self._check("sh" if kwargs.get("shell") else kwargs.get("executable") or first)
            begin(process, command, *args, **kwargs)

        def checked(function: Callable[..., Any]) -> Callable[..., Any]:
            def run(program: Any, *args: Any, **kwargs: Any) -> Any:
                self._check(program)
                return function(program, *args, **kwargs)

            return run

        def system(command: Any) -> int:
            self.assume("not-started", f"programs that the script starts are not started ({command})")
            return 127 << 8  # what a shell says where there is no such command

        self.replace(subprocess.Popen, "__init__", popen)
        self.replace(os, "system", system)
        for name in ("execv", "execve", "posix_spawn", "posix_spawnp"):
            self.replace(os, name, checked(getattr(os, name)))

    def _check(self, program: Any) -> None:
        name = os.fsdecode(program)
        if not _is_python(name) and not _asked_by_python():
            self.assume("not-started", f"programs that the script starts are not started ({name})")
            raise FileNotFoundError(errno.ENOENT, "an emulated script starts no program but Python", name)

    def _databases(self, module: Any) -> None:
        connect = module.connect

        def in_memory(database: Any, *args: Any, **kwargs: Any) -> Any:
            if database == ":memory:" or kwargs.get("uri") or may_change(database):
                return connect(database, *args, **kwargs)
            self.assume("not-written", "files that the script writes are not written")
            made = connect(":memory:", *args, **kwargs)
            if os.path.exists(database):  # noqa: PTH110
                source = connect(f"file:{os.fsdecode(database)}?mode=ro", uri=True)
                source.backup(made)
                source.close()
            return made

        for owner in (module, sys.modules.get("sqlite3.dbapi2", module)):
            self.replace(owner, "connect", in_memory)


def may_change(file: Any) -> bool:
    """Whether a file is the script's own: temporary, and not there before, or none at all. A new one counts as made from then on."""
    if not isinstance(file, (str, bytes, os.PathLike)):
        return True
    path = os.path.realpath(os.fsdecode(file))
    if path.startswith(_DEVICES):
        return True
    if not path.startswith(_temporary + os.sep):
        return False
    if not os.path.lexists(path):
        _made.add(path)
    return _is_made(path)


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


def _unless_others(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function where all paths that it is given are the script's own, else one that does nothing. Names in an open folder follow from
    a call for that folder. A file that was not written can be given another name, which is not written either."""

    def cut(file: Any, *args: Any, **kwargs: Any) -> Any:
        paths = [file, *(each for each in args[:1] if isinstance(each, (str, bytes, os.PathLike)))]
        if isinstance(file, (str, bytes, os.PathLike)):
            path = os.path.realpath(os.fsdecode(file))
            if path in _unwritten and not os.path.lexists(path):
                for each in paths:
                    leave_unwritten(each)
                return None
        is_own = kwargs.get("dir_fd") is not None or all(map(may_change, paths))
        return function(file, *args, **kwargs) if is_own else None

    return cut


def _is_python(program: str) -> bool:
    """Whether a program is an interpreter of Python, or a script that names one."""
    found = shutil.which(program)
    if found is None:
        return True  # there is none, which the system says
    if os.path.basename(os.path.realpath(found)).startswith("python"):  # noqa: PTH119
        return True
    first = Path(found).read_bytes()[:200].partition(b"\n")[0]
    return first.startswith(b"#!") and b"python" in first


def _asked_by_python() -> bool:
    """Whether a module of Python's own, such as `platform`, asks for a program."""
    library = sysconfig.get_path("stdlib")
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in (__file__, subprocess.__file__):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(library) and "site-packages" not in frame.f_code.co_filename


def _refuse(_: Any, *given: Any) -> None:
    raise ConnectionRefusedError(f"an emulated script makes no connection ({given[-1]})")


def _of_this_machine(look_up: Callable[..., Any]) -> Callable[..., Any]:
    """Addresses of this machine, and numbers, are known without asking another."""
    own = {None, "", "localhost", socket.gethostname()}

    def cut(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in own and not set(name) <= set("0123456789abcdef.:%"):
            raise socket.gaierror(socket.EAI_NONAME, f"an emulated script makes no connection ({name})")
        return look_up(host, *args, **kwargs)

    return cut


#: Of this process, from the start of Python on.
OUTSIDE = Outside()
