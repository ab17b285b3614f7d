"""Sparse tensors, such as the gradients of embeddings: some rows of a tensor, and where they stand in it.

What the device does with one, it does with its rows by operators on ordinary tensors, which are noted and priced as any other. How many
rows are equal depends on values, so that all count as different.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

if TYPE_CHECKING:
    from collections.abc import Callable

_aten = torch.ops.aten

#: The operator that makes all of them.
MADE = "_sparse_coo_tensor_with_dims_and_tensors"
#: The gradient of a bag of embeddings is sparse where the argument at this place says so.
BAG, IS_SPARSE = _aten._embedding_bag_backward.default, 9


class SparseRows(torch.Tensor):  # type: ignore[misc]
    """places: int64[sparse dimensions, rows]; rows: a tensor for each of them. is_sorted: torch knows it as coalesced."""

    @staticmethod
    def __new__(cls, places: Any, rows: Any, size: Any, is_sorted: bool = False) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, size, dtype=rows.dtype, device=rows.device, layout=torch.sparse_coo)
        made.places, made.rows, made.is_sorted = places, rows, is_sorted
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["places", "rows"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, rule = kwargs or {}, _RULES.get(func.overloadpacket)
        if rule is not None:
            return rule(*args, **kwargs)
        (given,) = (argument for argument in args if isinstance(argument, cls))  # an operator on each element, which zeros are none of
        named = {name: argument for name, argument in kwargs.items() if name != "layout"}
        rows = func(*(argument.rows if argument is given else argument for argument in args), **named)
        if rows is given.rows or rows.shape[:1] != given.rows.shape[:1]:  # changed where it lies, or a figure of all
            return given if rows is given.rows else rows
        return SparseRows(given.places.to(rows.device), rows, given.shape, given.is_sorted)


def made(mode: Any, _: Any, args: Any, __: Any) -> Any:
    """The operator that makes a sparse tensor."""
    mode.journal.assume("sparse-rows", "work on sparse tensors is that on their rows, of which none counts as equal to another")
    return SparseRows(args[3], args[4], args[2])


def bag(
    gradient: Any, places: Any, _: Any, bags: Any, sizes: Any, __: Any, count: int, ___: bool, kind: int, ____: bool,
    weights: Any = None, *_____: Any,
) -> Any:  # fmt: skip
    """The sparse gradient of a bag of embeddings, as ATen's _embedding_bag_sparse_backward. kind: 1 where a bag is the mean of its rows."""
    rows = gradient.index_select(0, bags)
    if kind == 1:
        rows = rows / sizes.index_select(0, bags).unsqueeze(1)
    return SparseRows(places.reshape(1, -1), rows if weights is None else rows * weights.unsqueeze(1), (count, gradient.shape[1]))


def without_data(source: Any, fake: Callable[[Any], Any]) -> Any:
    """A sparse tensor of the host, of tensors without data. fake: makes one."""
    with unset_fake_temporarily():
        places, rows = source._indices(), source._values()
    return SparseRows(fake(places), fake(rows), source.shape, source.is_coalesced())


def _added(one: Any, other: Any, alpha: float = 1, into: bool = False) -> Any:
    rows = other.rows if alpha == 1 else other.rows * alpha
    if isinstance(one, SparseRows):
        return SparseRows(torch.cat([one.places, other.places], 1), torch.cat([one.rows, rows]), one.shape)
    return (one if into else one.clone()).index_put_(tuple(other.places), rows, accumulate=True)


def _sorted(given: Any) -> Any:
    """Rows in order, equal ones added up."""
    rows = torch.zeros_like(given.rows).index_add_(0, given.places[0].sort()[1], given.rows)
    return SparseRows(given.places.clone(), rows, given.shape, True)


def _product(one: Any, other: Any) -> Any:
    """A sparse matrix times another: every element takes a row of the other."""
    to, source = one.places
    return other.new_zeros(one.shape[0], other.shape[1]).index_add_(0, to, other.index_select(0, source) * one.rows.unsqueeze(1))


def _turned(given: Any, *_: int) -> Any:
    return SparseRows(given.places.flip(0), given.rows, given.shape[::-1])


def _summed(given: Any, dims: Any = (), **_: Any) -> Any:
    """The sum along dimensions, or of all: what is left of the places says where rows stand, which are added up where nothing is left."""
    count, dims = given.places.shape[0], {dim % given.dim() for dim in dims or range(given.dim())}
    within = [1 + dim - count for dim in dims if dim >= count]  # those of the rows themselves
    rows, kept = given.rows.sum(within) if within else given.rows, [dim for dim in range(count) if dim not in dims]
    if not kept:
        return rows.sum(0)
    return SparseRows(given.places[kept], rows, [size for dim, size in enumerate(given.shape) if dim not in dims])


_RULES: dict[Any, Callable[..., Any]] = {
    _aten._indices: lambda given: given.places, _aten.indices: lambda given: given.places,
    _aten._values: lambda given: given.rows, _aten.values: lambda given: given.rows,
    _aten.is_coalesced: lambda given: given.is_sorted, _aten._nnz: lambda given: given.places.shape[1],
    _aten.sparse_dim: lambda given: given.places.shape[0], _aten.dense_dim: lambda given: given.dim() - given.places.shape[0],
    _aten._coalesce: _sorted, _aten.coalesce: lambda given: given if given.is_sorted else _sorted(given),
    _aten.add: _added, _aten.add_: lambda one, other, alpha=1: _added(one, other, alpha, into=True),
    _aten.sparse_mask: lambda dense, mask: SparseRows(mask.places, dense[tuple(mask.places)], mask.shape, mask.is_sorted),
    _aten._sparse_sum: _summed, _aten.sum: _summed, _aten.t: _turned, _aten.transpose: _turned, _aten.mm: _product,
    _aten._sparse_mm: _product, _aten._sparse_addmm: lambda _, one, other, **__: _product(one, other),
    **dict.fromkeys((_aten.to_dense, _aten._to_dense), lambda given, *_, **__: _added(given.rows.new_zeros(given.shape), given, into=True)),
}  # fmt: skip
