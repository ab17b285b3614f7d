"""What kernels of the host take beyond their results.

Copies that a call makes in passing, whose sizes follow from the shapes: numbers that are added up in a wider type, and gradients of images
that oneDNN lays out otherwise. And what oneDNN's recurrent layers take: what a layer keeps for its backward pass (its workspace), and what
a call takes until it returns (weights in another layout, scratch).

How much those take depends on the kernel that oneDNN chooses for the processor and its threads, and torch's rule for shapes gives a
workspace of no bytes. So a call of a size not met before is made once for real, on zeros, and torch's own account of its allocator is
read. It is made on a thread of its own, since a thread has one profiler, and the emulation's is on.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.autograd import ProfilerConfig, ProfilerState, _disable_profiler_legacy, _enable_profiler_legacy

if TYPE_CHECKING:
    from collections.abc import Sequence

_FORWARD, _BACKWARD = torch.ops.aten.mkldnn_rnn_layer.default, torch.ops.aten.mkldnn_rnn_layer_backward.default

_SUMS = frozenset({torch.ops.aten.sum.default, torch.ops.aten.sum.dim_IntList, torch.ops.aten.cumsum.default})
_CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default

#: Larger calls are not made: products of two elements in one, which a core does in a second or less, and bytes of its operands.
_MOST_PRODUCTS, _MOST_BYTES = 1 << 33, 1 << 28


class Taken(NamedTuple):
    """bytes that a call takes. workspace: what it keeps; passing: what it takes besides its results and gives back before it returns."""

    workspace: int
    passing: int


def in_passing(func: Any, args: Sequence[Any]) -> int:
    """Bytes of the copies that a call makes and gives back before its results are there."""
    if func in _SUMS and not args[0].dtype.is_floating_point and not args[0].dtype.is_complex and args[0].dtype != torch.int64:
        return 8 * int(args[0].numel())  # integers and truth values are added up in 64 bits
    if func is _CONVOLUTION_BACKWARD:
        given, stride, is_transposed, wanted = args[1], args[4], args[7], args[10]
        if wanted[0] and not is_transposed and len(stride) == 2 and max(stride) > 1:
            return 3 * int(given.nbytes)  # under a stride: as oneDNN has it, with its channels last, and with its channels first
    return 0


def taken(func: Any, args: Sequence[Any]) -> Taken | None:
    """What a call of a recurrent layer or its backward pass takes; None for other operators, and where the call is too large to be made."""
    if func not in (_FORWARD, _BACKWARD) or not _is_small(func, args):
        return None
    learning = torch.is_grad_enabled()
    asked = (func, learning, torch.get_num_threads(), str([_described(each) for each in args]))
    if asked not in _KNOWN:
        with ThreadPoolExecutor(1) as thread:
            _KNOWN[asked] = thread.submit(_measured, func, [_described(each) for each in args], learning).result()
    return _KNOWN[asked]


def layer(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The stand-in of a recurrent layer: results as torch's rule gives them, and the workspace in its size."""
    *results, workspace = mode.dispatch(func, (), args, kwargs)
    found = taken(func, args)
    with mode:
        return *results, workspace.new_empty(found.workspace) if found is not None else workspace


_KNOWN: dict[Any, Taken] = {}


class _Described(NamedTuple):
    """A tensor's sizes, strides in elements, and type."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Any


def _described(value: Any) -> Any:
    return _Described(tuple(value.shape), tuple(value.stride()), value.dtype) if isinstance(value, torch.Tensor) else value


def _is_small(func: Any, args: Sequence[Any]) -> bool:
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    if func is _BACKWARD and not args[-1].numel():
        return False  # its workspace has no known size
    moments = args[0].shape[0] * args[0].shape[1]
    products = moments * (args[1].numel() + args[2].numel()) * (1 if func is _FORWARD else 2)
    return bool(products <= _MOST_PRODUCTS and sum(each.nbytes for each in tensors) <= _MOST_BYTES)


def _measured(func: Any, described: Sequence[Any], learning: bool) -> Taken:
    """Make the call on zeros. The rows of the account are bytes, above zero where memory is taken."""
    with torch.set_grad_enabled(learning):
        given = [_zeros(each) if isinstance(each, _Described) else each for each in described]
        _enable_profiler_legacy(
            ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, torch._C._profiler._ExperimentalConfig())
        )
        try:
            results = func(*given)
        finally:
            rows = _disable_profiler_legacy()
    changes = [row.cpu_memory_usage() for thread in rows for row in thread if row.kind() == "memory_alloc"]
    highest, left = max(accumulate(changes), default=0), sum(changes)
    return Taken(results[-1].untyped_storage().nbytes() if func is _FORWARD else 0, highest - left)


def _zeros(described: _Described) -> Any:
    return torch.empty_strided(described.shape, described.stride, dtype=described.dtype).zero_()
