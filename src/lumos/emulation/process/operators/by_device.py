"""Operators whose kernels torch chooses by the device: attention, and recurrent networks, of which it asks cuDNN in one call; and the
kernels of Triton that are a script's own.

The rule for attention is that of `sdp::select_sdp_backend` in ATen/native/transformers/cuda/sdp_utils.cpp with torch's default order: flash
attention where it can, memory-efficient attention where that can, else the plain formula. A build without the device cannot be asked.

Each launch of a script's own kernel is an operator of the kernel's name, given the tensors that the kernel is given. Nothing is compiled.
Such an operator is priced by the memory that it is given, each tensor once, and a note names it. A kernel that is tuned takes the first of
its configurations, since all are equally fast here.
"""

from __future__ import annotations

import importlib
import types
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from lumos.collect.loading import when_loaded
from lumos.emulation.process.operators.known import tensors_in
from lumos.emulation.process.patches import TORCH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.emulation.process.settings import Device

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
                moments, letters = (counts.reshape(-1).tolist() for counts in asked)
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
    if len({tensor.dtype for tensor in (query, key, value)}) > 1:
        raise RuntimeError(f"query, key and value must have the same dtype, but got {query.dtype}, {key.dtype} and {value.dtype}")
    if not enable_gqa:
        torch.broadcast_shapes(*(tensor.shape[:-2] for tensor in (query, key, value)))  # raises where they do not go together
    if _is_for_flash(query, key, value, attn_mask, enable_gqa):
        scale = size**-0.5 if scale is None else scale
        missing = -size % _MULTIPLE
        if missing:
            query, key, value = (torch.nn.functional.pad(tensor, (0, missing)) for tensor in (query, key, value))
        out = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
        return out[..., :size] if missing else out
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        key, value = (tensor.repeat_interleave(query.shape[-3] // tensor.shape[-3], -3) for tensor in (key, value))
    if _is_for_efficient(query, key, value):
        mask = None if attn_mask is None else _added(attn_mask, query).expand(*query.shape[:3], key.shape[2])
        keeps = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
        return aten._scaled_dot_product_efficient_attention(query, key, value, mask, keeps, dropout_p, is_causal, scale=scale)[0]
    return aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)[0]


def _is_for_flash(query: Any, key: Any, value: Any, mask: Any, enable_gqa: bool = True) -> bool:
    is_alike = query.dim() == 4 and query.shape[-1] == key.shape[-1] == value.shape[-1] <= _LARGEST_HEAD
    can = mask is None and query.dtype in _HALF and is_alike and _go_together(query, key, value, enable_gqa)
    return bool(torch.backends.cuda.flash_sdp_enabled() and can)


def _go_together(query: Any, key: Any, value: Any, enable_gqa: bool = False) -> bool:
    """Whether a kernel takes such batches and heads, which it does not broadcast."""
    return len({tensor.shape[: 1 if enable_gqa else 2] for tensor in (query, key, value)}) == 1


def _is_for_efficient(query: Any, key: Any, value: Any) -> bool:
    step, size = 4 if query.dtype == torch.float32 else _MULTIPLE, query.shape[-1]
    is_aligned = query.dim() == 4 and size == key.shape[-1] and size % step == value.shape[-1] % step == 0
    can = query.dtype in (*_HALF, torch.float32) and is_aligned and _go_together(query, key, value)
    return bool(torch.backends.cuda.mem_efficient_sdp_enabled() and can)


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
    if torch.is_autocast_enabled("cuda"):  # which has a kernel of its own for cuDNN's networks, on the device
        low = torch.get_autocast_dtype("cuda")
        input, *states = (None if tensor is None else tensor.to(low) for tensor in (input, *states))
        params = [parameter.to(low) for parameter in params]
    masks = torch.empty(0, dtype=torch.uint8, device=input.device) if dropout and train else None
    with torch.autocast("cuda", enabled=False):
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


#: The namespace of these operators.
_NAMESPACE = "triton"


def launch_as_operators(device: Device) -> None:
    """Let the kernels of a script that imports Triton be launched without a device."""

    def launches(module: Any) -> None:
        @TORCH.around(module.JITFunction, "run")
        def run(_: Any, kernel: Any, *args: Any, warmup: bool, **named: Any) -> None:
            given = [tensor for tensor in tensors_in((args, named)) if tensor.is_cuda]
            if given and not warmup:
                with torch.no_grad():
                    _operator(kernel.fn.__name__)(given)

    when_loaded("triton.runtime.jit", launches)
    when_loaded("torch._library.triton", lambda module: setattr(module, "is_wrap_triton_enabled", lambda: False))
    when_loaded("triton.runtime.driver", lambda module: module.driver.set_active(_driver(device)))


@cache
def _operator(name: str) -> Any:
    """The operator that stands for a kernel: it may write into all that it is given, and gives nothing back."""
    torch.library.define(f"{_NAMESPACE}::{name}", "(Tensor(a!)[] given) -> ()")
    torch.library.register_fake(f"{_NAMESPACE}::{name}", lambda _: None)
    return getattr(getattr(torch.ops, _NAMESPACE), name)


def _driver(device: Device) -> Any:
    """What Triton asks its driver, as the emulated device answers it."""
    (major, minor), lanes = device.capability, 64 if device.is_amd else 32
    asked = ("hip", device.architecture) if device.is_amd else ("cuda", 10 * major + minor)
    target = importlib.import_module("triton.backends.compiler").GPUTarget(*asked, lanes)
    properties = {
        "max_shared_mem": 232448, "max_num_regs": 65536, "multiprocessor_count": device.processors, "warpSize": lanes,
        **dict.fromkeys(("sm_clock_rate", "mem_clock_rate", "mem_bus_width"), 1)}  # fmt: skip
    return types.SimpleNamespace(
        is_active=lambda: True, get_current_target=lambda: target, get_current_device=torch.cuda.current_device,
        set_current_device=torch.cuda.set_device, get_current_stream=lambda *_: 0, get_device_interface=lambda: torch.cuda,
        get_device_capability=torch.cuda.get_device_capability, utils=types.SimpleNamespace(get_device_properties=lambda _: properties),
        get_active_torch_device=lambda: torch.device("cuda", torch.cuda.current_device()),
        get_benchmarker=lambda: lambda *_, quantiles=None, **__: [1.0] * len(quantiles) if quantiles else 1.0,
    )  # fmt: skip
