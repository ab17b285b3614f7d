"""What is known of values although tensors have no data: all elements are equal to one number, or follow from a router's choice.

A tensor keeps its value as `stand_in`. What is written into memory by way of one tensor changes all others that lie there, so a write
forgets what was known of every tensor on that memory.

A router chooses experts by values. The experts that `topk` chose have numbers below one that is known, so a comparison with one of them
holds for one element in so many, and a count of them is the same for all. A choice made otherwise is not followed: a selection by it takes
every element.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

#: By the address of a storage, the tensors on it of which a value is known, by their own: tensors are not compared as members of a set are.
_ON_STORAGE: dict[int, WeakValueDictionary[int, Any]] = {}


def know(tensor: Any, value: Any) -> None:
    """Note that all elements of a tensor are equal to `value`."""
    tensor.stand_in = value
    _ON_STORAGE.setdefault(_address(tensor), WeakValueDictionary())[id(tensor)] = tensor


def forget(tensor: Any) -> None:
    """Note that a tensor has been written to."""
    for each in _ON_STORAGE.pop(_address(tensor), {}).values():
        vars(each).pop("stand_in", None)


def value_of(tensor: Any) -> Any:
    """The value of all elements of a tensor, None where it is not known."""
    return getattr(tensor, "stand_in", None)


def written(func: Any, args: Any) -> list[Any]:
    """The tensors that an operator writes to, of those that it is given."""
    found = [args[place] for place in _places_written(func) if place < len(args)]
    return [one for each in found for one in (each if isinstance(each, (list, tuple)) else (each,)) if isinstance(one, torch.Tensor)]


@cache
def _places_written(func: Any) -> tuple[int, ...]:
    return tuple(i for i, each in enumerate(func._schema.arguments) if each.alias_info is not None and each.alias_info.is_write)


def _address(tensor: Any) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # a sparse tensor has no single storage, and no other lies on its memory
        return -id(tensor)


_aten = torch.ops.aten

#: Operators whose results have elements of their first argument, as they come.
_SAME = frozenset({
    _aten.view.default, _aten._unsafe_view.default, _aten.reshape.default, _aten.flatten.using_ints, _aten.expand.default,
    _aten.permute.default,
    _aten.transpose.int, _aten.t.default, _aten.unsqueeze.default, _aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims,
    _aten.select.int, _aten.slice.Tensor, _aten.index.Tensor, _aten.unbind.int, _aten.split.Tensor,
    _aten.clone.default, _aten._to_copy.default, _aten.detach.default, _aten.alias.default,
})  # fmt: skip


def follow(func: Any, args: Any, out: Any) -> None:
    """Note with the results of an operator what is known of their elements: `classes`, they are numbers below it and each is as frequent as
    any other; `share`, so large a part of them is not zero; `stand_in`, they are all equal to it."""
    rule = _RULES.get(func)
    if rule is not None:
        rule(args, out)
    elif func in _SAME:
        known = {name: value for name, value in vars(args[0]).items() if name in ("classes", "share")}
        value = value_of(args[0])
        for each in out if isinstance(out, (list, tuple)) else (out,):
            for name, found in known.items():
                setattr(each, name, found)
            if value is not None:
                know(each, value)


def _chosen(args: Any, out: Any) -> None:
    along = args[2] if len(args) > 2 else -1
    out[1].classes = args[0].shape[along]


def _largest(args: Any, out: Any) -> None:
    if len(args) > 1 and args[1] is not None:
        out.classes = args[0].shape[args[1]]


def _drawn(args: Any, out: Any) -> None:
    out.classes = args[0].shape[-1]


def _compared(args: Any, out: Any) -> None:
    classes = next((each.classes for each in args if hasattr(each, "classes")), 0)
    if classes:
        out.share = 1 / max(classes, out.shape[-1] if isinstance(args[1], torch.Tensor) and args[1].dim() else 0)


def _counted(args: Any, out: Any) -> None:
    """Counts add up to the number of elements, and are equal."""
    if hasattr(args[0], "classes") or not out.dtype.is_floating_point:
        know(out, args[0].numel() // max(out.numel(), 1))


def _scattered(args: Any, out: Any) -> None:
    if hasattr(args[2], "classes"):
        out.share = args[2].numel() / max(out.numel(), 1)


def _summed(args: Any, out: Any) -> None:
    """Of a choice, how often it was made; of equal numbers, as when counts of experts are added up to those of a rank, their sum."""
    added, value = args[0].numel() / max(out.numel(), 1), value_of(args[0])
    if hasattr(args[0], "share"):
        know(out, round(added * args[0].share))
    elif isinstance(value, (bool, int, float)):
        know(out, value * int(added))


def _any(args: Any, out: Any) -> None:
    """Of the places along a dimension at most one holds: a token goes to an expert once."""
    if hasattr(args[0], "share"):
        out.share = min(1.0, args[0].share * args[0].numel() / max(out.numel(), 1))


_RULES: dict[Any, Callable[[Any, Any], None]] = {
    _aten.topk.default: _chosen, _aten.argmax.default: _largest, _aten.multinomial.default: _drawn, _aten.eq.Scalar: _compared,
    _aten.eq.Tensor: _compared, _aten.histc.default: _counted, _aten.bincount.default: _counted, _aten.scatter.value: _scattered,
    _aten.scatter_.value: _scattered, _aten.any.dim: _any, _aten.any.dims: _any, _aten.sum.default: _summed,
    _aten.sum.dim_IntList: _summed,
}  # fmt: skip
