"""How many parameters one rank holds, and for how many it keeps optimizer states.

Sizes of a plan (tp, ep, shards, …) are either numbers, or columns with one entry per plan (int64[plans]).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lumos.plan.plan import OuterParts, outer_parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumos.blocks.share import Share
    from lumos.model import Model

#: A number of parameters, of one plan or of each plan in a column.
Count = TypeVar("Count", int, NDArray[np.int64])


class RankParameters(NamedTuple, Generic[Count]):
    """Parameters on one rank. dense: all but the routed experts; every data-parallel replica has them. experts: those of this
    rank's routed experts, which have ep times fewer replicas."""

    dense: Count
    experts: Count

    @property
    def total(self) -> Count:
        return self.dense + self.experts


def tensors_of_layer(model: Model) -> int:
    """How many parameter tensors a layer has: norms, attention, MLP, and their biases."""
    weights = 2 + (6 if model.latent else 4) + (3 if model.gated else 2)
    return weights + (6 if model.bias else 0) + (2 if model.norm_bias else 0)


def layer_parameters(model: Model, mixture: bool, tp: Count, ep: Count) -> RankParameters[Count]:
    """Parameters of one layer on one rank: matrices are split over the tensor-parallel ranks, norms are not; whole experts are
    spread over the expert-parallel ranks."""
    p = model.layer_parameters(mixture)
    return RankParameters(-(-(p.attention + p.mlp) // tp) + p.norm, p.expert // ep)


def held_parameters(
    model: Model, layers: Mapping[bool, int], parts: OuterParts, stages: int, tp: Count, ep: Count
) -> RankParameters[Count]:
    """Parameters of one rank of a pipeline stage, one of `stages`. layers: how many layers the stage has, by whether they have
    experts; parts: what it holds besides layers."""
    dense, experts = 0 * tp, 0 * ep
    for mixture, count in layers.items():
        layer = layer_parameters(model, mixture, tp, ep)
        dense, experts = dense + count * layer.dense, experts + count * layer.experts
    if parts.first:
        dense = dense - (-model.embedding_parameters // tp)
    if parts.last:
        dense = dense + model.norm_parameters
        if not model.tied or stages > 1:
            dense = dense - (-model.vocab * model.hidden // tp)
    return RankParameters(dense, experts)


def stage_parameters(share: Share, stage: int, chunks: list[list[range]]) -> RankParameters[int]:
    """Parameters of one rank of pipeline stage `stage`. chunks: the result of `layers_of_chunks`."""
    plan = share.plan
    layers = Counter(share.model.is_mixture(layer) for chunk in chunks[stage] for layer in chunk)
    return held_parameters(share.model, layers, outer_parts(plan.schedule, plan.pp, stage), plan.pp, plan.tp, plan.ep)


def sharded_parameters(held: RankParameters[Count], shards: Count, expert_shards: Count) -> Count:
    """How many of the `held` parameters one rank keeps if they are spread over that many ranks."""
    return -(-held.dense // shards) - (-held.experts // expert_shards)


def owned_parameters(share: Share, held: RankParameters[int]) -> int:
    """How many parameters one rank keeps optimizer states for."""
    plan = share.plan
    if plan.zero == 0:
        return held.total
    copies = plan.expert_replicas
    return sharded_parameters(held, plan.shards, max(1, min(copies, plan.shards)))


def bucket_parameters(share: Share) -> int:
    """The parameters of the largest bucket in which gradients are reduced, of one rank."""
    model, plan = share.model, share.plan
    most = -(-model.layers // (plan.pp * plan.vpp))
    kinds = {model.is_mixture(i) for i in range(model.layers)}
    return max((bucket_layers(share, kind, most) * layer_parameters(model, kind, plan.tp, plan.ep).total for kind in kinds), default=0)


def bucket_layers(share: Share, mixture: bool, most: int) -> int:
    """How many layers' gradients are reduced together: as many as fill a bucket, from 1 to `most`."""
    layer_bytes = layer_parameters(share.model, mixture, share.plan.tp, share.plan.ep).total * share.framework.reduce_bytes
    return max(1, min(most, round(share.framework.bucket_bytes / max(layer_bytes, 1))))
