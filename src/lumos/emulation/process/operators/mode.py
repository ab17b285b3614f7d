"""Runs every operator on tensors without data, and notes it.

torch's FakeTensorMode knows the shape, type and device of each operator's result. Here it also follows operators that are
written in terms of others, as a real device would, so that those appear; gives stand-ins for values that would have been read
from the device; and notes what reached the device.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, UnsupportedOperatorException, unset_fake_temporarily
from torch.utils._pytree import tree_map_only

from lumos.emulation.process.exchanges import Exchanges
from lumos.emulation.process.operators import by_device, sparse, stand_ins
from lumos.emulation.process.operators.compiled import PRODUCTS, Compiled
from lumos.emulation.process.operators.composite import OWN_KERNEL_BESIDE, calls_of, clearing, follows, has_kernel, implementation
from lumos.emulation.process.operators.known import KnownValues, pin, tensors_in
from lumos.emulation.process.versions import allows_tf32
from lumos.emulation.record import Operator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lumos.emulation.process.journal import Journal
    from lumos.emulation.process.operators.storages import Storages
    from lumos.emulation.process.streams import Streams


class _OfThread:
    """An attribute that each thread has a value of its own of, where FakeTensorMode has one for all. first: makes the first value."""

    def __init__(self, first: Callable[[], Any]) -> None:
        self._first = first

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    def __get__(self, mode: Emulation, _: type) -> Any:
        return vars(mode.here).setdefault(self._name, self._first())

    def __set__(self, mode: Emulation, value: Any) -> None:
        setattr(mode.here, self._name, value)


#: What torch says where it tried an operator on tensors with data, which the device has none of.
_ASKS_DEVICE = ("aten::empty_strided", "CUDA driver", "NVIDIA driver")

#: Takes the lengths of sequences from a tensor of the host, and gives one back.
_PACK = torch.ops.aten._pack_padded_sequence.default


class Emulation(FakeTensorMode):  # type: ignore[misc]
    """The mode in which the whole script runs. workspace: bytes of cuBLAS for a thread and stream. rows: of an operator's first tensor."""

    enter_stack, in_kernel_invocation, _inside, rows = _OfThread(list), _OfThread(bool), _OfThread(bool), _OfThread(int)

    def __init__(self, journal: Journal, storages: Storages, streams: Streams, device: str, workspace: int) -> None:
        self.here = threading.local()
        super().__init__(allow_non_fake_inputs=True)
        self.journal, self.storages, self.streams, self.kind = journal, storages, streams, device
        self.workspace = workspace
        self.compiled = Compiled(journal, storages)
        self.known = KnownValues(journal)
        self.exchanges = Exchanges(journal, storages, streams, self.known)
        self._nested = itertools.count()

    def create_symbolic_nested_int(self, **_: Any) -> Any:
        """What stands for the lengths of a nested tensor's rows, as without the mode: a number of their own, rather than a symbol."""
        return torch._C._get_nested_int(next(self._nested), 1)

    def __deepcopy__(self, _: Any) -> Emulation:
        return self  # a copy of a tensor is in the same mode

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would otherwise import its compiler and wrap every operator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if sparse.SparseRows in types:
            return NotImplemented  # which do it by operators on their parts
        if self._inside or func.namespace == "prim" or not all(map(_is_plain, types)):
            return self.dispatch(func, types, args, kwargs)
        if func.namespace == "c10d":
            self.storages.use(tensors_in((args, kwargs)))
            return self.exchanges.run(func, args, kwargs)
        if self.kind != "cpu" and stand_ins.can_run_for_real(self, func, args, kwargs):
            note = self._note(func, args, kwargs)
            with self.journal.around(note, opened=True), torch._C._AutoDispatchBelowAutograd():
                return self._returned(note, stand_ins.run_for_real(func, args, kwargs))
        if func is _PACK or (func is sparse.BAG and args[sparse.IS_SPARSE]):
            return self._by_those_it_calls(func, args, kwargs)
        args, kwargs = self._without_data(args), {name: self._without_data((argument,))[0] for name, argument in kwargs.items()}
        if any(isinstance(argument, sparse.SparseRows) for argument in args):
            with self:
                return func(*args, **kwargs)
        if not self.journal.recording:
            with self.compiled.place(func, args, kwargs):
                return self._quietly(func, types, args, kwargs)
        device = _device_of(args, self.kind)
        if follows(func, device) or (_is_implicit(func) and func._can_decompose() and not has_kernel(func, device)):
            note = self._note(func, args, kwargs)
            with self.journal.around(note, opened=True):
                return self._returned(note, self._by_parts(func, types, args, kwargs))
        with self.compiled.place(func, args, kwargs):
            return self._leaf(func, types, args, kwargs)

    def _by_those_it_calls(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator by those that it calls, of which some read tensors of the host, or make sparse ones."""
        note = self._note(func, args, kwargs)
        if func is _PACK:
            sequences, given, batch_first = args
            args = sequences, by_device.lengths(self, given, sequences.shape[1 if batch_first else 0]), batch_first
        called = sparse.bag if func is sparse.BAG else partial(func._op_dk, DispatchKey.CompositeExplicitAutograd)
        with self.journal.around(note, opened=True):
            return self._returned(note, self._called(called, *args, **kwargs))

    def _without_data(self, given: Any) -> tuple[Any, ...]:
        """Arguments, with a tensor without data in place of each that has data."""
        return tuple(
            stand_ins.from_data(self, entry) if type(entry) in (torch.Tensor, torch.nn.Parameter)
            else list(self._without_data(entry)) if isinstance(entry, (list, tuple)) and entry and isinstance(entry[0], torch.Tensor)
            else entry for entry in given
        )  # fmt: skip

    def _quietly(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Outside of the recorded steps, only memory is kept account of."""
        if (func.namespace != "aten" and follows(func, self.kind)) or by_device.chooses(func, self.kind):
            return self._by_parts(func, types, args, kwargs)  # by torch's rules for shapes, a wait would make a tensor of its own
        out = self._result(func, types, args, kwargs)
        for output in tensors_in((out,)):
            self.storages.number_of(output)
        return out

    def _by_parts(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator by the operators that it calls."""
        if by_device.chooses(func, self.kind):
            with self:
                return by_device.device_attention(*args, **kwargs)
        try:
            with self, torch._C._AutoDispatchBelowAutograd():
                if _is_implicit(func):
                    return func._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
                out = func._op_dk(getattr(DispatchKey, implementation(func)), *args, **kwargs)
        except (RuntimeError, NotImplementedError):
            out = None  # it reads data after all
        if out is None or any(type(output) is torch.Tensor for output in tensors_in((out,))):
            with self.journal.closed():
                return self._result(func, types, args, kwargs)
        stand_ins.pass_on(self, func, args, kwargs, out)
        return out

    def _leaf(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator that reaches a kernel of its own."""
        note = self._note(func, args, kwargs)
        self.exchanges.touch(tensors_in((args, kwargs)))
        device = _device_of(args, self.kind)
        calls, clear = (calls_of(func), clearing(func)) if device == "cuda" else (None, None)
        if calls is not None or clear is not None:
            note = replace(note, leaf=clear is not None or str(func) in OWN_KERNEL_BESIDE)
            with self.journal.around(note, opened=True):
                if calls is not None:
                    self._called(calls, *args, **kwargs)
                with self.journal.closed():
                    out = self._result(func, types, args, kwargs)
                if clear is not None:  # before its own values come there
                    values, out = self.known.copied(out), self._called(clear, out)
                    self.known.forget(out)
                    if values is not None:
                        self.known.know(out, values)
        else:
            with self.journal.around(note):
                out = self._result(func, types, args, kwargs)
        stand_ins.note_read(func, args, self.streams)
        by_device.note_packed(func, args, self.journal)
        return self._returned(note, out)

    def _called(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The result of operators that one calls from within."""
        with self, torch._C._AutoDispatchBelowAutograd():
            return function(*args, **kwargs)

    def _returned(self, note: Operator, out: Any) -> Any:
        """The result of an operator, which is noted."""
        note.outputs.extend(self.storages.as_argument(output) for output in (out if isinstance(out, tuple) else (out,)))
        return out

    def _result(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        stand_ins.count_read(self, func)
        stand_ins.check_types(func, args)
        stand_ins.check_kernel(self, func, args, kwargs)
        stand_ins.check_memory(func, args, kwargs)
        stand_in = stand_ins.STAND_INS.get(func)
        if func.overloadpacket in PRODUCTS and self.workspace and _device_of(args, self.kind) == "cuda":
            self.storages.workspace(self.workspace)
        with self.closed():
            if func in stand_ins.BY_VALUES and (known := self.known.result(func, args, kwargs)) is not None:
                return self._placed(known, _device_of(args, self.kind))
            if stand_in is not None:
                return stand_in(self, func, args, kwargs)
            self.rows = next((tensor.shape[0] for tensor in tensors_in(args) if tensor.dim()), 1)
            try:
                out = self.dispatch(func, types, args, kwargs)
            except (NotImplementedError, RuntimeError) as error:
                if not any(words in str(error) for words in _ASKS_DEVICE):
                    raise
                layouts = {tensor.layout for tensor in tensors_in((args, kwargs))} - {torch.strided}
                if func._schema.returns:
                    raise UnsupportedOperatorException(" of ".join(map(str, (func, *layouts)))) from error
                out = None  # it writes into what it is given
            stand_ins.check_indices(self, func, args)
            self.known.follow(func, args, kwargs, out)
        if kwargs.get("pin_memory"):
            pin(out)
        stand_ins.pass_on(self, func, args, kwargs, out)
        return out

    def _placed(self, computed: Any, device: str) -> Any:
        """A result that was worked out on the host, as tensors of the device."""

        def placed(part: Any) -> Any:
            with self:
                out = torch.ops.aten.empty_strided.default(part.shape, part.stride(), dtype=part.dtype, device=device)
            self.known.know(out, part)
            return out

        return tree_map_only(torch.Tensor, placed, computed)

    @contextlib.contextmanager
    def aside(self, hidden: bool) -> Iterator[None]:
        """Within it, tensors have data. hidden: what runs is not this process's work in a real run."""
        with unset_fake_temporarily(), self.journal.closed() if hidden else contextlib.nullcontext():
            yield

    def batch_of(self, batch: Any) -> Any:
        """A batch of a data loader as the script gets it: with data where those are on the host of an emulated accelerator."""
        if self.kind != "cpu":
            return batch
        with self.journal.closed():
            return tree_map_only(torch.Tensor, lambda tensor: self.from_tensor(tensor) if type(tensor) is torch.Tensor else tensor, batch)

    def largest_result(self, func: Any, args: Any, kwargs: Any) -> int:
        """Elements of the largest tensor that an operator on tensors with data would make; 0 where only the data tell."""
        with self.journal.closed(), self.closed():
            try:
                out = self.dispatch(func, (), args, kwargs)
            except (RuntimeError, NotImplementedError):
                return 0
        return max((output.numel() for output in tensors_in((out,))), default=0)

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Within it, operators are torch's own work on tensors without data."""
        before, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = before

    def _note(self, func: Any, args: Any, kwargs: Any) -> Operator:
        declared = func._schema.arguments
        given = [args[i] if i < len(args) else kwargs.get(argument.name, argument.default_value) for i, argument in enumerate(declared)]
        overload = "" if func._overloadname == "default" else func._overloadname
        tf32 = allows_tf32(next((kind for kind in ("conv", "rnn") if kind in func._schema.name), "matmul"))
        inputs = [self.storages.as_argument(argument) for argument in given]
        return Operator(
            name=func._schema.name, thread=0, begin=0, end=0, inputs=inputs, overload=overload, stream=self.streams.current, tf32=tf32,
            line=self.journal.line(), region=self.compiled.region,
        )  # fmt: skip


def _is_plain(kind: Any) -> bool:
    """Whether operators on tensors of this class are the device's; others (DTensor, …) translate them themselves first."""
    return issubclass(kind, FakeTensor) or kind.__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl


@cache
def _is_implicit(func: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), DispatchKey.CompositeImplicitAutograd))


def _device_of(args: Any, default: str) -> str:
    """The kind of device that an operator runs on: that of its first tensor."""
    first = next(tensors_in(args), None)
    return default if first is None else str(first.device.type)
