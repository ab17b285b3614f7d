"""The work of one transformer layer on one rank: forward, backward and recomputation, as blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumos.blocks.block import Block, Builder, Op
from lumos.blocks.experts import ExpertParts
from lumos.blocks.work import Gemm, RankStream, Traffic
from lumos.vocabulary import CollectiveKind, Recompute, Selective

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.blocks.share import Share


class LayerWork(ExpertParts):
    """Makes the blocks of one rank's part of a layer. mixture: whether the layer has experts."""

    def __init__(self, share: Share) -> None:
        super().__init__(share)
        #: By (mixture, recompute); the halves of a split backward pass are taken from these.
        self._backward: dict[tuple[bool, bool], Block] = {}

    # ---------------------------------------------------------------- passes

    def forward(self, mixture: bool) -> Block:
        b = self._builder("layer forward", self.framework.layer_us)
        self._attention_forward(b)
        self._mlp_forward(b, mixture)
        return b.build()

    def backward(self, mixture: bool, recompute: bool) -> Block:
        """The backward pass; with `recompute`, the forward pass runs again first."""
        key = mixture, recompute
        if key not in self._backward:
            self._backward[key] = self._whole_backward(mixture, recompute)
        return self._backward[key]

    def _whole_backward(self, mixture: bool, recompute: bool) -> Block:
        extra = self.framework.checkpoint_us if recompute else 0.0
        b = self._builder("layer backward", self.framework.layer_us + extra)
        if recompute:
            self._attention_forward(b)
            self._mlp_forward(b, mixture)
        elif self.share.plan.recompute is Recompute.SELECTIVE and self.framework.selective is Selective.ALTERNATE:
            self._alternate_forward(b)
        elif self.share.plan.recompute is Recompute.SELECTIVE and self.framework.selective is Selective.LIGHT:
            self._light_forward(b, mixture)
        self._mlp_backward(b, mixture)
        self._attention_backward(b)
        return b.build()

    def inputs(self, mixture: bool, recompute: bool) -> Block:
        """The backward pass without the weight gradients (zero-bubble schedules)."""
        whole = self.backward(mixture, recompute)
        return without(whole, "layer input gradients", lambda op: _is_weight(op.name))

    def weights(self, mixture: bool) -> Block:
        """The weight gradients alone."""
        gradients = [op for op in self.backward(mixture, False).ops if _is_weight(op.name)]
        b = self._builder("layer weight gradients", self.framework.layer_us)
        for op in gradients:
            b.add(op.name, op.work)
        return b.build()

    # ---------------------------------------------------------------- attention

    def _attention_forward(self, b: Builder) -> None:
        s = self.share
        self.norm_forward(b, s.residual_tokens)
        if s.model.latent is not None:
            self._latent_forward(b)
        else:
            self.column_forward(b, "qkv", *self.qkv())
            self._adapter_forward(b)
            if s.model.qk_norm:
                self.norm_forward(b, s.tokens, (s.heads + s.kv_heads) * s.model.head_dim)
            self._rotary(b)
        self.scores_forward(b)
        self.row_forward(b, "projection", s.model.attention_width // s.plan.tp)
        self.residual_forward(b, s.residual_tokens)

    def _attention_backward(self, b: Builder) -> None:
        s = self.share
        self.residual_backward(b, s.residual_tokens)
        self.row_backward(b, "projection", s.model.attention_width // s.plan.tp, s.model.bias)
        self.scores_backward(b)
        if s.model.latent is not None:
            self._latent_backward(b)
        else:
            self._rotary(b)
            if s.model.qk_norm:
                self.norm_backward(b, s.tokens, (s.heads + s.kv_heads) * s.model.head_dim)
            self._adapter_backward(b)
            self.column_backward(b, "qkv", s.model.bias or s.model.qkv_bias, *self.qkv())
        self.norm_backward(b, s.residual_tokens)

    def _adapter_forward(self, b: Builder) -> None:
        """LoRA adapters of queries, keys and values (Hu et al. 2021, arXiv:2106.09685): project down, up, and add to the output."""
        s, rank, wide = self.share, self.share.plan.lora_rank, sum(self.qkv())
        if rank:
            b.add("adapter down", Gemm(s.tokens, rank, s.model.hidden, self.unquantised_dtype, out_bytes=self.width))
            b.add("adapter up", Gemm(s.tokens, wide, rank, self.unquantised_dtype, out_bytes=self.width))
            b.add("adapter add", Traffic(3 * self.width * s.tokens * wide))

    def _adapter_backward(self, b: Builder) -> None:
        s, rank, wide = self.share, self.share.plan.lora_rank, sum(self.qkv())
        if rank:
            for name, n, k in (("up", wide, rank), ("down", rank, s.model.hidden)):
                b.add(f"adapter {name} input gradient", Gemm(s.tokens, k, n, self.unquantised_dtype, out_bytes=self.width))
                b.add(f"adapter {name} weight gradient", Gemm(k, n, s.tokens, self.unquantised_dtype, out_bytes=self.width))
            b.add("gradient add", Traffic(3 * self.width * s.tokens * s.model.hidden))

    def _rotary(self, b: Builder) -> None:
        s = self.share
        if s.model.positions != "rope":
            return
        elements = s.tokens * (s.heads + s.kv_heads) * s.model.head_dim
        if self.eager:  # swap halves, two products, a sum, in fp32, and cast back
            b.add("rotary", Traffic(24 * elements, 6))
        else:
            b.add("rotary", Traffic(2 * self.width * elements, 2, "strided"))

    def _latent_forward(self, b: Builder) -> None:
        """Multi-head latent attention: compressed projections, the same on every rank of the tensor group, then this rank's heads."""
        s, m = self.share, self.share.model.latent
        assert m is not None
        tokens, h = s.residual_tokens, s.model.hidden
        if m.query_rank:
            self.linear_forward(b, "query down", tokens, m.query_rank, h)
            self.norm_forward(b, tokens, m.query_rank)
            self.gather_input(b)
            self.linear_forward(b, "query up", s.tokens, s.heads * (m.nope + m.rope), m.query_rank)
        else:
            self.column_forward(b, "query", s.heads * (m.nope + m.rope))
        self.linear_forward(b, "kv down", tokens, m.kv_rank + m.rope, h)
        self.norm_forward(b, tokens, m.kv_rank)
        self.linear_forward(b, "kv up", s.tokens, s.heads * (m.nope + m.value), m.kv_rank)
        b.add("rotary and concatenate", Traffic(2 * self.width * s.tokens * s.heads * (2 * (m.nope + m.rope) + m.value), 5))

    def _latent_backward(self, b: Builder) -> None:
        s, m = self.share, self.share.model.latent
        assert m is not None
        tokens, h = s.residual_tokens, s.model.hidden
        b.add("rotary and split", Traffic(2 * self.width * s.tokens * s.heads * (2 * (m.nope + m.rope) + m.value), 5))
        self.linear_backward(b, "kv up", s.tokens, s.heads * (m.nope + m.value), m.kv_rank)
        self.norm_backward(b, tokens, m.kv_rank)
        self.linear_backward(b, "kv down", tokens, m.kv_rank + m.rope, h)
        if m.query_rank:
            self.linear_backward(b, "query up", s.tokens, s.heads * (m.nope + m.rope), m.query_rank)
            if s.plan.tp > 1 and s.plan.sequence_parallel:
                b.add("tp reduce-scatter", s.tensor(CollectiveKind.REDUCE_SCATTER, self.width * s.tokens * m.query_rank), RankStream.TENSOR)
            self.norm_backward(b, tokens, m.query_rank)
            self.linear_backward(b, "query down", tokens, m.query_rank, h)
        else:
            self.column_backward(b, "query", False, s.heads * (m.nope + m.rope))
        b.add("gradient add", Traffic(3 * self.width * tokens * h))

    # ---------------------------------------------------------------- MLP

    def _mlp_forward(self, b: Builder, mixture: bool) -> None:
        s = self.share
        self.norm_forward(b, s.residual_tokens)
        if mixture:
            self.experts_forward(b)
        else:
            self.column_forward(b, "mlp up", *self.up_widths(s.ffn))
            self.activation(b, s.tokens * s.ffn)
            self.row_forward(b, "mlp down", s.ffn)
        self.residual_forward(b, s.residual_tokens)

    def _mlp_backward(self, b: Builder, mixture: bool) -> None:
        s = self.share
        self.residual_backward(b, s.residual_tokens)
        if mixture:
            self.experts_backward(b)
        else:
            self.row_backward(b, "mlp down", s.ffn, s.model.bias)
            self.activation_backward(b, s.tokens * s.ffn)
            self.column_backward(b, "mlp up", s.model.bias, *self.up_widths(s.ffn))
        self.norm_backward(b, s.residual_tokens)

    # ---------------------------------------------------------------- selective recomputation

    def _alternate_forward(self, b: Builder) -> None:
        """torchtitan's selective checkpointing: attention and every second multiplication are kept, the rest is computed again."""
        s = self.share
        self.norm_forward(b, s.residual_tokens)
        self.gather_input(b, self._gathers_fp8("projection"))
        self._rotary(b)
        self.linear_forward(b, "projection again", s.tokens, s.model.hidden, s.model.attention_width // s.plan.tp)
        self.residual_forward(b, s.residual_tokens)
        self.norm_forward(b, s.residual_tokens)
        self.gather_input(b, self._gathers_fp8("projection"))
        self.linear_forward(b, "mlp up again", s.tokens, s.ffn, s.model.hidden)
        self.activation(b, s.tokens * s.ffn)

    def _light_forward(self, b: Builder, mixture: bool) -> None:
        """What costs little is computed again: norms, up-projections of latent attention, activations (DeepSeek-V3, arXiv:2412.19437,
        sections 3.2.3 and 3.3.3; Megatron Core's --recompute-modules layernorm mla_up_proj moe_act)."""
        s, m, e = self.share, self.share.model.latent, self.share.model.experts
        self.norm_forward(b, s.residual_tokens)
        self.norm_forward(b, s.residual_tokens)
        if m is not None:
            if m.query_rank:
                self.linear_forward(b, "query up again", s.tokens, s.heads * (m.nope + m.rope), m.query_rank)
            self.linear_forward(b, "kv up again", s.tokens, s.heads * (m.nope + m.value), m.kv_rank)
        if mixture and e is not None:
            self.activation(b, s.residual_tokens * e.per_token * e.ffn + s.tokens * e.shared_ffn // s.plan.tp)
        else:
            self.activation(b, s.tokens * s.ffn)


def _is_weight(name: str) -> bool:
    return name.endswith(("weight gradient", "bias gradient", "accumulate"))


def without(block: Block, name: str, dropped: Callable[[Op], bool]) -> Block:
    """The block without some of its ops. An op that waited for a dropped one waits for what that one waited for."""
    remaining: list[Op] = []
    stand_ins: dict[int, tuple[int, ...]] = {}
    for i, op in enumerate(block.ops):
        after = tuple(sorted({p for a in op.after for p in stand_ins[a]}))
        if dropped(op):
            stand_ins[i] = after
        else:
            stand_ins[i] = (len(remaining),)
            remaining.append(replace(op, after=after))
    return Block(name, tuple(remaining), tuple(sorted({p for e in block.last_ops for p in stand_ins[e]})), block.before)
