"""Which piece of memory a tensor lies in, and when it is taken and given back."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch

from lumos.emulation.process.journal import AllocationNote, Journal
from lumos.emulation.record import Argument, Single, Tensor


class _Described(NamedTuple):
    """A tensor as it was when the journal's newest note had this number."""

    number: int
    tensor: Tensor


class Storages:
    """The storages of one process, numbered from 1 in the order in which they are first seen. device: the type whose memory counts."""

    def __init__(self, journal: Journal, device: str) -> None:
        self._journal, self._device = journal, device
        self._known: dict[int, tuple[int, Any]] = {}  # by address: number, and the weak reference that tells when it ends
        self._sizes: dict[int, int] = {}  # by number: bytes now, of those whose memory counts
        self._count = 0
        self.in_use = self.peak = 0
        self._described: dict[int, list[_Described]] = {}  # by the address of the tensor, which torch uses again

    def number_of(self, tensor: Any) -> int:
        """The number of a tensor's storage; a storage seen for the first time counts as allocated now. 0 where it has none."""
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError):  # sparse tensors and some subclasses have no single storage
            return 0
        address = int(storage._cdata)
        known = self._known.get(address)
        return known[0] if known is not None else self._enter(storage, address, str(tensor.device.type))

    def _enter(self, storage: Any, address: int, device: str) -> int:
        self._count += 1
        number = self._count
        if device == self._device:
            self._sizes[number] = int(storage.nbytes())

        def leave(_: Any) -> None:
            self._known.pop(address, None)
            self._take(-self._sizes.pop(number, 0), number)

        self._known[address] = number, weakref.ref(storage, leave)
        self._take(self._sizes.get(number, 0), number)
        return number

    def follow_sizes(self) -> None:
        """Keep account of storages whose size changes, as FSDP's do when it gives parameters back and gathers them again."""
        resize = torch.UntypedStorage.resize_

        def resized(storage: Any, size: int) -> Any:
            out = resize(storage, size)
            number, _ = self._known.get(int(storage._cdata), (0, None))
            if number in self._sizes:
                before, self._sizes[number] = self._sizes[number], int(storage.nbytes())
                self._take(self._sizes[number] - before, number)
            return out

        torch.UntypedStorage.resize_ = resized

    def borrow(self, size: int) -> None:
        """Take memory for a kernel's own use, and give it back."""
        self._take(size, 0)
        self._take(-size, 0)

    def _take(self, size: int, number: int) -> None:
        if size:
            self.in_use += size
            self.peak = max(self.peak, self.in_use)
            self._journal.add(AllocationNote(size, number))

    def as_argument(self, value: Any) -> Argument:
        """A value of a call, as the record keeps it."""
        if isinstance(value, (list, tuple)):
            return [self._single(each) for each in value]
        return self._single(value)

    def _single(self, value: Any) -> Single:
        if isinstance(value, torch.Tensor):
            return self.describe(value)
        if value is None or type(value) in (bool, int, float, str):
            return value  # type: ignore[no-any-return]
        return str(value)

    def describe(self, tensor: Any) -> Tensor:
        """A tensor, as the record keeps it."""
        number = self.number_of(tensor)
        dtype = str(tensor.dtype).removeprefix("torch.")
        if not number:
            return Tensor(tuple(int(size) for size in tensor.shape), dtype, (), 0, tensor.device.type)
        shape, stride = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
        described = Tensor(shape, dtype, stride, number, tensor.device.type, int(tensor.storage_offset()))
        if self._journal.recording:
            known = self._described.setdefault(int(tensor._cdata), [])
            if not known or known[-1].tensor != described:
                known.append(_Described(self._journal.last, described))
        return described

    def known(self, address: int, number: int) -> Tensor | None:
        """The tensor at an address when the journal's newest note had this number, None where none was described there."""
        there = self._described.get(address, [])
        return next((each.tensor for each in reversed(there) if each.number <= number), there[0].tensor if there else None)
