"""Values that are known although tensors have no data: all elements of a tensor are equal to one number.

A tensor keeps its value as `stand_in`. What is written into memory by way of one tensor changes all others that lie there, so a write
forgets what was known of every tensor on that memory.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import torch

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
    places = _WRITTEN.get(func)
    if places is None:
        arguments = enumerate(func._schema.arguments)
        places = _WRITTEN[func] = tuple(i for i, each in arguments if each.alias_info is not None and each.alias_info.is_write)
    found = [args[place] for place in places if place < len(args)]
    return [one for each in found for one in (each if isinstance(each, (list, tuple)) else (each,)) if isinstance(one, torch.Tensor)]


_WRITTEN: dict[Any, tuple[int, ...]] = {}


def _address(tensor: Any) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # a sparse tensor has no single storage, and no other lies on its memory
        return -id(tensor)
