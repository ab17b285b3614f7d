"""Whose each piece of the device's memory is, which module took it and what it is for; and the calls of modules, as ranges of the record.

What is a parameter, a gradient, a state of an optimizer or part of an exchange is asked of torch's own objects. What a forward pass makes
is an activation where it is still there when a backward pass goes on, and temporary otherwise, as is all that is made elsewhere. A node of
the backward pass is the module's whose operator has its number.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

import torch
from torch._C._profiler import _RecordFunctionFast

from lumos.emulation.process.patches import TORCH
from lumos.emulation.record import MemoryKind, Owner
from lumos.vocabulary import MODULE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lumos.emulation.process.journal import Journal

#: Where a compiled module has its own.
COMPILED = "_orig_mod"

_T = TypeVar("_T")


class OfForward(Generic[_T]):
    """Whose the operators of the forward pass are, by autograd's number of each, which a node of the backward pass has in common with its
    operator. none: what is said of those that are nobody's."""

    def __init__(self, none: _T) -> None:
        self._none = none
        self._from: list[tuple[int, _T]] = []

    def begin(self, of: _T) -> None:
        """From here on, operators are of this."""
        number = int(torch.autograd._get_sequence_nr())
        if self._from and self._from[-1][0] > number:
            self._from.clear()  # another thread's numbers
        self._from.append((number, of))

    def of(self, node: Any) -> _T:
        """What a node's operator is of."""
        position = bisect.bisect_right(self._from, node._sequence_nr(), key=lambda entry: entry[0])
        return self._from[position - 1][1] if position else self._none

    def forget(self) -> None:
        """No backward pass asks for what was before."""
        del self._from[:-1]


class Owners:
    """The owners of the storages of one process, by their numbers."""

    def __init__(self) -> None:
        self.find: Callable[[Any], int] = lambda _: 0  # the number of a tensor's storage
        self._kinds: dict[int, MemoryKind] = {}
        self._modules: dict[int, str] = {}
        self._young: set[int] = set()  # made by a forward pass and not needed by a backward pass yet
        self._parameters: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._paths: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self.marked: dict[str, str] = {}  # the path of each module that a range of the record is named after
        self._holders: dict[int, str] = {}  # by the identity of a parameter or buffer: the module that has it
        self._calls = threading.local()
        self._forward = OfForward("")
        self._updating = self._backward = 0
        self._due: Callable[[], None] | None = None
        self.after_call: Callable[[], None] = lambda: None  # called after each outermost call of the script's model
        self._model: Callable[[], Any] = lambda: None

    # ---------------------------------------------------------------- what runs

    def enter(self, module: Any, name: str) -> None:
        """A call of a module begins on this thread. name: of its range."""
        stack = self._stack()
        if module not in self._paths:
            for path, submodule in module.named_modules():
                self._paths.setdefault(submodule, path.removeprefix(COMPILED).removeprefix(".") or type(module).__name__)
            for path, tensor in (*module.named_parameters(), *module.named_buffers()):
                self._holders.setdefault(id(tensor), path.removeprefix(f"{COMPILED}.").rpartition(".")[0])
                self._know_all(tensor, MemoryKind.PARAMETER, self._holders[id(tensor)])
        stack.append(self._paths[module])
        self.marked.setdefault(name, stack[-1])
        self._note_module(stack)

    def leave(self, module: Any) -> None:
        """The innermost call on this thread ends."""
        stack = self._stack()
        stack.pop()
        self._note_module(stack)
        if not stack and self._is_model(module):
            self.after_call()

    def _is_model(self, module: Any) -> bool:
        """Whether a module is the first one that was called outside of all others and has parameters, or the first without so far."""
        first = self._model()
        if first is None or not (module is first or any(True for _ in first.parameters())):
            self._model = ref(module)
        return self._model() is module

    def _note_module(self, stack: list[str]) -> None:
        if torch._C._current_autograd_node() is None:
            self._forward.begin(stack[-1] if stack else "")

    def step_begins(self, optimizer: Any) -> None:
        """An optimizer steps: its gradients are complete."""
        self._updating += 1
        self._gradients(parameter for group in optimizer.param_groups for parameter in group["params"])

    def step_ends(self, optimizer: Any) -> None:
        self._updating -= 1
        for parameter, state in optimizer.state.items():
            for entry in state.values() if isinstance(state, dict) else ():
                self._know_all(entry, MemoryKind.OPTIMIZER_STATE, self._holders.get(id(parameter)))
        self._forward.forget()

    def watch_backward(self, done: Callable[[], None]) -> None:
        """Ask for gradients whenever a backward pass is done, and do what waits for that. done: called first then."""
        @TORCH.around(torch.autograd, "_engine_run_backward")
        def run_backward(run: Any, *args: Any, **kwargs: Any) -> Any:
            self._backward += 1
            try:
                out = run(*args, **kwargs)
            finally:
                self._backward -= 1
                if torch._C._current_autograd_node() is None:
                    done()
                    self._gradients(list(self._parameters.values()))
            if self._due is not None and not self._backward:
                due, self._due = self._due, None
                due()
            return out

    def outside_backward(self, call: Callable[[], None]) -> None:
        """Make a call, once a backward pass that runs is done, on the thread that asked for it: that of the pass would otherwise begin and
        end what is recorded of all threads."""
        if self._backward:
            self._due = call
        else:
            call()

    # ---------------------------------------------------------------- what is known of a storage

    def parameter(self, parameter: Any) -> None:
        """A parameter was made."""
        self._parameters[id(parameter)] = parameter
        self._know_all(parameter, MemoryKind.PARAMETER)

    @contextlib.contextmanager
    def without(self, *tensors: Any) -> Iterator[None]:
        """Within it, nothing refers to these tensors, of which torch exchanges only such."""
        held = [tensor for tensor in tensors if self._parameters.pop(id(tensor), None) is not None]
        yield
        self._parameters.update((id(tensor), tensor) for tensor in held)

    def exchanged(self, numbers: Iterable[int]) -> None:
        """Storages are read or written by an exchange."""
        for number in numbers:
            self._kinds.setdefault(number, MemoryKind.COMMUNICATION)

    def know(self, number: int, kind: MemoryKind, module: str | None = None) -> None:
        """What a storage is for, whatever was thought of it."""
        self._kinds[number] = kind
        self._young.discard(number)
        if module is not None:
            self._modules[number] = module

    def made(self, number: int) -> None:
        """A storage was taken, by what runs now on this thread."""
        stack, node = self._stack(), torch._C._current_autograd_node()
        if node is not None and not stack:
            self.keep_young()
            self._modules[number] = self._forward.of(node)
        else:
            self._modules[number] = stack[-1] if stack else ""
            if torch.is_grad_enabled() and not self._updating:
                self._young.add(number)

    def gone(self, number: int) -> None:
        """A storage was given back."""
        self._young.discard(number)

    def all(self) -> Iterator[Owner]:
        """The owner of every storage that was taken."""
        self._gradients(list(self._parameters.values()))
        for number, module in list(self._modules.items()):
            yield Owner(number, self._kinds.get(number, MemoryKind.TEMPORARY), module)

    def keep_young(self) -> None:
        """What modules have made and not given back is for a backward pass, which goes on now or never will."""
        for number in self._young:
            if self._modules[number] or torch._C._current_autograd_node() is not None:
                self._kinds.setdefault(number, MemoryKind.ACTIVATION)
        self._young.clear()

    def _gradients(self, parameters: Iterable[Any]) -> None:
        for parameter in parameters:
            holder = self._holders.get(id(parameter))
            self._know_all(parameter, MemoryKind.PARAMETER, holder)
            if parameter.grad is not None:
                self._know_all(parameter.grad, MemoryKind.GRADIENT, holder)

    def _know_all(self, value: Any, kind: MemoryKind, module: str | None = None) -> None:
        """The storage of a tensor, or those that a tensor of a subclass is made of."""
        if not isinstance(value, torch.Tensor):
            return
        inner = type(value).__tensor_flatten__(value)[0] if hasattr(type(value), "__tensor_flatten__") else ()
        for name in inner:
            self._know_all(getattr(value, name), kind, module)
        if not inner and (number := self.find(value)) and self._kinds.get(number) in (None, MemoryKind.COMMUNICATION, kind):
            self.know(number, kind, module)

    def _stack(self) -> list[str]:
        stack: list[str] = vars(self._calls).setdefault("stack", [])
        return stack


def watch_modules(journal: Journal, owners: Owners) -> None:
    """Put a range around every call of a module while the journal records, and tell whose memory it takes."""
    names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
    counts: Counter[str] = Counter()

    @TORCH.around(torch.nn.Module, "__call__")
    def named(call: Any, module: Any, /, *args: Any, **kwargs: Any) -> Any:
        if module not in names:
            kind = type(module).__name__
            names[module] = f"{MODULE_PREFIX}{kind}_{counts[kind]}"
            counts[kind] += 1
        owners.enter(module, names[module])
        try:
            with _RecordFunctionFast(names[module]) if journal.recording else contextlib.nullcontext():
                return call(module, *args, **kwargs)
        finally:
            owners.leave(module)
