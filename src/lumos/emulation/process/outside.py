"""What the script would do to the world outside, which an emulated one must not: it learns nothing, so nothing of it is kept or told.

All of it is cut from the start of Python on, before the script imports torch. What it writes, temporary files and checkpoints too, lies
apart, where it finds it until it ends; files are not removed or renamed, and a database is a copy; no connection is made; sleeps are short.
A program that is Python runs, since it is under the same roof; any other is as if it were not installed.
"""

from __future__ import annotations

import builtins
import errno
import io
import json
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
from lumos.emulation.process.patches import Patches
from lumos.emulation.process.script import line_of_error, line_of_script, script_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

#: Functions of the operating system that change a file or a folder, the first argument, or two.
_CHANGING = (
    "remove", "unlink", "rename", "replace", "rmdir", "truncate", "symlink", "link", "chmod", "chown", "utime",
    "mkfifo", "mknod",
)  # fmt: skip
_LONGEST_SLEEP = 0.01  # seconds; not none at all, so that a thread that waits in a loop leaves the processor to others
_settings = json.loads(os.environ.get("LUMOS_EMULATE", "{}"))
#: The folder of what this process, and those that it starts, write in the place of other files: beside its record, which goes with it.
_FILES = f"{os.path.realpath(_settings.get('file', 'none'))}.files"
#: That of rank 0, which the ranks that run after it find too: one of them often prepares what all read.
_FIRST = f"{os.path.dirname(_FILES)}/rank0.record.files" if _settings.get("rank") and _settings.get("patience_s") else _FILES  # noqa: PTH120
#: Where everybody may write: temporary files lie apart from the start; ranks leave each other messages, and snapshots of memory.
_FREE = ("/dev/", "/proc/", _FILES, *(f"{os.path.dirname(_FILES)}/{folder}" for folder in ("mail", "objects", "snapshots")))  # noqa: PTH120


class Outside(Patches):
    """The functions that are cut, until they are given back."""

    def __init__(self) -> None:
        super().__init__()
        self._noted: list[tuple[str, str, str]] = []
        self.assume: Callable[..., None] = lambda code, message: self._noted.append((code, message, line_of_script()))

    def cut(self) -> None:
        """Cut them."""
        if os.getpid() == os.getsid(0):
            shutil.rmtree(_FILES, ignore_errors=True)  # of an earlier run, where this one begins anew
        tempfile.tempdir = os.environ["TMPDIR"] = f"{_FILES}/tmp"
        os.makedirs(tempfile.tempdir, exist_ok=True)  # noqa: PTH103
        self._files()
        self._programs()
        self.around(sys, "excepthook")(self._fail)

        @self.around(time, "sleep")
        def sleep(wait: Any, seconds: float) -> None:
            wait(min(seconds, _LONGEST_SLEEP))

        self.around(socket.socket, "connect", "sendto", "sendmsg")(_refuse)
        self.around(socket.socket, "connect_ex")(lambda *_: errno.ECONNREFUSED)
        self.around(socket, "getaddrinfo", "gethostbyname")(_of_this_machine)
        when_loaded("sqlite3", self._databases)

    def tell(self, assume: Callable[..., None]) -> None:
        """Let somebody note what is cut, from now on and until now: a code, a message and the line of the script."""
        self.assume = assume
        for noted in self._noted:
            assume(*noted)

    def _fail(self, show: Callable[..., None], kind: Any, error: BaseException, trace: Any) -> None:
        """Say why the process that the emulation started ends, before it has torch or as a launcher of others."""
        self.take_back()
        show(kind, error, trace)
        if os.getpid() == os.getsid(0):
            Path(_settings["file"]).with_suffix(".error").write_text(script_error(error, line_of_error(trace)), encoding="utf-8")

    def _files(self) -> None:
        @self.around(builtins, "open")
        @self.around(io, "open")
        def open_(opened: Any, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if "opener" in kwargs or may_change(file):
                return opened(file, mode, *args, **kwargs)
            if set(mode) & set("wax+"):
                return opened(self.apart(file, kwargs, is_new=bool(set(mode) & set("wx"))), mode.replace("x", "w"), *args, **kwargs)
            return opened(self.found(file), mode, *args, **kwargs)

        @self.around(os, "open")
        def open_low(opened: Any, file: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            # A lock says nothing, and a file without a name is opened by its folder.
            is_kept = os.fsdecode(file).endswith(".lock") or os.path.isdir(file)  # noqa: PTH112
            if not flags & (os.O_WRONLY | os.O_RDWR) or is_kept or may_change(file):
                return int(opened(file, flags, *args, **kwargs))
            if kwargs.get("dir_fd") is not None:  # a name in an open folder, which none apart stands for
                return int(opened(os.devnull, os.O_RDWR))
            return int(opened(self.apart(file, kwargs, is_new=bool(flags & os.O_TRUNC)), flags | os.O_CREAT, *args))

        self.around(os, *_CHANGING)(_unless_others)
        self.around(os, "mkdir", "makedirs")(lambda make, path, *given, **named: make(self.apart(path, named), *given, **named))

        @self.around(os, "stat", "listdir", "scandir", "chdir")
        def look_apart(look: Any, path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            try:
                return look(path, *args, **kwargs)
            except FileNotFoundError:
                if (found := self.found(path)) is path:
                    raise
                return look(found, *args, **kwargs)

        self.around(shutil, "rmtree", "move")(_unless_others)

    def apart(self, file: Any, named: dict[str, Any], is_new: bool = False) -> Any:
        """What the script writes in the place of a file or folder that is not its own: one apart, with the content of that unless it is
        new, which it finds there from then on."""
        if named.get("dir_fd") is not None or may_change(file):
            return file
        self.assume("not-written", "files that the script writes are not written")
        own = _own(file)
        if not os.path.lexists(own):
            os.makedirs(os.path.dirname(own), exist_ok=True)  # noqa: PTH103, PTH120
            if not is_new and os.path.isfile(before := self.found(file)):  # noqa: PTH113
                shutil.copyfile(before, own)
        return own

    def found(self, file: Any) -> Any:
        """Where the content of a file or folder is: what the script has written in its place, or rank 0 before it; else the file."""
        return next((own for own in (_own(file), _own(file, _FIRST)) if os.path.lexists(own)), file)

    def _programs(self) -> None:
        """Let only Python start, and what Python's own modules ask of the system."""

        @self.around(subprocess.Popen, "__init__")
        def popen(begin: Any, process: Any, command: Any, *args: Any, **kwargs: Any) -> None:
            first = command if isinstance(command, (str, bytes)) else command[0]
            self._check("sh" if kwargs.get("shell") else kwargs.get("executable") or first)
            begin(process, command, *args, **kwargs)

        @self.around(os, "execv", "execve", "posix_spawn", "posix_spawnp")
        def run(begin: Any, program: Any, *args: Any, **kwargs: Any) -> Any:
            self._check(program)
            return begin(program, *args, **kwargs)

        @self.around(os, "system")
        def system(_: Any, command: Any) -> int:
            self.assume("not-started", f"programs that the script starts are not started ({command})")
            return 127 << 8  # what a shell says where there is no such command

    def _check(self, program: Any) -> None:
        name = os.fsdecode(program)
        if not _is_python(name) and not _asked_by_python():
            self.assume("not-started", f"programs that the script starts are not started ({name})")
            raise FileNotFoundError(errno.ENOENT, "an emulated script starts no program but Python", name)

    def _databases(self, module: Any) -> None:
        def apart(connect: Any, database: Any, *args: Any, **kwargs: Any) -> Any:
            is_no_file = database == ":memory:" or kwargs.get("uri")
            return connect(database if is_no_file else self.apart(database, kwargs), *args, **kwargs)

        for owner in {id(library): library for library in (module, sys.modules.get("sqlite3.dbapi2", module))}.values():
            self.around(owner, "connect")(apart)


def may_change(file: Any) -> bool:
    """Whether a file lies where the script may write, or is none at all."""
    return not isinstance(file, (str, bytes, os.PathLike)) or os.path.realpath(os.fsdecode(file)).startswith(_FREE)


def is_own(file: Any) -> bool:
    """Whether the script has written a file, which may be an open one or in memory alone."""
    named = getattr(file, "name", file)
    return not isinstance(named, (str, bytes, os.PathLike)) or OUTSIDE.found(named) is not named or may_change(named)


def _own(file: Any, files: str = _FILES) -> str:
    """Where what the script writes in the place of a file is."""
    return files + os.path.realpath(os.fsdecode(file))


def _unless_others(function: Callable[..., Any], file: Any, *args: Any, **kwargs: Any) -> Any:
    """Do it to what lies apart, of all paths that it is given. Names in an open folder follow from a call for that folder."""
    paths = [path for path in (file, *args[:1]) if isinstance(path, (str, bytes, os.PathLike))]
    if kwargs.get("dir_fd") is not None or all(map(may_change, paths)):
        return function(file, *args, **kwargs)
    apart = [path if may_change(path) else _own(path) for path in paths]
    if not os.path.lexists(apart[0]):
        return None
    for path in apart:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
    return function(*apart, *args[len(paths) - 1 :], **kwargs)


def _is_python(program: str) -> bool:
    """Whether a program is an interpreter of Python, or a script that names one."""
    executable = shutil.which(program)
    if executable is None:
        return True  # there is none, which the system says
    if os.path.basename(os.path.realpath(executable)).startswith("python"):  # noqa: PTH119
        return True
    first = Path(executable).read_bytes()[:200].partition(b"\n")[0]
    return first.startswith(b"#!") and b"python" in first


def _asked_by_python() -> bool:
    """Whether a module of Python's own, such as `platform`, asks for a program."""
    library = sysconfig.get_path("stdlib")
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in (__file__, subprocess.__file__):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(library) and "site-packages" not in frame.f_code.co_filename


def _refuse(connect: Callable[..., Any], end: Any, *given: Any) -> Any:
    """Of connections, only those by a file that lies apart, as between the processes of a script, are made."""
    if end.family == socket.AF_UNIX and may_change(given[-1]):
        return connect(end, *given)
    raise ConnectionRefusedError(f"an emulated script makes no connection ({given[-1]})")


def _of_this_machine(look_up: Callable[..., Any], host: Any, *args: Any, **kwargs: Any) -> Any:
    """Addresses of this machine, and numbers, are known without asking another."""
    name = host.decode() if isinstance(host, bytes) else host
    if name not in {None, "", "localhost", socket.gethostname()} and not set(name) <= set("0123456789abcdef.:%"):
        raise socket.gaierror(socket.EAI_NONAME, f"an emulated script makes no connection ({name})")
    return look_up(host, *args, **kwargs)


#: Of this process, from the start of Python on.
OUTSIDE = Outside()
