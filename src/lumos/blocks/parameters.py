"""How many parameters one rank holds, and of how many it keeps optimizer states.

Sizes of a plan (tp, ep, shards, …) are numbers, or columns of many plans at once (int64[plans]): the same formulas hold for both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lumos.blocks.share import Share
from lumos.model import Model
from lumos.plan.plan import Ends, ends_of_stage

#: A number of parameters: of one plan, or of every plan of a column.
Count = TypeVar("Count", int, NDArray[np.int64])


class Held(NamedTuple, Generic[Count]):
    """Parameters on one rank. dense: all but the routed experts; every data-parallel replica has them. experts: those of the routed
    experts on this rank, of which there are ep times fewer replicas."""

    dense: Count
    experts: Count

    @property
    def total(self) -> Count:
        return self.dense + self.experts


def tensors_of_layer(model: Model) -> int:
    """Parameter tensors of a layer: norms, attention, MLP, and their biases."""
    weights = 2 + (6 if model.latent else 4) + (3 if model.gated else 2)
    return weights + (6 if model.bias else 0) + (2 if model.norm_bias else 0)


def layer_parameters(model: Model, mixture: bool, tp: Count, ep: Count) -> Held[Count]:
    """One layer's. Matrices are split over the tensor-parallel ranks, norms are not, whole experts go to the expert-parallel ones."""
    p = model.layer_parameters(mixture)
    return Held(-(-(p.attention + p.mlp) // tp) + p.norm, p.expert // ep)


def held_parameters(model: Model, layers: Mapping[bool, int], ends: Ends, stages: int, tp: Count, ep: Count) -> Held[Count]:
    """Those of one of `stages` pipeline stages. layers: how many it has, by whether they are mixtures."""
    dense, experts = 0 * tp, 0 * ep
    for mixture, count in layers.items():
        each = layer_parameters(model, mixture, tp, ep)
        dense, experts = dense + count * each.dense, experts + count * each.experts
    if ends.first:
        dense = dense - (-model.embedding_parameters // tp)
    if ends.last:
        dense = dense + model.norm_parameters
        if not model.tied or stages > 1:
            dense = dense - (-model.vocab * model.hidden // tp)
    return Held(dense, experts)


def stage_parameters(share: Share, stage: int, chunks: list[list[range]]) -> Held[int]:
    """Those of one rank of a stage. chunks: as `layers_of_chunks` has them."""
    plan = share.plan
    layers = Counter(share.model.is_mixture(layer) for chunk in chunks[stage] for layer in chunk)
    return held_parameters(share.model, layers, ends_of_stage(plan.schedule, plan.pp, stage), plan.pp, plan.tp, plan.ep)


def sharded_parameters(held: Held[Count], shards: Count, expert_shards: Count) -> Count:
    """What one rank keeps of `held` where it is spread over that many ranks."""
    return -(-held.dense // shards) - (-held.experts // expert_shards)


def owned_parameters(share: Share, held: Held[int]) -> int:
    """Parameters whose optimizer states one rank holds."""
    plan = share.plan
    if plan.zero == 0:
        return held.total
    copies = plan.dp * plan.cp // plan.ep
    return sharded_parameters(held, plan.shards, max(1, min(copies, plan.shards)))


def bucket_layers(share: Share, mixture: bool, most: int) -> int:
    """Layers whose gradients are exchanged together: as many as fill a bucket, at least one and at most `most`."""
    each = layer_parameters(share.model, mixture, share.plan.tp, share.plan.ep).total * share.framework.reduce_bytes
    return max(1, min(most, round(share.framework.bucket_bytes / max(each, 1))))
