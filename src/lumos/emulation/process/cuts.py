"""What the script would do to the world outside, which an emulated one must not: it learns nothing, so nothing of it is kept or told.

Files that it writes are swallowed, except temporary ones; files are not removed or renamed; no connection is made; sleeps are short.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import io
import os
import shutil
import socket
import tempfile
import time
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_leaves

from lumos.emulation.process.loading import when_loaded
from lumos.emulation.process.own_files import is_unwritten, leave_unwritten, may_change

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.emulation.process.journal import Journal

#: Functions of the operating system that change a file or a folder, the first argument, or two.
_CHANGING = (
    "mkdir", "makedirs", "remove", "unlink", "rename", "replace", "rmdir", "truncate", "symlink", "link", "chmod", "utime",
)  # fmt: skip
_NOT_WRITTEN = ("not-written", "files that the script writes are not written")
_LONGEST_SLEEP = 0.01  # seconds; not none at all, so that a thread that waits in a loop leaves the processor to others


class Cuts:
    """The functions that are cut, until they are given back."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._before: list[tuple[Any, str, Any]] = []

    def install(self) -> None:
        """Cut them."""
        self._files()
        self._saving()
        sleep = time.sleep
        self._replace(time, "sleep", lambda seconds: sleep(min(seconds, _LONGEST_SLEEP)))
        for name in ("connect", "connect_ex", "sendto", "sendmsg"):
            self._replace(socket.socket, name, _refuse)
        for name in ("getaddrinfo", "gethostbyname"):
            self._replace(socket, name, _of_this_machine(getattr(socket, name)))

    def give_back(self) -> None:
        """Let them do again what they did."""
        for owner, name, value in reversed(self._before):
            setattr(owner, name, value)

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def _files(self) -> None:
        opened, opened_low = io.open, os.open

        def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if set(mode) & set("wax+") and "opener" not in kwargs and not may_change(file):
                self._journal.assume(*_NOT_WRITTEN)
                with tempfile.NamedTemporaryFile(prefix="lumos-swallowed-") as swallowed:  # what is written can be read again, and is lost
                    return opened(swallowed.name, mode.replace("x", "w"), *args, **kwargs)
            return opened(file, mode, *args, **kwargs)

        def open_low(file: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            # A lock says nothing, and a file without a name is opened by its folder.
            is_kept = os.fsdecode(file).endswith(".lock") or os.path.isdir(file)  # noqa: PTH112
            if flags & (os.O_WRONLY | os.O_RDWR) and not is_kept and not may_change(file):
                self._journal.assume(*_NOT_WRITTEN)
                return opened_low(os.devnull, os.O_RDWR)
            return opened_low(file, flags, *args, **kwargs)

        for owner in (builtins, io):
            self._replace(owner, "open", open_)
        self._replace(os, "open", open_low)
        for name in _CHANGING:
            self._replace(os, name, _unless_others(getattr(os, name)))
        for name in ("rmtree", "move"):
            self._replace(shutil, name, _unless_others(getattr(shutil, name)))

    def _saving(self) -> None:
        """Checkpoints, which torch and safetensors write without Python's files."""

        def nothing(*_: Any, **__: Any) -> None:
            self._journal.assume("not-saved", "checkpoints are not saved")

        save, load = torch.save, torch.load

        def save_in_memory(content: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(file, io.BytesIO) or any(isinstance(each, FakeTensor) for each in tree_leaves(content)):
                leave_unwritten(file)
                return nothing()
            with unset_fake_temporarily():  # as when a tensor of the host is pickled
                return save(content, file, *args, **kwargs)

        def load_from_memory(file: Any, *args: Any, **kwargs: Any) -> Any:
            with unset_fake_temporarily() if isinstance(file, io.BytesIO) else contextlib.nullcontext():
                return load(file, *args, **kwargs)

        self._replace(torch, "load", load_from_memory)
        self._replace(torch, "save", save_in_memory)
        savers = {
            "torch.distributed.checkpoint": ("save", "async_save", "save_state_dict"),
            "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save", "save_state_dict"),
            "safetensors.torch": ("save_file", "save_model"),
        }
        for module, names in savers.items():
            when_loaded(module, functools.partial(self._replace_all, names=names, value=nothing))
        when_loaded("transformers.trainer", lambda loaded: self._replace(loaded.Trainer, "_save_checkpoint", nothing))
        when_loaded("transformers.modeling_utils", lambda loaded: self._replace(loaded.PreTrainedModel, "save_pretrained", nothing))

    def _replace_all(self, owner: Any, names: tuple[str, ...], value: Any) -> None:
        for name in names:
            self._replace(owner, name, value)


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


def _unless_others(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function where all paths that it is given are the script's own, else one that does nothing.

    Names in an open folder follow from a call for that folder. A file that was not written can be given another name, which is not written
    either.
    """

    def cut(file: Any, *args: Any, **kwargs: Any) -> Any:
        paths = [file, *(each for each in args[:1] if isinstance(each, (str, bytes, os.PathLike)))]
        if is_unwritten(file):
            for path in paths:
                leave_unwritten(path)
            return None
        is_own = kwargs.get("dir_fd") is not None or all(map(may_change, paths))
        return function(file, *args, **kwargs) if is_own else None

    return cut


def torch_parts(journal: Journal) -> None:
    """Profilers of the script's own, which would meet the emulation's."""
    torch.profiler.profile = _profile_class(journal)
    torch.autograd.profiler.profile = torch.profiler.profile
    torch.autograd.profiler.emit_nvtx = lambda *_, **__: contextlib.nullcontext()
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        setattr(torch.cuda.nvtx, name, lambda *_: None)


def _profile_class(journal: Journal) -> Any:
    class Profile:
        """A profiler that records nothing."""

        def __init__(self, *_: Any, **__: Any) -> None:
            journal.assume("no-own-profiler", "the script's own profiler records nothing")

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def __getattr__(self, _: str) -> Any:
            return lambda *_, **__: None

    return Profile


def loaders(journal: Journal, mode: Any) -> None:
    """Data loaders run for real, in this process: their workers would have to be emulated too."""
    data = importlib.import_module("torch.utils.data.dataloader")
    make, following = data.DataLoader.__init__, data._BaseDataLoaderIter.__next__
    hidden: dict[int, bool] = {}

    @functools.wraps(make)
    def init(loader: Any, *args: Any, **kwargs: Any) -> None:
        names = make.__code__.co_varnames[1 : make.__code__.co_argcount]
        given = dict(zip(names, args, strict=False)) | kwargs
        apart = bool(given.get("num_workers"))
        for name in (
            "num_workers",
            "pin_memory",
            "persistent_workers",
            "prefetch_factor",
            "timeout",
            "multiprocessing_context",
            "pin_memory_device",
        ):
            given.pop(name, None)
        make(loader, **given)
        hidden[id(loader.dataset)] = apart
        if apart:
            journal.assume("no-workers", "data loaders run in the process itself, and their work is not part of the record")

    def following_batch(iterator: Any) -> Any:
        with mode.aside(hidden=hidden.get(id(iterator._dataset), False)):
            batch = following(iterator)
        return mode.batch_of(batch)

    data.DataLoader.__init__ = init
    data._BaseDataLoaderIter.__next__ = following_batch
