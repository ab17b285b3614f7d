"""Which operators run for real while an accelerator is emulated: small ones on tensors of the host.

What a script computes on the host decides what it does: how a mesh of devices is laid out, how many elements a batch has, which
learning rate is due. So tensors of the host have data, unless they are large (a model built there before it is moved) or were
computed from tensors without data.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from lumos.emulation.process.operators import values

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Elements of the largest tensor that an operator may make for real, so that memory stays bounded.
_LARGEST = 1 << 20


def can_run(mode: Any, func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operator reads and makes tensors with data only."""
    tensors = list(_tensors((*args, *kwargs.values())))
    if any(isinstance(each, FakeTensor) or each.device.type != "cpu" for each in tensors):
        return False
    device = kwargs.get("device")
    if device is not None and torch.device(device).type != "cpu":
        return False
    if func in values.STAND_INS or func is torch.ops.aten.lift_fresh.default:
        return bool(tensors)
    return _is_small(mode, func, args, kwargs)


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operator on tensors with data. Pinned memory is ordinary memory that says it is pinned: a build of torch for CPUs
    has no other."""
    if func in values.PINNED:
        return values.STAND_INS[func](None, func, args, kwargs)
    out = func(*args, **{name: value for name, value in kwargs.items() if name != "pin_memory"})
    if kwargs.get("pin_memory"):
        values.pin(out)
    return out


def _is_small(mode: Any, func: Any, args: Any, kwargs: Any) -> bool:
    """Whether the results are, which an operator on tensors without data tells; one that cannot tell depends on data and is run."""
    shapes = [each.shape for each in _tensors((*args, *kwargs.values()))]
    if not shapes and args and isinstance(args[0], (list, tuple)) and all(isinstance(each, int) for each in args[0]):
        return math.prod(args[0]) <= _LARGEST
    if sum(math.prod(shape) for shape in shapes) > _LARGEST:
        return False
    return bool(mode.largest_result(func, args, kwargs) <= _LARGEST)


def _tensors(values_given: Any) -> Iterator[Any]:
    for each in values_given:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from _tensors(each)
