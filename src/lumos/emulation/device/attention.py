"""Operators that compute attention in one kernel, by the kernel that torch has chosen for them.

torch chooses before it calls, so the name of the operator says which kernel runs. Flash kernels of torch are FlashAttention 2; the
memory-efficient ones are as fast as FlashAttention 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lumos.blocks.work import Attention, Gemm
from lumos.cost.attention_model import HEAD_SIZES
from lumos.emulation.device.launch import Launch, tensors_of
from lumos.emulation.device.products import arithmetic
from lumos.vocabulary import AttentionKernel, Direction

if TYPE_CHECKING:
    from lumos.cost.cluster import Accelerator
    from lumos.emulation.record import Operator, Tensor


class _Form(NamedTuple):
    """How an operator is called. query: position of the query among its tensors; key and value follow. heads_first: whether the
    dimension of heads comes before that of the sequence. causal: which of its truth values says that the mask is causal; None where the
    whole number after the dropout probability does."""

    kernel: AttentionKernel
    direction: Direction
    query: int
    heads_first: bool
    causal: int | None


_FORWARD, _BACKWARD = Direction.FORWARD, Direction.BACKWARD
_FLASH, _EFFICIENT, _CUDNN = AttentionKernel.FA2, AttentionKernel.FA1, AttentionKernel.CUDNN
_FORMS = {
    "_scaled_dot_product_flash_attention": _Form(_FLASH, _FORWARD, 0, True, 0),
    "_scaled_dot_product_flash_attention_backward": _Form(_FLASH, _BACKWARD, 1, True, 0),
    "_flash_attention_forward": _Form(_FLASH, _FORWARD, 0, False, 0), "_flash_attention_backward": _Form(_FLASH, _BACKWARD, 1, False, 0),
    "_scaled_dot_product_efficient_attention": _Form(_EFFICIENT, _FORWARD, 0, True, 1),
    "_scaled_dot_product_efficient_attention_backward": _Form(_EFFICIENT, _BACKWARD, 1, True, 0),
    "_efficient_attention_forward": _Form(_EFFICIENT, _FORWARD, 0, False, None),
    "_efficient_attention_backward": _Form(_EFFICIENT, _BACKWARD, 1, False, None),
    "_scaled_dot_product_cudnn_attention": _Form(_CUDNN, _FORWARD, 0, True, 1),
    "_scaled_dot_product_cudnn_attention_backward": _Form(_CUDNN, _BACKWARD, 1, True, 0),
    "_cudnn_attention_forward": _Form(_CUDNN, _FORWARD, 0, True, 1), "_cudnn_attention_backward": _Form(_CUDNN, _BACKWARD, 1, True, 0),
    "_scaled_dot_product_fused_attention_overrideable": _Form(_FLASH, _FORWARD, 0, True, 0),
    "_scaled_dot_product_fused_attention_overrideable_backward": _Form(_FLASH, _BACKWARD, 1, True, 0),
    "_scaled_dot_product_flash_attention_for_cpu": _Form(_FLASH, _FORWARD, 0, True, 0),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _Form(_FLASH, _BACKWARD, 1, True, 0),
}  # fmt: skip


def fused_attention(name: str, operator: Operator, accelerator: Accelerator) -> list[Launch] | None:
    """What an attention operator of this base name launches; None where it is none or its shapes are not of one."""
    form = _FORMS.get(name)
    if form is None:
        return None
    tensors = list(tensors_of(operator.inputs))[form.query : form.query + 3]
    dtype = arithmetic(tensors[0].dtype, accelerator, operator.tf32) if tensors else None
    if dtype is None or len(tensors) < 3 or any(len(t.shape) != 4 for t in tensors):
        return None
    work = _work(form, operator, *tensors)._replace(dtype=dtype)
    label = f"{form.kernel}_{form.direction}_kernel"
    if max(work.head_dim, work.value_dim) <= HEAD_SIZES[-1]:
        return [Launch(f"flash_{label}", work)]
    batch = work.batch * work.heads
    parts = [Gemm(work.queries, work.keys, work.head_dim, dtype, batch), Gemm(work.queries, work.value_dim, work.keys, dtype, batch)]
    return [Launch(f"gemm_{dtype} [{label}]", part) for part in parts * (1 if form.direction is _FORWARD else 2)]


def _work(form: _Form, operator: Operator, query: Tensor, key: Tensor, value: Tensor) -> Attention:
    heads, length = (1, 2) if form.heads_first else (2, 1)
    return Attention(
        query.shape[0], query.shape[length], key.shape[length], query.shape[heads], min(key.shape[heads], query.shape[heads]),
        query.shape[3], value.shape[3], _causal(form, operator), form.direction, form.kernel,
    )  # fmt: skip


def _causal(form: _Form, operator: Operator) -> bool:
    if form.causal is None:
        after = iter(operator.inputs)
        any(isinstance(argument, float) for argument in after)  # goes past the first one
        return bool(next((argument for argument in after if isinstance(argument, int) and not isinstance(argument, bool)), 0))
    flags = [argument for argument in operator.inputs if isinstance(argument, bool)]
    return form.causal < len(flags) and flags[form.causal]
