"""What a script compiles: it runs operator by operator, inside ranges from which the kernels of the compiled code follow.

What a kernel of compiled code makes and uses up never lies in memory: a result of an operator that torch's partitioner would fuse
(`torch._functorch.partitioners`) takes memory only once something else uses it, which is an operator that cannot be fused, one outside of
compiled code, a collective, or the script itself. What the backward pass needs of it is made again from what it was made from, which is
kept as long. As for the partitioner, random numbers and reductions to less than a quarter are not made again, nor is what was made only
after something that cannot be fused had used what it is made of (`ban_recompute_used_far_apart`), as each sum along a model's layers is.
Work on complex numbers is not fused (torch/_inductor/lowering.py).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch._C._profiler import _RecordFunctionFast

from lumos.emulation.process.operators.known import tensors_in
from lumos.emulation.process.owners import OfForward
from lumos.emulation.record import REGION_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.emulation.process.journal import Journal
    from lumos.emulation.process.operators.storages import Storages


#: Operators that cuBLAS carries out.
PRODUCTS = frozenset(getattr(torch.ops.aten, name) for name in ("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot"))


class Compiled:
    """The compiled functions and modules of a script."""

    def __init__(self, journal: Journal, storages: Storages) -> None:
        self._journal, self._storages = journal, storages
        self._count = self._calls = 0
        self._open = threading.local()
        self._forward = OfForward(-1)  # regions

    def take_over(self) -> None:
        """Let what the script compiles run operator by operator."""

        def compile_(model: Any = None, **options: Any) -> Any:
            if model is None:
                return lambda later: compile_(later, **options)
            if isinstance(model, torch.nn.Module):
                from torch._dynamo.eval_frame import OptimizedModule

                return OptimizedModule(model, self._ranged)
            return self._ranged(model)

        def compile_module(module: Any, *_: Any, **__: Any) -> None:
            module.forward = self._ranged(module.forward)

        torch.compile = compile_
        torch.nn.Module.compile = compile_module

    def _ranged(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function, with a range around every call while the journal records."""
        name = f"{REGION_PREFIX}{self._count}/0"
        self._count += 1

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._journal.assume("fused-by-rule", "what torch.compile fuses is known by rule: its compiler does not run here")
            with _RecordFunctionFast(name) if self._journal.recording else contextlib.nullcontext():
                return self._run(function, args, kwargs)

        return run

    def _run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        depth = getattr(self._open, "depth", 0)
        self._open.depth = depth + 1
        if not depth:
            self._open.region = 2 * self._calls
            self._calls += 1
            self._forward.begin(self._open.region)
        try:
            out = function(*args, **kwargs)
        finally:
            self._open.depth = depth
        if not depth:
            self._forward.begin(-1)
            self._storages.use_all(apart=True)
        self._storages.use(tensors_in((out,)))
        return out

    def place(self, func: Any, args: Any, kwargs: Any) -> contextlib.AbstractContextManager[None]:
        """What to run an operator in, so that memory is taken for what it uses and makes but inside a kernel of compiled code."""
        given = list(tensors_in((args, kwargs)))
        if is_view(func):
            return contextlib.nullcontext()
        if self.region >= 0 and _is_fusible(func) and all(tensor.device.type == "cuda" and not tensor.is_complex() for tensor in given):
            return self._storages.fusing(given)
        self._storages.use(given, self.region >= 0)
        return contextlib.nullcontext()

    @property
    def region(self) -> int:
        """The region of compiled code that runs on this thread: of a call, or one more for the backward pass of one; -1 for none."""
        if getattr(self._open, "depth", 0):
            return int(self._open.region)
        node = torch._C._current_autograd_node() if self._calls else None
        region = -1 if node is None else self._forward.of(node)
        return region + 1 if region >= 0 else -1


@functools.cache
def is_view(func: Any) -> bool:
    """Whether the results of an operator lie where its arguments do."""
    return any(returned.alias_info is not None and not returned.alias_info.is_write for returned in func._schema.returns)


@functools.cache
def _is_fusible(func: Any) -> bool:
    """Whether a kernel of compiled code takes an operator in, which the compiler has in the form that writes into none of its inputs."""
    name = func.overloadpacket.__name__
    return func.overloadpacket in _fusible() or (name.endswith("_") and getattr(torch.ops.aten, name[:-1], None) in _fusible())


@functools.cache
def _fusible() -> frozenset[Any]:
    """What torch's partitioner knows as fusible, what it is given as several operators, and copies, which TorchInductor takes apart."""
    from torch._decomp import decomposition_table
    from torch._functorch.partitioners import get_default_op_list

    kinds = get_default_op_list()
    taken_apart = {getattr(operator, "overloadpacket", operator) for operator in decomposition_table}
    return frozenset((kinds.fusible_ops | taken_apart | {torch.ops.aten.copy}) - kinds.compute_intensive_ops - kinds.random_ops - PRODUCTS)
