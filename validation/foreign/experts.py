"""Experts on several ranks: every rank has some of them, and sends each token to the ranks that have its experts, in the manner of
torchtitan and of Tutel.

Tokens are sorted by expert, exchanged by `all_to_all_single`, taken through this rank's experts by the code of `transformers`, and
exchanged back. Which tokens go where is not known on fake tensors: every expert gets equally many, and the numbers that ranks would tell
each other first are left out. Gradients of experts are summed over the ranks that have the same ones, during the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single, wait_tensor
from torch.distributed.device_mesh import DeviceMesh
from transformers.models.mixtral.modeling_mixtral import MixtralExperts
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts


class _Exchanged(torch.autograd.Function):
    """As many rows from every rank as go to it; their gradients take the same way back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        even = [len(rows) // group.size()] * group.size()
        return wait_tensor(all_to_all_single(rows.contiguous(), even, even, group))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _Exchanged.apply(gradient, ctx.group), None


class _Sent(nn.Module):
    """The experts of a rank, for the tokens of all ranks of a group."""

    def __init__(self, experts: Any, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.experts, self.group = experts, group
        own = experts.num_experts // group.size()
        experts.num_experts = own
        for name in ("gate_up_proj", "down_proj"):
            whole = getattr(experts, name)
            part = torch.empty(own, *whole.shape[1:], dtype=whole.dtype)
            setattr(experts, name, nn.Parameter(part))

    def forward(self, tokens: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        chosen = index.shape[-1]
        by_expert, order = torch.sort(index.reshape(-1))
        sent = tokens[order // chosen]
        received = _Exchanged.apply(sent, self.group)
        local = (by_expert % self.experts.num_experts).unsqueeze(-1)
        done = self.experts(received, local, torch.ones_like(local, dtype=weights.dtype))
        back = _Exchanged.apply(done, self.group)
        weighed = back * weights.reshape(-1)[order].unsqueeze(-1)
        return torch.zeros_like(tokens).index_add_(0, order // chosen, weighed.to(tokens.dtype))


def expert_parallel(module: nn.Module, experts: DeviceMesh, replicas: DeviceMesh | None) -> list[str]:
    """Let the ranks of `experts` have a part of the experts each; `replicas` have the same ones, and sum their gradients. Returns the
    names of the parameters of experts."""
    for part in list(module.modules()):
        for name, child in list(part.named_children()):
            if isinstance(child, (MixtralExperts, Qwen3MoeExperts)):
                setattr(part, name, _Sent(child, experts.get_group()))
    found = {name: each for name, each in module.named_parameters() if ".experts.experts." in name}

    def summed(each: Tensor) -> None:
        assert replicas is not None
        dist.all_reduce(each.grad, group=replicas.get_group(), async_op=True)

    for each in found.values() if replicas is not None else ():
        each.register_post_accumulate_grad_hook(summed)
    return list(found)
