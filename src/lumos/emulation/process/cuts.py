"""What a script does with torch that an emulated one must not: it saves nothing, profiles nothing, and has no workers beside it."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_leaves

from lumos.collect.loading import when_loaded
from lumos.emulation.process.outside import OUTSIDE, leave_unwritten

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.emulation.process.journal import Journal


def saving(journal: Journal) -> None:
    """Checkpoints, which torch and safetensors write without Python's files."""

    def nothing(*_: Any, **__: Any) -> None:
        journal.assume("not-saved", "checkpoints are not saved")

    save, load = torch.save, torch.load

    def replace_all(owner: Any, names: tuple[str, ...]) -> None:
        for name in names:
            OUTSIDE.replace(owner, name, nothing)

    def save_in_memory(content: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(file, io.BytesIO) or any(isinstance(each, FakeTensor) for each in tree_leaves(content)):
            leave_unwritten(file)
            return nothing()
        with unset_fake_temporarily():  # as when a tensor of the host is pickled
            return save(content, file, *args, **kwargs)

    def load_from_memory(file: Any, *args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily() if isinstance(file, io.BytesIO) else contextlib.nullcontext():
            return load(file, *args, **kwargs)

    OUTSIDE.replace(torch, "load", load_from_memory)
    OUTSIDE.replace(torch, "save", save_in_memory)
    savers = {
        "torch.distributed.checkpoint": ("save", "async_save", "save_state_dict"),
        "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save", "save_state_dict"),
        "safetensors.torch": ("save_file", "save_model"),
    }
    for module, names in savers.items():
        when_loaded(module, functools.partial(replace_all, names=names))
    when_loaded("transformers.trainer", lambda loaded: OUTSIDE.replace(loaded.Trainer, "_save_checkpoint", nothing))
    when_loaded("transformers.modeling_utils", lambda loaded: OUTSIDE.replace(loaded.PreTrainedModel, "save_pretrained", nothing))


def profilers(journal: Journal, stepped: Callable[[bool], None]) -> None:
    """Profilers of the script's own, which would meet the emulation's. stepped: called where one is told that a step has ended
    (True), or will be (False)."""
    torch.profiler.profile = _profile_class(journal, stepped)
    torch.autograd.profiler.profile = torch.profiler.profile
    torch.autograd.profiler.emit_nvtx = lambda *_, **__: contextlib.nullcontext()
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        setattr(torch.cuda.nvtx, name, lambda *_: None)


def _profile_class(journal: Journal, stepped: Callable[[bool], None]) -> Any:
    class Profile:
        """A profiler that records nothing."""

        def __init__(self, *_: Any, schedule: Any = None, **__: Any) -> None:
            journal.assume("no-own-profiler", "the script's own profiler records nothing")
            if schedule is not None:
                stepped(False)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def step(self) -> None:
            stepped(True)

        def __getattr__(self, _: str) -> Any:
            return lambda *_, **__: None

    return Profile


#: Arguments of a data loader that are about its workers, and about the memory that they fill.
_OF_WORKERS = (
    "num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "timeout", "multiprocessing_context", "pin_memory_device",
)  # fmt: skip


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
        given = {name: value for name, value in given.items() if name not in _OF_WORKERS}
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
