"""Parts of torch that only know tensors with data, taught about those without."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from lumos.collect.loading import when_loaded


def teach_tensors(mode: Any) -> None:
    """Teach them. mode: the mode that the script runs in."""
    importlib.import_module("torch.utils._foreach_utils")._foreach_supported_types.append(FakeTensor)
    importlib.import_module("torch.optim.optimizer")._foreach_supported_types.append(FakeTensor)
    # transformers makes masks that need no value where it meets tensors without data; a real run reads the values.
    when_loaded("transformers.utils.import_utils", lambda loaded: setattr(loaded, "is_fake_tensor", lambda _: False))
    _parameters(mode)
    _arrays(mode)
    _from_sequences()
    _finite(mode)
    for name in ("tensor", "as_tensor", "isfinite"):  # as torch.jit.script knows them, which torch's own optimizers come through
        torch.jit._builtins._register_builtin(getattr(torch, name), f"aten::{name}")
    torch.backends.mha.set_fastpath_enabled(False)  # which packs padded sequences by the values of their mask


def _parameters(mode: Any) -> None:
    """Parameters never have data, and one that is moved to the device stays the same object, so that what shares it still does."""
    swap, make = torch.utils.swap_tensors, torch.nn.Parameter.__new__

    data = torch.Tensor.data

    def put(tensor: Any, other: Any) -> None:
        data.__set__(tensor, other)
        if isinstance(other, FakeTensor):
            tensor.fake_device = other.fake_device

    def swap_tensors(one: Any, other: Any) -> None:
        if isinstance(one, FakeTensor) and isinstance(other, FakeTensor):
            if one.is_meta == other.is_meta:
                one.data = other
            else:  # which torch's own function refuses, since the mode has weak references to both
                torch._C._swap_tensor_impl(one, other)
                one.__dict__, other.__dict__ = other.__dict__, one.__dict__
        else:
            with mode.storages.owners.without(one, other):
                swap(one, other)

    def parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        made = make(cls, mode.from_tensor(data) if type(data) is torch.Tensor else data, requires_grad)
        mode.storages.owners.parameter(made)
        return made

    FakeTensor.data = property(data.__get__, put)
    torch.utils.swap_tensors = swap_tensors
    torch.nn.Parameter.__new__ = parameter


def _arrays(mode: Any) -> None:
    """Arrays and texts of tensors without data."""
    numpy, text = torch.Tensor.numpy, torch.Tensor.__format__

    def as_array(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(tensor, FakeTensor):
            return numpy(tensor, *args, **kwargs)
        library: Any = importlib.import_module("numpy")
        known = mode.known.copied(tensor)
        if known is not None:
            return numpy(known, *args, **kwargs)
        mode.journal.assume("stand-in-array", "an array made from a tensor is full of ones: tensors have no data here")
        name = str(tensor.dtype).removeprefix("torch.").replace("bfloat16", "float32")
        return library.broadcast_to(library.ones((), dtype=name), tuple(tensor.shape))

    def formatted(tensor: Any, specification: str) -> str:
        if isinstance(tensor, FakeTensor) and tensor.dim() == 0:
            return format(tensor.item(), specification)
        return str(text(tensor, specification))

    torch.Tensor.numpy = as_array
    torch.Tensor.__array__ = lambda tensor, dtype=None: as_array(tensor) if dtype is None else as_array(tensor).astype(dtype)
    torch.Tensor.__format__ = formatted


def _from_sequences() -> None:
    """Tensors made of a sequence in which tensors stand, as of the losses of several batches: those are read one by one."""

    def read(data: Any) -> Any:
        if isinstance(data, FakeTensor):
            return data.tolist()
        nested = isinstance(data, (list, tuple)) and any(isinstance(each, (list, tuple, FakeTensor)) for each in data)
        return [read(each) for each in data] if nested else data

    def reading(make: Any) -> Any:
        def made(data: Any, *args: Any, **kwargs: Any) -> Any:
            return make(data if isinstance(data, torch.Tensor) else read(data), *args, **kwargs)

        return made

    torch.tensor, torch.as_tensor = reading(torch.tensor), reading(torch.as_tensor)


def _finite(mode: Any) -> None:
    """Values count as finite: no loss is ever infinite or not a number here."""
    check = torch.isfinite

    def isfinite(tensor: Any) -> Any:
        found = check(tensor)
        if isinstance(found, FakeTensor):
            mode.known.know(found, True)
        return found

    torch.isfinite = torch.Tensor.isfinite = isfinite
