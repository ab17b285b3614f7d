"""Sizes of one rank's share of a model under a plan, how its process groups lie in the cluster, how many parameters the rank holds, and
for how many it keeps optimizer states.

In what counts parameters, sizes of a plan (tp, ep, shards, …) are either numbers, or columns with one entry per plan (int64[plans]).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lumos.blocks.work import Collective
from lumos.cost.collective_model import laid
from lumos.plan.plan import OuterParts, outer_parts
from lumos.vocabulary import CollectiveKind, DType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumos.model import Model
    from lumos.plan.framework import Framework
    from lumos.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's share of a pass of one microbatch.

    tokens: of the microbatch on this rank, which is its context-parallel part. residual_tokens: tokens of the residual stream,
    fewer with sequence parallelism. heads, kv_heads, ffn, vocab: this rank's part.
    """

    model: Model
    plan: Plan
    framework: Framework
    devices_per_node: int

    @property
    def dtype(self) -> DType:
        return self.plan.precision.multiplications

    @property
    def activation_bytes(self) -> int:
        return self.plan.precision.activation_bytes

    @property
    def parameter_bytes(self) -> int:
        """Bytes of one parameter as it is gathered from its shards."""
        return 1 if self.dtype.quantised and self.framework.fp8_gather else self.activation_bytes

    @property
    def tokens(self) -> int:
        return self.plan.micro_batch * (self.plan.seq_len // self.plan.cp)

    @property
    def residual_tokens(self) -> int:
        return -(-self.tokens // self.plan.tp) if self.plan.sequence_parallel else self.tokens

    @property
    def heads(self) -> int:
        return self.model.heads // self.plan.tp

    @property
    def kv_heads(self) -> int:
        return max(1, self.model.kv_heads // self.plan.tp)

    @property
    def ffn(self) -> int:
        return self.model.ffn // self.plan.tp

    @property
    def vocab(self) -> int:
        """This rank's rows of the token table; with tensor parallelism the table is padded to a multiple of 128 · tp as in Megatron."""
        part = 128 * self.plan.tp
        return -(-self.model.vocab // part) * 128 if self.plan.tp > 1 else self.model.vocab

    @property
    def experts(self) -> int:
        """Routed experts on this rank."""
        return (self.model.experts.count // self.plan.ep) if self.model.experts else 0

    # ---- collectives over groups, which lie innermost first: tensor, context, data, pipeline ----

    def tensor(self, kind: CollectiveKind, size: int) -> Collective:
        """A collective over the tensor-parallel group."""
        return self._group(kind, self.plan.tp, 1, size)

    def context(self, kind: CollectiveKind, size: int) -> Collective:
        return self._group(kind, self.plan.cp, self.plan.tp, size)

    def expert(self, kind: CollectiveKind, size: int) -> Collective:
        return self._group(kind, self.plan.ep, 1 if self.plan.folded else self.plan.tp, size)

    def shards(self, kind: CollectiveKind, size: int) -> Collective:
        """A collective over the devices that share one set of shards."""
        return self._group(kind, self.plan.shards, self.plan.tp, size)

    def replicas(self, kind: CollectiveKind, size: int) -> Collective:
        """A collective over the devices that hold the same shard (hybrid sharding)."""
        count = self.plan.dp * self.plan.cp // self.plan.shards
        return self._group(kind, count, self.plan.tp * self.plan.shards, size)

    def data(self, kind: CollectiveKind, size: int) -> Collective:
        """A collective over all replicas of the dense layers: data and context parallel together."""
        return self._group(kind, self.plan.dp * self.plan.cp, self.plan.tp, size)

    def expert_data(self, kind: CollectiveKind, size: int) -> Collective:
        """A collective over the replicas of one rank's experts."""
        stride = self.plan.ep if self.plan.folded else self.plan.tp * self.plan.ep
        return self._group(kind, self.plan.expert_replicas, stride, size)

    def pipeline(self, size: int) -> Collective:
        """One transfer to the next pipeline stage."""
        return self._group(CollectiveKind.SEND_RECEIVE, 2, self.plan.tp * self.plan.cp * self.plan.dp, size)

    def _group(self, kind: CollectiveKind, ranks: int, stride: int, size: int) -> Collective:
        return Collective(kind, ranks, size, *laid(ranks, stride, self.devices_per_node))


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
