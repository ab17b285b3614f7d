"""GPT with Megatron-Core's own layers (package `megatron-core`, whose layers of plain PyTorch are taken, without Transformer Engine).

Its code asks for the process groups that it made itself, and for the device by its number in `torch.cuda`. Here they are those of the
job's mesh, and the device is that of fake tensors. What its compiler would fuse it runs operator by operator.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from validation.foreign.model import Model, tokens
from validation.foreign.nodes import ALONE
from validation.foreign.streams import note


class _Rooted(nn.Module):
    """A model on the tokens of a batch, with their labels, positions and the mask of what each may not see; the mean of its losses."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, read: Tensor, wanted: Tensor, places: Tensor, hidden: Tensor) -> Tensor:
        out: Tensor = self.model(read, places, hidden, labels=wanted).float().mean()
        return out

    def gradient_checkpointing_enable(self, **_: Any) -> None:
        """Let every layer run again in the backward pass, by Megatron-Core's own checkpoints."""
        config = self.model.config
        config.recompute_granularity, config.recompute_method, config.recompute_num_layers = "full", "uniform", 1


def megatron_gpt(layers: int, hidden: int, heads: int, ffn: int, micro_batch: int, seq: int, tensor: int = 1) -> Model:
    """GPT with learned positions, causal, of the type bf16. tensor: ranks that share the layers."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        ffn_hidden_size=ffn,
        tensor_model_parallel_size=tensor,
        params_dtype=torch.bfloat16,
        bf16=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        perform_initialization=False,
        gradient_accumulation_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
    )
    with _on_the_host():
        _groups(tensor)
        spec = get_gpt_layer_local_spec()
        module = GPTModel(config, spec, 50_304, max(seq, 1024), share_embeddings_and_output_weights=False)

    def batch() -> tuple[Tensor, ...]:
        unseen = torch.ones(1, 1, seq, seq).tril() < 0.5
        return tokens(micro_batch, seq), tokens(micro_batch, seq), torch.arange(seq).expand(micro_batch, seq).contiguous(), unseen

    return Model(_Rooted(module), batch, lambda m, b: m(*b), _on_the_host)


@contextmanager
def _on_the_host() -> Iterator[None]:
    """Let Megatron-Core take the host for its device, on which no random numbers are drawn; where it waits for a collective that it has
    begun, it leaves a note."""
    from megatron.core.tensor_parallel import random

    begin = dist.all_reduce

    def all_reduce(*args: Any, **kwargs: Any) -> Any:
        work = begin(*args, **kwargs)
        return _Noted(work) if work is not None else None

    with (
        patch.multiple(torch.cuda, current_device=lambda: "cpu", current_stream=lambda *_: None),
        patch.multiple(random, _get_cuda_rng_state=lambda **_: None, _set_cuda_rng_state=lambda *_, **__: None),
        patch.object(dist, "all_reduce", all_reduce),
    ):
        yield


class _Noted:
    """A collective that is under way."""

    def __init__(self, work: Any) -> None:
        self.work = work

    def wait(self) -> None:
        self.work.wait()
        note("arrived")


def _groups(tensor: int) -> None:
    """Megatron-Core's process groups, which are called as those of the mesh of the job; and its way to draw random numbers, of which none
    are drawn."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import random

    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(tensor, create_gloo_process_groups=False)
    parallel_state.get_tensor_model_parallel_group()._set_group_desc("mesh_tp" if tensor > 1 else ALONE)
    random.initialize_rng_tracker(inference_rng_tracker=True, force_reset=True)


__all__ = ["megatron_gpt"]
