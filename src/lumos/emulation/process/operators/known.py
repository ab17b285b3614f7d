"""What is known of the values of tensors without data: all that follows from what the script made itself.

A tensor of the host that goes to the device takes its values along, and so does a tensor that is filled with a number. They lie in a twin:
memory of the host beside that of the tensor. An operator all of whose tensors have twins is carried out on them as
well, so that values stay known through copies, views, masks and sums, until they meet what only a device would know. What is written into
memory by way of one tensor changes the twin of all that lie there; a write of something unknown ends it.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumos.emulation.process.journal import Journal

_aten = torch.ops.aten

#: Elements of the largest memory of which values are kept; a number that fills it takes no memory until it is needed.
_LARGEST = 1 << 24
#: Elements of the largest type have so many bytes, of which memory has whole ones.
WHOLE = 16

#: Operators whose results say nothing of values, or whose answer is about memory.
_WITHOUT_VALUES = ("empty", "new_empty", "resize", "_pin_memory", "is_pinned", "record_stream", "set_")
#: Operators whose results have no values yet, so that any will do until they are written: of whole numbers and truth values, 0.
_NEW = frozenset({_aten.empty, _aten.empty_strided, _aten.empty_like, _aten.new_empty, _aten.new_empty_strided})
#: Operators that write all of their first tensor, whatever was in it.
_OVERWRITE = frozenset({_aten.copy_.default, _aten.fill_.Tensor})
#: Operators that fill all of their result, and the place of the number among their arguments; -1 where their name says it.
_ONES = frozenset({_aten.ones.default, _aten.ones_like.default, _aten.new_ones.default})
_FILLED = dict.fromkeys((*_ONES, _aten.zeros.default, _aten.zeros_like.default, _aten.new_zeros.default, _aten.zero_.default), -1) | {
    _aten.full.default: 1, _aten.full_like.default: 1, _aten.fill_.Scalar: 1, _aten.new_full.default: 2,
}  # fmt: skip


class _Twin:
    """Memory beside that of a tensor, and what tells when that ends: a number that fills all of it, or memory of the host once there are
    several values."""

    def __init__(self, size: int, dtype: torch.dtype, number: Any, end: Any) -> None:
        self._whole, self._dtype, self._number, self._end = -(-size // WHOLE) * WHOLE, dtype, number, end

    @cached_property
    def memory(self) -> Any:
        return _aten.full.default([self._whole // self._dtype.itemsize], self._number, dtype=self._dtype).view(torch.uint8)


class KnownValues:
    """The twins of one process, by the address of the memory."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._twins: dict[int, _Twin] = {}

    def has(self, tensor: Any) -> bool:
        """Whether the values of a tensor are known."""
        return isinstance(tensor, FakeTensor) and address_of(tensor) in self._twins

    def of(self, tensor: Any) -> torch.Tensor | None:
        """The values of a tensor, in the twin's memory; None where they are not known."""
        if not self.has(tensor):
            return None
        with self._apart():
            try:
                memory = self._twins[address_of(tensor)].memory.view(tensor.dtype)
                return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            except RuntimeError:  # memory whose size has changed
                return None

    def know(self, tensor: Any, values: Any) -> None:
        """Note the values of a tensor: a tensor of the host, over and over where it is smaller, or one number for all elements."""
        is_number = not isinstance(values, torch.Tensor)
        if self._begin(tensor, values if is_number else 0) and is_number:
            return
        if (twin := self.of(tensor)) is None:
            return
        with self._apart():
            if not is_number and values.shape != twin.shape:
                values = values.reshape(-1).repeat(twin.numel() // max(values.numel(), 1)).reshape(twin.shape)
            once = tuple(slice(None if step else 1) for step in twin.stride())  # of what an expanded dimension shows again and again
            twin[once] = values if is_number else values[once]

    def copied(self, tensor: Any, times: int = 1) -> torch.Tensor | None:
        """The values of a tensor, multiplied, in memory of their own; None where they are not known."""
        known = self.of(tensor)
        with self._apart():
            return known if known is None else known.clone() if times == 1 else known * times

    def count(self, mask: Any) -> int | None:
        """How many elements are not zero; None where that is not known."""
        known = self.of(mask)
        with self._apart():
            return None if known is None else int(known.count_nonzero())

    def forget(self, tensor: Any) -> None:
        """Note that something unknown was written into a tensor's memory."""
        self._twins.pop(address_of(tensor), None)

    def follow(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Carry an operator out on twins that has run without data, and note what is known of its results then."""
        if func in _FILLED and _FILLED[func] < len(args):
            number = args[_FILLED[func]] if _FILLED[func] >= 0 else func in _ONES
            if isinstance(number, (bool, int, float)):
                return self.know(out, number)
        if func.overloadpacket in _NEW and not (out.is_floating_point() or out.is_complex()):
            return self.know(out, 0)
        results = self.result(func, args, kwargs, out)
        if results is None:
            for tensor in written(func, args, kwargs):
                self.forget(tensor)
            return None
        for tensor, values in zip(tensors_in((out,)), tensors_in((results,)), strict=False):
            if not self.has(tensor) and tensor.shape == values.shape:
                self.know(tensor, values)
        return None

    def result(self, func: Any, args: Any, kwargs: Any, out: Any = None) -> Any:
        """What an operator gives for the known values of its tensors; None where one is unknown, and where it gives or takes too much. It
        changes the twins of what it writes."""
        given = list(tensors_in((args, kwargs)))
        if not _says_values(func) or sum(tensor.numel() for tensor in (*given, *tensors_in((out,)))) > _LARGEST:
            return None
        overwritten = args[:1] if func in _OVERWRITE else [argument for name, argument in kwargs.items() if name in _places_written(func)]
        if not all(self.has(tensor) or any(tensor is other for other in overwritten) for tensor in given):
            return None
        for tensor in overwritten:
            self._begin(tensor, 0)
        try:
            with self._apart():
                named = {name: self._known(argument) for name, argument in kwargs.items() if name not in ("device", "pin_memory", "layout")}
                if "device" in kwargs:
                    named["device"] = torch.device("cpu")
                return func(*self._known(args), **named)
        except (RuntimeError, NotImplementedError, TypeError, IndexError):  # not on the host, or not with these values
            return None

    def _known(self, value: Any) -> Any:
        """An argument with twins in place of tensors. Raises RuntimeError where there is none."""
        if isinstance(value, torch.Tensor):
            known = self.of(value)
            if known is None:
                raise RuntimeError("its memory has another size")
            return known
        return [self._known(element) for element in value] if isinstance(value, (list, tuple)) else value

    def _begin(self, tensor: Any, number: Any) -> bool:
        """Let a number fill a tensor's memory, where it is small and the tensor shows all of it."""
        address = address_of(tensor)
        if address < 0:
            return False
        storage = tensor.untyped_storage()
        size = int(storage.nbytes())
        shown = math.prod(length for length, step in zip(tensor.shape, tensor.stride(), strict=True) if step)  # of an expanded one once
        if tensor.numel() > _LARGEST or size > shown * tensor.element_size():
            return False
        self._twins[address] = _Twin(size, tensor.dtype, number, weakref.ref(storage, lambda _: self._twins.pop(address, None)))
        return True

    @contextlib.contextmanager
    def _apart(self) -> Iterator[None]:
        """Within it, tensors have data, and what is done is no work of the script's."""
        with self._journal.closed(), unset_fake_temporarily(), torch.no_grad():
            yield


def written(func: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """The tensors that an operator writes to, of those that it is given."""
    given = (*enumerate(args), *kwargs.items())
    return tensors_in(argument for position, argument in given if position in _places_written(func))


@cache
def _places_written(func: Any) -> frozenset[int | str]:
    """The places of the arguments that it writes to, and the names of those that only have one."""
    written = [(i, entry) for i, entry in enumerate(func._schema.arguments) if entry.alias_info is not None and entry.alias_info.is_write]
    return frozenset(entry.name if entry.kwarg_only else i for i, entry in written)


@cache
def _says_values(func: Any) -> bool:
    name = func._schema.name.removeprefix("aten::")
    return func.namespace == "aten" and torch.Tag.nondeterministic_seeded not in func.tags and not name.startswith(_WITHOUT_VALUES)


def address_of(tensor: Any) -> int:
    """The address of a tensor's storage; -1 for a sparse tensor or one of a subclass, which has no single one, and for a parameter whose
    shape is not known yet."""
    try:
        return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else -1
    except (RuntimeError, NotImplementedError, ValueError):
        return -1


def pin(tensor: Any) -> Any:
    """Let the memory of a tensor of the host be pinned, and so of all that lie there; returns the tensor."""
    tensor.untyped_storage().pinned = True
    return tensor


def is_pinned(tensor: Any) -> bool:
    """Whether a tensor lies in memory of the host that is pinned."""
    return address_of(tensor) >= 0 and getattr(tensor.untyped_storage(), "pinned", False)


def tensors_in(values: Iterable[Any]) -> Iterator[Any]:
    """The tensors among values, those in lists and mappings included."""
    for element in values.values() if isinstance(values, dict) else values:
        if isinstance(element, torch.Tensor):
            yield element
        elif isinstance(element, (list, tuple, dict)):
            yield from tensors_in(element)
