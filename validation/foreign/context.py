"""Attention over a sequence that several ranks share: PyTorch's ring, with the attention that it has on a CPU.

`torch.distributed.tensor.experimental.context_parallel` takes attention of CUDA only, so its ring is called here with the operators of the
CPU: every rank attends with its queries to the keys and values of one rank after the other. These it gathers at the beginning, or sends
around, as `rotation` says; in the backward pass their gradients go around in any case. With causal attention every rank has a part of the
beginning and one of the end of the sequence, so that all have as much to do.

PyTorch takes a script on fake tensors for one that is being traced, and would wait for every exchange as soon as it is issued. On a device
the ring waits where it needs what was exchanged, and so it does here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
from torch import Tensor
from torch.distributed.tensor.experimental._context_parallel import _attention as ring
from torch.nn import functional

_FORWARD: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_BACKWARD: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: dist.ProcessGroup, causal: bool, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out, sums = ring._templated_ring_attention(group, 2, _FORWARD, query, key, value, is_causal=causal)
        ctx.group, ctx.causal = group, causal
        ctx.save_for_backward(query, key, value, out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        query, key, value, out, sums = ctx.saved_tensors
        found = ring._templated_ring_attention_backward(
            ctx.group, 2, _BACKWARD, gradient, "grad_out", query, key, value, out, sums, is_causal=ctx.causal, dropout_p=0.0
        )
        return None, None, *found[:3]


@contextmanager
def shared_sequence(group: dist.ProcessGroup, rotation: str) -> Iterator[None]:
    """While this is in force, attention is causal, over the sequences of all ranks of a group. rotation: "allgather" or "alltoall"."""

    def attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, enable_gqa: bool = False, **__: Any) -> Tensor:
        if enable_gqa:
            times = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        out: Tensor = _Ring.apply(group, True, query, key, value)
        return out

    ring.set_rotate_method(rotation)
    with (
        patch.object(functional, "scaled_dot_product_attention", attention),
        patch.object(ring._cp_options, "enable_load_balance", True),
        patch.object(functional_collectives, "_maybe_wrap_tensor", functional_collectives.AsyncCollectiveTensor),
    ):
        yield
