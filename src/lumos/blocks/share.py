"""Sizes of one rank's share of a model under a plan, and how its process groups lie in the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumos.blocks.work import Collective
from lumos.cost.collective_model import laid
from lumos.vocabulary import CollectiveKind, DType

if TYPE_CHECKING:
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
