"""How many parameters one rank holds, and of how many it keeps optimizer states."""

from __future__ import annotations

from lumos.blocks.share import Share
from lumos.model import Model


def tensors_of_layer(model: Model) -> int:
    """Parameter tensors of a layer: norms, attention, MLP, and their biases."""
    weights = 2 + (6 if model.latent else 4) + (3 if model.gated else 2)
    return weights + (6 if model.bias else 0) + (2 if model.norm_bias else 0)


def stage_parameters(share: Share, stage: int, chunks: list[list[range]]) -> tuple[int, int]:
    """Parameters of one rank of a stage, and the routed experts among them."""
    model, plan = share.model, share.plan
    mirrored = plan.schedule == "dualpipe" and stage in (0, plan.pp - 1)
    total = experts = 0
    for chunk in chunks[stage]:
        for layer in chunk:
            p = model.layer_parameters(model.is_mixture(layer))
            total += -(-(p.attention + p.mlp) // plan.tp) + p.norm + p.expert // plan.ep
            experts += p.expert // plan.ep
    if stage == 0 or mirrored:
        total += -(-model.embedding_parameters // plan.tp)
    if stage == plan.pp - 1 or mirrored:
        total += model.norm_parameters
        if not model.tied or plan.pp > 1:
            total += -(-model.vocab * model.hidden // plan.tp)
    return total, experts


def owned_parameters(share: Share, total: int, experts: int) -> int:
    """Parameters whose optimizer states one rank holds."""
    plan = share.plan
    if plan.zero == 0:
        return total
    copies = plan.dp * plan.cp // plan.ep
    return -(-(total - experts) // plan.shards) + -(-experts // max(1, min(copies, plan.shards)))
