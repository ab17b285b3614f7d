"""What the script would do to the world outside, which an emulated one must not: it learns nothing, so nothing of it is kept or told.

Files that it writes are swallowed, except temporary ones; files are not removed or renamed; no connection is made; sleeps are short.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import io
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lumos.emulate.process.loading import when_loaded

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.emulate.process.journal import Journal

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
        self._replace(socket.socket, "connect", self._refuse)
        self._replace(socket.socket, "connect_ex", self._refuse)

    def give_back(self) -> None:
        """Let them do again what they did."""
        for owner, name, value in reversed(self._before):
            setattr(owner, name, value)

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def _files(self) -> None:
        opened = io.open

        def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if set(mode) & set("wax+") and not isinstance(file, int) and not _is_temporary(file):
                self._journal.assume("not-written", "files that the script writes are not written")
                return opened(os.devnull, mode.replace("x", "w"), *args, **kwargs)
            return opened(file, mode, *args, **kwargs)

        for owner in (builtins, io):
            self._replace(owner, "open", open_)
        changing = {os: ("mkdir", "makedirs", "remove", "unlink", "rename", "replace", "rmdir", "truncate"), shutil: ("rmtree", "move")}
        for owner, name in [(owner, name) for owner, names in changing.items() for name in names]:
            self._replace(owner, name, _unless_temporary(getattr(owner, name)))

    def _saving(self) -> None:
        """Checkpoints, which torch and safetensors write without Python's files."""

        def nothing(*_: Any, **__: Any) -> None:
            self._journal.assume("not-saved", "checkpoints are not saved")

        self._replace(torch, "save", nothing)
        savers = {
            "torch.distributed.checkpoint": ("save", "async_save", "save_state_dict"),
            "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save", "save_state_dict"),
            "safetensors.torch": ("save_file", "save_model"),
        }
        for module, names in savers.items():
            when_loaded(module, functools.partial(self._replace_all, names=names, value=nothing))

    def _replace_all(self, owner: Any, names: tuple[str, ...], value: Any) -> None:
        for name in names:
            self._replace(owner, name, value)

    def _refuse(self, _: Any, address: Any) -> None:
        raise ConnectionRefusedError(f"an emulated script makes no connection ({address})")


def _is_temporary(file: Any) -> bool:
    if not isinstance(file, (str, bytes, os.PathLike)):
        return True
    path = Path(os.fsdecode(file)).absolute()
    return path.is_relative_to(tempfile.gettempdir()) or path.is_relative_to("/dev") or path.is_relative_to("/proc")


def _unless_temporary(function: Callable[..., Any]) -> Callable[..., Any]:
    def cut(file: Any, *args: Any, **kwargs: Any) -> Any:
        return function(file, *args, **kwargs) if _is_temporary(file) else None

    return cut


def torch_parts(journal: Journal) -> None:
    """Compilers and profilers of the script's own, which would meet the emulation's."""

    def compile_(model: Any = None, **options: Any) -> Any:
        journal.assume("not-compiled", "torch.compile is left out: operators run one by one, and fused kernels are not known")
        return (lambda later: compile_(later, **options)) if model is None else model

    torch.compile = compile_
    torch.nn.Module.compile = lambda *_, **__: None
    torch.profiler.profile = _profile_class(journal)
    torch.autograd.profiler.profile = torch.profiler.profile
    for name in ("range_push", "range_pop", "mark"):
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
