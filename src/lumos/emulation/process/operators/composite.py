"""Which operators are written in terms of others, and so call those on the emulated device as well.

PyTorch declares in native_functions.yaml which of its operators have a kernel of their own for a kind of device. Those that have one
implementation for all kinds of devices call other operators, which appear below them in a profile, and are followed here too.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._library.custom_ops import OPDEFS

from lumos.errors import LumosError
from lumos.operators.table import clears

if TYPE_CHECKING:
    from collections.abc import Callable

#: Implementations for all kinds of devices, in the order in which they are looked for.
_EXPLICIT = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
_IMPLICIT = "CompositeImplicitAutograd"

#: Declared for all kinds of devices, but a kernel that reads or writes data, or makes a tensor without calling an operator.
_OWN_KERNEL = frozenset({
    "copy_", "_unsafe_view", "detach", "detach_", "alias", "lift", "lift_fresh", "_lazy_clone", "view.dtype", "_fw_primal", "_make_dual",
    "slice_inverse",
    "mkldnn_convolution", "_nnpack_spatial_convolution", "_pin_memory", "is_pinned", "_linalg_check_errors", "_print", "set_data",
    "_has_same_storage_numel", "_new_zeros_with_same_feature_meta", "convolution_overrideable", "convolution_backward_overrideable",
    "_nested_tensor_from_tensor_list", "is_same_size", "is_coalesced", "sparse_dim", "dense_dim", "resize_as_",
    "_neg_view", "_conj", "is_all_true", "allclose", "_assert_tensor_metadata", "_functional_assert_scalar", "_assert_scalar",
})  # fmt: skip

#: The same on the host, where a library has the kernel.
_OWN_KERNEL_OF_HOST = frozenset({"convolution_backward"})


def follows(func: Any, device: str) -> bool:
    """Whether an operator's implementation for `device` ("cpu", "cuda") calls other operators rather than a kernel."""
    if func.namespace == "_c10d_functional":
        return True  # they call c10d
    if func.namespace != "aten" or (device == "cpu" and _name(func) in _OWN_KERNEL_OF_HOST):
        return func.namespace != "aten" and bool(in_python(func))
    return _name(func) in _declared("CPU" if device == "cpu" else "CUDA")


def implementation(func: Any) -> str:
    """Which of the implementations for all kinds of devices an operator has that `follows`; any, for one outside of ATen."""
    kinds = _kinds().get(_name(func), frozenset())
    return next((kind for kind in _EXPLICIT if kind in kinds), in_python(func) or _EXPLICIT[0])


@cache
def in_python(func: Any) -> str:
    """For what kind of devices an operator of a library's has a kernel in Python, where nothing else says what it gives; "" without."""
    made, has = OPDEFS.get(func._schema.name), torch._C._dispatch_has_kernel_for_dispatch_key
    if made._abstract_fn if made is not None else any(has(func.name(), key) for key in ("Meta", _IMPLICIT)):
        return ""
    return next((kind for kind in ("CUDA", *_EXPLICIT) if f"{func.name().replace('::', '/')}/{kind}" in torch.library._impls), "")


def has_kernel(func: Any, device: str) -> bool:
    """Whether an operator has a kernel of its own for `device` ("cpu", "cuda")."""
    return func.namespace == "aten" and ("CPU" if device == "cpu" else "CUDA") in _kinds().get(_name(func), frozenset())


def _name(func: Any) -> str:
    return str(func._schema.name).removeprefix("aten::") + (f".{func._overloadname}" if func._overloadname != "default" else "")


@cache
def _declared(backend: str) -> frozenset[str]:
    """The operators with the implementation for all kinds of devices and none for `backend`."""
    return frozenset(
        name for name, kinds in _kinds().items() if kinds & set(_EXPLICIT) and backend not in kinds and name not in _OWN_KERNEL
    )


def kernels_instead(backend: str) -> list[str]:
    """The operators that have kernels of their own for `backend` ("CPU", "CUDA") and are written in terms of others for the rest."""
    return [name for name, kinds in _kinds().items() if _IMPLICIT in kinds and backend in kinds]


#: Of an operator's entry, the lines with its implementations, and the one that names the form with an output that has them.
_DISPATCHED, _DELEGATED = re.compile(r"^    ([\w, ]+):", re.MULTILINE), re.compile(r"^  structured_delegate: *(\S+)", re.MULTILINE)


@cache
def _kinds() -> dict[str, frozenset[str]]:
    """The kinds of implementations that each operator has, those that it leaves to its form with an output included."""
    every = {entry.partition("(")[0]: entry for entry in _declarations().split("\n- func: ")[1:]}
    kinds_of = {name: {kind for kinds in _DISPATCHED.findall(entry) for kind in kinds.split(", ")} for name, entry in every.items()}
    for name, entry in every.items():
        kinds_of[name].update(*(kinds_of[other] for other in _DELEGATED.findall(entry)))
    return {name: frozenset(kinds) for name, kinds in kinds_of.items()}


def _declarations() -> str:
    path = Path(torch.__file__).parent.parent / "torchgen" / "packaged" / "ATen" / "native" / "native_functions.yaml"
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise LumosError(f"{path}: {error.strerror}: it comes with torch and says which operators call others; reinstall torch") from error


def calls_of(func: Any) -> Callable[..., Any] | None:
    """What the device's kernel of an operator calls that launches too, with the operator's own arguments, as the functions of
    ATen/native/cuda of the same names do in torch 2.13; None where nothing. What else it calls (memory, views) is left out."""
    return _CALLED.get(str(func))


def clearing(func: Any) -> Callable[[Any], Any] | None:
    """What the device's kernel of an operator calls to clear its result, as a function of the result that gives the cleared one; None where
    nothing."""
    return _CLEARING[clears()[_name(func)]] if func.namespace == "aten" and _name(func) in clears() else None


_CLEARING: dict[str, Callable[[Any], Any]] = {
    "zeros": lambda out: torch.ops.aten.zeros.default(out.shape, dtype=out.dtype, device=out.device),
    "zeros_like": torch.ops.aten.zeros_like.default, "zero_": torch.ops.aten.zero_.default,
}  # fmt: skip


def _by_mask(_: Any, indices: Any, *__: Any, **___: Any) -> None:
    """expandTensors: the positions that a mask selects. The device tells how many they are."""
    for mask in (index for index in indices if index is not None and index.dtype in (torch.bool, torch.uint8)):
        mask.nonzero()


def _flash(query: Any, key: Any, value: Any, dropout: float = 0.0, causal: bool = False, *_: Any, **more: Any) -> None:
    """_scaled_dot_product_flash_attention_cuda: everything as [batch, tokens, heads, size]."""
    turned = [tensor.transpose(1, 2) for tensor in (query, key, value)]
    longest = query.shape[2], key.shape[2]
    torch.ops.aten._flash_attention_forward(*turned, None, None, *longest, dropout, causal, False, scale=more.get("scale"))


#: Operators that have a kernel of their own beside those.
OWN_KERNEL_BESIDE: dict[str, Callable[..., Any]] = {
    "aten.index.Tensor": _by_mask,
    "aten.convolution_backward.default": lambda gradient, *rest: (
        gradient.sum([0, *range(2, gradient.dim())]) if rest[-1][2] else None  # the gradient of the bias
    ),
    # one number is filled in where the mask holds, without its positions
    "aten._index_put_impl_.default": lambda one, places, values, accumulate=False, *_: (
        _by_mask(one, places) if values.numel() > 1 or accumulate else None
    ),
}
_CALLED: dict[str, Callable[..., Any]] = OWN_KERNEL_BESIDE | {
    "aten.isnan.default": lambda tensor: tensor.ne(tensor), "aten.relu.default": lambda tensor: tensor.clamp_min(0),
    "aten.zero_.default": lambda tensor: tensor.fill_(0), "aten._scaled_dot_product_flash_attention.default": _flash,
}  # fmt: skip
