"""Collectives, sends and receives: noted, with results of the right shape, and never carried out.

All of them reach the dispatcher as an operator of c10d, whoever asks for them: torch.distributed's functions, functional
collectives, DDP's reducer or FSDP.
"""

from __future__ import annotations

import weakref
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace

from lumos.emulation.process.operators.known import tensors_in
from lumos.emulation.record import CallKind, Exchange
from lumos.errors import LumosError
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lumos.emulation.process.journal import Journal
    from lumos.emulation.process.operators.known import KnownValues
    from lumos.emulation.process.operators.storages import Storages
    from lumos.emulation.process.streams import Streams

#: Kinds whose results are other values than those that were sent.
_SUMS = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER)

#: Elements of the largest tensor whose values the root of a broadcast tells: by more, no script decides anything.
_MOST_TOLD = 1 << 10


class Exchanges:
    """The exchanges of one process. batched: the groups of the batch of sends and receives that is being issued, None outside of one."""

    def __init__(self, journal: Journal, storages: Storages, streams: Streams, known: KnownValues) -> None:
        self.known = known
        self._journal, self._storages, self._streams = journal, storages, streams
        self._sequences: dict[str, int] = {}
        self._works: list[Any] = []
        self._pending: dict[int, int] = {}  # by storage: the exchange that nobody has waited for in so many words
        self.batched: set[str] | None = None
        self.told: Callable[[Any, int, int], Any] = lambda own, *_: own  # what the root of a group of so many tells
        self.backends: dict[str, str] = {}  # of groups, as the script asked for them

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An operator of c10d: noted, and answered with work that is done."""
        word = func._schema.name.removeprefix("c10d::")
        if CollectiveKind.in_name(word) is CollectiveKind.UNKNOWN:
            raise LumosError(f"{func}: this collective operator cannot be emulated")
        declared = [argument.name for argument in func._schema.arguments]
        given = dict(zip(declared, args, strict=False)) | kwargs
        note = self._note(word, given)
        _check_sizes(note, given)
        asked = self.backends.get(note.group)
        if note.host and asked and "cpu" not in torch.distributed.distributed_c10d.BackendConfig(asked).get_device_backend_map():
            raise RuntimeError("No backend type associated with device type cpu")
        self._storages.owners.exchanged(note.storages)
        with self._journal.around(note, opened=True) as number:
            pass
        self._pass_on(note, given)
        work = _work_class()(self._wait, self._leave_pending, number, list(tensors_in((given.get("tensors") or given.get("outputs"),))))
        self._works.append(work)
        returns = len(func._schema.returns)
        if returns == 0:
            return None
        return work.boxed() if returns == 1 else (args[0], work.boxed())

    def _note(self, word: str, given: dict[str, Any]) -> Exchange:
        kind, sends, receives = _sides(word, given)
        group = torch.distributed.ProcessGroup.unbox(given["process_group"])
        name = group.group_name
        batched = self.batched if self.batched is not None and kind.is_transfer else set()
        sequence = self._sequences.get(name, 0) if name in batched else self._next(name)
        batched.add(name)
        some = (sends or receives or [given.get("tensor")])[0]
        asynchronous = bool(given.get("async_op", True))
        return Exchange(
            kind=kind, name=word, group=name, sequence=sequence, thread=0, begin=0, end=0,
            dtype=str(some.dtype).removeprefix("torch.") if some is not None else "uint8",
            input_elements=sum(tensor.numel() for tensor in sends), output_elements=sum(tensor.numel() for tensor in receives),
            peer=_peer(given, group), input_splits=_splits(given, "input_split_sizes", sends, self._journal.stands_in),
            output_splits=_splits(given, "output_split_sizes", receives, self._journal.stands_in),
            stream=self._streams.current, asynchronous=asynchronous,
            host=bool(some is not None and some.device.type == "cpu" and kind is not CollectiveKind.BARRIER),
            storages=sorted({self._storages.number_of(tensor) for tensor in (*sends, *receives)}), line=self._journal.line(),
        )  # fmt: skip

    def _next(self, group: str) -> int:
        """The number of the next exchange of a group. What is captured has one whenever it is replayed."""
        if self._journal.captured is None:
            self._sequences[group] = self._sequences.get(group, -1) + 1
        return self._sequences.get(group, 0)

    def again(self, captured: Exchange) -> int:
        """Note an exchange that was captured, as a graph launches it on the current stream. Returns its number."""
        note = replace(captured, sequence=self._next(captured.group), stream=self._streams.current)
        with self._journal.around(note) as number:
            return number

    def _pass_on(self, exchange: Exchange, given: dict[str, Any]) -> None:
        """What is received is what this rank sends, or the root of a broadcast of a few elements, whose values may be known. Those of sums
        are not, which whoever asked knows."""
        kind, sends, receives = _sides(exchange.name, given)
        sent = [self.known.copied(tensor) for tensor in sends]
        known = sent[0] if len(sent) == 1 and kind not in _SUMS else None
        if kind is CollectiveKind.BROADCAST and exchange.input_elements <= _MOST_TOLD:
            known = self.told(known, exchange.peer, torch.distributed.ProcessGroup.unbox(given["process_group"]).size())
        for tensor in receives:
            self.known.forget(tensor)
            if known is not None and tensor.numel() % max(known.numel(), 1) == 0:
                self.known.know(tensor, known)

    def _wait(self, number: int) -> None:
        if number:
            self._streams.call(CallKind.STREAM_WAITS_EXCHANGE, stream=self._streams.current, exchange=number)

    def _leave_pending(self, number: int) -> None:
        """The caller took a future: whoever touches the exchange's memory first waits for it."""
        if (entry := self._journal.exchange(number)) is not None:
            self._pending.update(dict.fromkeys(entry.storages, number))

    def touch(self, tensors: Iterable[Any]) -> None:
        """An operator uses these tensors."""
        storages = {self._storages.find(tensor) for tensor in tensors} if self._pending else set()
        for number in sorted({self._pending[storage] for storage in storages & self._pending.keys()}):
            self._pending = {storage: other for storage, other in self._pending.items() if other != number}
            self._wait(number)


def _sides(word: str, given: dict[str, Any]) -> tuple[CollectiveKind, list[Any], list[Any]]:
    """The kind of an operator of c10d, and the tensors that it reads and that it writes, as its arguments are called."""
    kind = CollectiveKind.in_name(word)
    if both := list(tensors_in((given.get("tensors", ()),))):
        return kind, both if kind is not CollectiveKind.RECEIVE else [], both if kind is not CollectiveKind.SEND else []
    sends, receives = (list(tensors_in(given[name] for name in given if name.startswith(side))) for side in ("input", "output"))
    return kind, sends, receives


def _check_sizes(exchange: Exchange, given: dict[str, Any]) -> None:
    """Raise the error of NCCL's backend where one tensor for all members has not the size of theirs together."""
    size = torch.distributed.ProcessGroup.unbox(given["process_group"]).size()
    _, sends, receives = _sides(exchange.name, given)
    parts = {CollectiveKind.ALL_GATHER: (receives, sends), CollectiveKind.REDUCE_SCATTER: (sends, receives)}.get(exchange.kind, ((), ()))
    for whole, part in zip(*parts, strict=False) if len(sends) == len(receives) else ():
        if whole.numel() != size * part.numel():
            raise ValueError(f"{exchange.name}: {whole.numel()} elements for all {size} ranks, but {part.numel()} of each")


def _peer(given: dict[str, Any], group: Any) -> int:
    """The other rank of a transfer, or the root, as a rank of the job."""
    member = next((given[name] for name in ("dst", "src", "root_rank") if name in given), None)
    return -1 if member is None else int(torch.distributed.get_global_rank(group, int(member)))


def _splits(given: dict[str, Any], name: str, tensors: list[Any], stands_in: bool) -> list[int]:
    """Elements to or from each member. c10d counts in rows of the first dimension, and refuses parts that are not all of them; stands_in:
    they may follow from what is not known."""
    rows = given.get(name) or []
    if not rows or not tensors or not tensors[0].dim():
        return []
    if sum(rows) != tensors[0].shape[0] and not stands_in:
        raise ValueError(f"{name} has {sum(rows)} rows in all, the tensor {tensors[0].shape[0]}")
    width = tensors[0].numel() // max(tensors[0].shape[0], 1)
    return [int(count) * width for count in rows]


@cache
def _work_class() -> Any:
    """The class of work that is done and says so; made when torch.distributed is there."""
    class Done(torch.distributed.Work):  # type: ignore[misc]
        def __init__(self, wait: Any, pend: Any, number: int, tensors: list[Any]) -> None:
            super().__init__()
            self._wait, self._pend, self._number, self._tensors = wait, pend, number, tensors
            self._results = [weakref.ref(tensor) for tensor in tensors]

        def wait(self, *_: Any, **__: Any) -> bool:
            self.synchronize()
            return True

        def synchronize(self) -> None:
            self._wait(self._number)
            self._tensors = []  # from here on only the caller keeps their memory

        def is_completed(self) -> bool:
            return True

        is_success = is_completed

        def result(self) -> Any:
            return [tensor for tensor in (reference() for reference in self._results) if tensor is not None]

        def get_future(self) -> Any:
            self._pend(self._number)
            future: Any = torch.futures.Future()
            future.set_result(self.result())
            self._tensors = []
            return future

    return Done
