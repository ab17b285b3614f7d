"""Operators of which torch chooses the kernels by the device: attention, and recurrent networks, of which it asks cuDNN in one call.

The rule for attention is that of `sdp::select_sdp_backend` in ATen/native/transformers/cuda/sdp_utils.cpp with torch's default order: flash
attention where it can, memory-efficient attention where that can, else the plain formula. A build without the device cannot be asked.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from lumos.emulation.process.patches import TORCH

if TYPE_CHECKING:
    from collections.abc import Sequence

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_HALF = (torch.float16, torch.bfloat16)
#: The largest head that flash attention has a kernel for, and the multiple of elements to which both kernels want heads padded.
_LARGEST_HEAD, _MULTIPLE = 256, 8

#: Kinds of networks as cuDNN numbers them (cudnnRNNMode_t).
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}


def call_device_kernels(library: Any, mode: Any) -> None:
    """Let the operators be those of the device where autograd would call their parts. mode: the mode that the script runs in."""
    library.impl("scaled_dot_product_attention", device_attention, "AutogradCUDA")
    for kind in _MODES:
        library.impl(f"{kind}.input", partial(_network, kind), "AutogradCUDA")
        library.impl(f"{kind}.data", partial(_packed, kind), "AutogradCUDA")
    for name, can in (  # which nested tensors ask
        ("flash", lambda asked, _: _is_for_flash(asked.query, asked.key, asked.value, asked.attn_mask)),
        ("mem_efficient", lambda asked, _: _is_for_efficient(asked.query, asked.key, asked.value)), ("cudnn", lambda *_: False),
    ):
        TORCH.put(torch._C, f"_can_use_{name}_attention", can)

    @TORCH.around(torch, "ctc_loss")
    def ctc_loss(loss: Any, scores: Any, targets: Any, moments: Any, letters: Any, *rest: Any, **named: Any) -> Any:
        """Gets the lengths as numbers, which torch makes of tensors where they have data: of others it keeps tensors of the host, which do
        not go together with those of the device."""
        if isinstance(moments, torch.Tensor) and isinstance(letters, torch.Tensor):
            most = targets.shape[1] if targets.dim() == 2 else targets.shape[0] // max(letters.numel(), 1)
            asked = lengths(mode, moments, scores.shape[0]), lengths(mode, letters, most)
            with mode.aside(hidden=True):
                moments, letters = (each.reshape(-1).tolist() for each in asked)
        return loss(scores, targets, moments, letters, *rest, **named)


#: Attention of sequences that lie one after the other, and the place of the argument that says where each ends.
_PACKED = {torch.ops.aten._flash_attention_forward.default: 3, torch.ops.aten._efficient_attention_forward.default: 4}


def note_packed(func: Any, args: Any, journal: Any) -> None:
    """Note that lengths do not count, where an operator works on such sequences."""
    if func in _PACKED and args[_PACKED[func]] is not None:
        journal.assume("equal-lengths", "attention of sequences of different lengths takes the time of as many equally long ones")


def chooses(func: Any, device: str) -> bool:
    """Whether this is the operator that chooses the kernel of attention, on a device that has the choice."""
    return func is _ATTENTION and device == "cuda"


def device_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Attention of [batch, heads, tokens, size] tensors on the kernel that torch would choose."""
    size, aten = query.shape[-1], torch.ops.aten
    if _is_for_flash(query, key, value, attn_mask):
        scale = size**-0.5 if scale is None else scale
        missing = -size % _MULTIPLE
        if missing:
            query, key, value = (torch.nn.functional.pad(each, (0, missing)) for each in (query, key, value))
        out = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
        return out[..., :size] if missing else out
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        key, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value))
    if _is_for_efficient(query, key, value):
        mask = None if attn_mask is None else _added(attn_mask, query).expand(*query.shape[:3], key.shape[2])
        keeps = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
        return aten._scaled_dot_product_efficient_attention(query, key, value, mask, keeps, dropout_p, is_causal, scale=scale)[0]
    return aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)[0]


def _is_for_flash(query: Any, key: Any, value: Any, mask: Any) -> bool:
    is_alike = query.dim() == 4 and query.shape[-1] == key.shape[-1] == value.shape[-1] <= _LARGEST_HEAD
    return bool(torch.backends.cuda.flash_sdp_enabled() and mask is None and query.dtype in _HALF and is_alike)


def _is_for_efficient(query: Any, key: Any, value: Any) -> bool:
    step, size = 4 if query.dtype == torch.float32 else _MULTIPLE, query.shape[-1]
    is_aligned = query.dim() == 4 and size == key.shape[-1] and size % step == value.shape[-1] % step == 0
    return bool(torch.backends.cuda.mem_efficient_sdp_enabled() and query.dtype in (*_HALF, torch.float32) and is_aligned)


def _added(mask: Any, query: Any) -> Any:
    """A mask in the form that is added to the scores."""
    if mask.dtype != torch.bool:
        return mask
    zero, low = (torch.scalar_tensor(value, dtype=query.dtype, device=query.device) for value in (0.0, float("-inf")))
    return torch.where(mask, zero, low)


def _network(
    kind: str, input: Any, hx: Any, params: Any, has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
    batch_first: bool, batch_sizes: Sequence[int] = (),
) -> Any:  # fmt: skip
    """A recurrent network on a batch of sequences of one length, or on packed ones: batch_sizes says how many are left at each moment."""
    states = list(hx) if kind == "lstm" else [hx, None]
    hidden, projected = params[1].shape[1], 0
    if kind == "lstm" and states[1].shape[-1] != states[0].shape[-1]:
        hidden, projected = states[1].shape[-1], states[0].shape[-1]
    masks = torch.empty(0, dtype=torch.uint8, device=input.device) if dropout and train else None
    out, final, cell, _, _ = torch.ops.aten._cudnn_rnn(
        input, params, 4 if has_biases else 2, params[0].new_empty(0), states[0], states[1], _MODES[kind], hidden, projected,
        num_layers, batch_first, dropout, train, bidirectional, list(batch_sizes), masks,
    )  # fmt: skip
    return (out, final, cell) if kind == "lstm" else (out, final)


def _packed(
    kind: str, data: Any, batch_sizes: Any, hx: Any, params: Any, has_biases: bool, layers: int, dropout: float, train: bool, both: bool
) -> Any:
    return _network(kind, data, hx, params, has_biases, layers, dropout, train, both, False, batch_sizes.tolist())


def lengths(mode: Any, given: Any, longest: int) -> Any:
    """The lengths of a batch of sequences, as a tensor with data; where they come from the device, each is as long as the longest."""
    if not isinstance(given, FakeTensor) or mode.known.has(given):
        return mode.known.copied(given) if isinstance(given, FakeTensor) else given
    mode.journal.assume("stand-in-lengths", "sequences whose lengths come from the device are all as long as the longest")
    with mode.aside(hidden=True):
        return torch.full(tuple(given.shape), longest, dtype=given.dtype)
