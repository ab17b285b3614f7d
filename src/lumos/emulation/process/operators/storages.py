"""Which piece of memory a tensor lies in, and when it is taken and given back."""

from __future__ import annotations

import contextlib
import threading
import warnings
import weakref
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lumos.emulation.process.allocator import CachingAllocator, MemoryBlock, NoRoomError, said
from lumos.emulation.process.operators.known import address_of, is_pinned
from lumos.emulation.process.patches import TORCH
from lumos.emulation.record import Allocation, Argument, MemoryKind, Single, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumos.emulation.process.journal import Journal
    from lumos.emulation.process.owners import Owners
    from lumos.emulation.process.streams import StreamMoment, Streams


#: Of a result that is so many times smaller than what it is made from, the partitioner keeps it rather than that (ban_recomputation of
#: torch/_functorch/partitioners.py).
_MADE_AGAIN = 4


class _Described(NamedTuple):
    """A tensor as it was when the journal's newest note had this number."""

    number: int
    tensor: Tensor


class _Fused(NamedTuple):
    """A storage without memory yet. size: bytes that it would take. sources: by number the storages that it is made from, which stay until
    then."""

    size: int
    sources: dict[int, Any]


class Storages:
    """The storages of one process, numbered from 1 in the order in which they are first seen. allocator: of the memory that counts. kind:
    of the devices that have it."""

    def __init__(self, journal: Journal, allocator: CachingAllocator, owners: Owners, streams: Streams, kind: str) -> None:
        self.allocator, self.owners, self._kind = allocator, owners, kind
        self._journal, self._streams = journal, streams
        self._known: dict[int, tuple[int, Any]] = {}  # by address: number, and the weak reference that tells when it ends
        self._taken: dict[int, MemoryBlock | None] = {}  # by number, of those on the device: the allocator's block, None where empty
        self._count = 0
        self._described: dict[int, list[_Described]] = {}  # by the address of the tensor, which torch uses again
        self._busy, self._late = threading.Lock(), deque[int]()
        self._with_workspace: set[tuple[int, int]] = set()
        self._fused: dict[int, _Fused] = {}  # by number
        self._used: dict[int, int] = {}  # by number: the newest when something that is not fused first used it, or what is made of it
        self._fusing = threading.local()
        self._users: dict[int, set[int]] = {}  # by number: streams that use it beside the one that it was taken on
        self._awaited: list[tuple[MemoryBlock, StreamMoment]] = []  # given back, and until when other streams use it
        streams.done = self._done
        allocator.synchronise = self._done

    def number_of(self, tensor: Any) -> int:
        """The number of a tensor's storage; a storage seen for the first time counts as allocated now. 0 where it has none.

        Raises torch.OutOfMemoryError where the device has no room for it."""
        address = address_of(tensor)
        if address < 0 or address in self._known:
            return self.find(tensor)
        return self._enter(tensor.untyped_storage(), address, str(tensor.device.type))

    def find(self, tensor: Any) -> int:
        """The number of a tensor's storage, 0 where it was not seen."""
        return self._known.get(address_of(tensor), (0, None))[0]

    def _enter(self, storage: Any, address: int, device: str) -> int:
        self._count += 1
        number = self._count
        if device == self._kind:
            size, sources = int(storage.nbytes()), getattr(self._fusing, "sources", None)
            if sources is None or size * _MADE_AGAIN < sum(int(source.nbytes()) for source in sources.values()):
                self._take(size, number)
            else:
                self._fused[number] = _Fused(size, sources)

        def leave(_: Any) -> None:
            self._known.pop(address, None)
            if self._fused.pop(number, None) is None:
                self._give(number)
            else:
                self._journal.add(Allocation(0, 0, number, self.allocator.allocated, self.allocator.reserved))

        self._known[address] = number, weakref.ref(storage, leave)
        return number

    @contextlib.contextmanager
    def fusing(self, tensors: Iterable[Any]) -> Iterator[None]:
        """Within it, what is made of these tensors is part of a kernel of compiled code, and takes memory once it is used."""
        before = getattr(self._fusing, "sources", None)
        self._fusing.sources = {self.find(tensor): tensor.untyped_storage() for tensor in tensors if self.find(tensor)}
        try:
            yield
        finally:
            self._fusing.sources = before

    def use(self, tensors: Iterable[Any], compiled: bool = False) -> None:
        """Something uses these tensors as they lie in memory. compiled: it is part of compiled code."""
        used = {self.find(tensor) for tensor in tensors} if self._fused or compiled else set()
        made_of = list(used) if compiled else []
        while made_of:
            if (number := made_of.pop()) not in self._used:
                self._used[number] = self._count
                made_of += self._fused[number].sources if number in self._fused else ()
        for number in used:
            self._place(number)

    def use_all(self, apart: bool = False) -> None:
        """A backward pass is done: what is still there, such as gradients, lies in memory. apart: a forward pass is, and only what was made
        after something that is not fused had used what it is made of."""
        for number, fused in list(self._fused.items()):
            if not apart or any(self._used.get(source, number) < number for source in fused.sources):
                self._place(number)
        self._used.clear()

    def _place(self, number: int) -> None:
        fused = self._fused.pop(number, None)
        if fused is not None:
            self._take(fused.size, number)

    def follow(self) -> None:
        """Keep account of storages whose size changes, as FSDP's do when it gives parameters back and gathers them again, and of those that
        several streams use."""
        @TORCH.around(torch.UntypedStorage, "resize_")
        def resized(resize: Any, storage: Any, size: int) -> Any:
            number, _ = self._known.get(int(storage._cdata), (0, None))
            before = int(storage.nbytes())
            out = resize(storage, size)
            if number in self._taken and before != size:
                old = self._taken[number]
                self._take(size, number)  # the new memory is there before the old one goes
                if old is not None:
                    self._return(old, number)
            return out

        @TORCH.around(torch.UntypedStorage, "data_ptr")
        def address(find: Any, storage: Any) -> int:
            """Of memory that is not there too: frameworks ask whether two tensors lie in one, and whether there is any."""
            return int(storage._cdata if storage.nbytes() else 0) if storage.device.type == "meta" else int(find(storage))

        self._library = torch.library.Library("aten", "IMPL", "CUDA")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a build for CUDA says that its own is replaced
            self._library.impl("record_stream", self.record_stream)  # FSDP calls it outside of the mode

    def workspace(self, size: int) -> None:
        """What cuBLAS keeps from the first multiplication of a thread on a stream on, which torch takes from its own allocator."""
        of = threading.get_ident(), self._streams.current
        if of not in self._with_workspace:
            self._with_workspace.add(of)
            self._count += 1
            self._take(size, self._count)
            self.owners.know(self._count, MemoryKind.TEMPORARY, "workspace of cuBLAS")

    def _take(self, size: int, number: int) -> None:
        with self._busy:
            self._taken[number] = block = self._block(size) if size else None
            if block is None:
                return
            self._journal.add(Allocation(0, block.size, number, self.allocator.allocated, self.allocator.reserved))
            self.owners.made(number)
        self._return_late()

    def _block(self, size: int) -> MemoryBlock:
        try:
            return self.allocator.take(size, self._streams.current)
        except NoRoomError as error:
            self.owners.keep_young()
            self._journal.assume("out-of-memory", "the device had no room: torch.OutOfMemoryError was raised, as it would be there")
            raise torch.OutOfMemoryError(str(error)) from None

    def _give(self, number: int) -> None:
        """Give a storage's memory back: as soon as nobody is taking any, since Python may end a storage within the allocator's own work."""
        self._late.append(number)
        self._return_late()

    def _return_late(self) -> None:
        while self._late and self._busy.acquire(blocking=False):
            try:
                number = self._late.popleft()
                old = self._taken.pop(number, None)
                if old is not None:
                    self._return(old, number)
            finally:
                self._busy.release()

    def _return(self, block: MemoryBlock, number: int) -> None:
        size, users = block.size, self._users.pop(number, None)
        self.allocator.give(block, awaited=bool(users))
        if users:
            self._awaited.append((block, dict.fromkeys(users, self._streams.next)))
        self._journal.add(Allocation(0, -size, number, self.allocator.allocated, self.allocator.reserved))
        self.owners.gone(number)

    def record_stream(self, tensor: Any, stream: Any) -> None:
        """A stream uses a tensor, whose memory is lent again only once the host knows that it is done with it."""
        number = self.find(tensor)
        block = self._taken.get(number)
        if block is not None and block.segment.stream != stream.stream_id:
            self._users.setdefault(number, set()).add(int(stream.stream_id))

    def _done(self, moment: StreamMoment | None = None) -> None:
        """Work is done until a moment, or all work."""
        waiting, self._awaited = self._awaited, []
        for block, until in waiting:
            left = {stream: call for stream, call in until.items() if moment is not None and moment.get(stream, -1) < call}
            if left:
                self._awaited.append((block, left))
            else:
                self.allocator.reuse(block)

    def held(self) -> str:
        """What the device's memory holds, for people."""
        kinds = {owner.storage: owner.kind for owner in self.owners.all()}
        sizes: Counter[str] = Counter()
        for number, block in list(self._taken.items()):
            sizes[kinds.get(number, MemoryKind.TEMPORARY)] += block.size if block else 0
        return f"It holds {', '.join(f'{said(size)} {kind}' for kind, size in sizes.most_common() if size)}" if any(sizes.values()) else ""

    def as_argument(self, value: Any) -> Argument:
        """A value of a call, as the record keeps it: of a tensor that is made of others, those."""
        if hasattr(type(value), "__tensor_flatten__"):
            value = [getattr(value, name) for name in type(value).__tensor_flatten__(value)[0]]
        return [self._single(element) for element in value] if isinstance(value, (list, tuple)) else self._single(value)

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
        described = Tensor(
            shape, dtype, stride, number, tensor.device.type, int(tensor.storage_offset()), is_pinned(tensor)
        )
        if self._journal.recording:
            known = self._described.setdefault(int(tensor._cdata), [])
            if not known or known[-1].tensor != described:
                known.append(_Described(self._journal.last, described))
        return described

    def known(self, address: int, number: int) -> Tensor | None:
        """The tensor at an address when the journal's newest note had this number, None where none was described there."""
        there = self._described.get(address, [])
        return next((note.tensor for note in reversed(there) if note.number <= number), there[0].tensor if there else None)
