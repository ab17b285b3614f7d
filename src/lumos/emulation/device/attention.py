"""Operators that compute attention in one kernel, by the kernel that torch has chosen for them.

torch chooses before it calls, so the name of the operator says which kernel runs. Flash kernels of torch are FlashAttention 2; the
memory-efficient ones are as fast as FlashAttention 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.blocks.work import Attention, Gemm
from lumos.cost.attention_model import HEAD_SIZES
from lumos.emulation.device.launch import Launch, shaped_operator, tensors_of
from lumos.emulation.device.products import arithmetic
from lumos.operators.shaped import attention_of
from lumos.operators.table import argument_places
from lumos.vocabulary import AttentionKernel, Direction

if TYPE_CHECKING:
    from lumos.cost.cluster import Accelerator
    from lumos.emulation.record import Operator


#: By a word of the name: the kernel that runs.
_KERNELS = {"efficient": AttentionKernel.FA1, "cudnn": AttentionKernel.CUDNN}


def fused_attention(name: str, operator: Operator, accelerator: Accelerator) -> list[Launch] | None:
    """What an attention operator of this base name launches; None where it is none or its shapes are not of one."""
    sizes = attention_of(operator.name, shaped_operator(operator).shapes)
    given = next(iter(tensors_of(operator.inputs)), None)
    dtype = arithmetic(given.dtype, accelerator, operator.tf32) if given is not None else None
    if sizes is None or dtype is None:
        return None
    batch, heads, kv_heads, queries, keys, width, value_width = sizes
    direction = Direction.BACKWARD if "backward" in name else Direction.FORWARD
    kernel = next((kernel for word, kernel in _KERNELS.items() if word in name), AttentionKernel.FA2)
    work = Attention(
        batch, queries, keys, heads, min(kv_heads, heads), width, value_width, _causal(name, operator), direction, kernel, dtype=dtype
    )
    label = f"{kernel}_{direction}_kernel"
    if max(width, value_width) <= HEAD_SIZES[-1]:
        return [Launch(f"flash_{label}", work)]
    parts = [Gemm(queries, keys, width, dtype, batch * heads), Gemm(queries, value_width, keys, dtype, batch * heads)]
    return [Launch(f"gemm_{dtype} [{label}]", part) for part in parts * (1 if direction is Direction.FORWARD else 2)]


def _causal(name: str, operator: Operator) -> bool:
    """Whether the mask is causal: as an operator's argument says, which some have as the number of a kind of mask, 0 for none."""
    settings = argument_places(name)
    place = settings.get("is_causal", settings.get("custom_mask_type", len(operator.inputs)))
    return place < len(operator.inputs) and bool(operator.inputs[place])
