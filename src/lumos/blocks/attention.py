"""The core of attention (scores, softmax, context) on one rank: one fused kernel, a ring of them, or unfused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.blocks.layer_parts import FP32, LayerParts
from lumos.blocks.work import Attention, Gemm, RankStream, Traffic
from lumos.vocabulary import AttentionKernel, CollectiveKind, Direction, Recompute

if TYPE_CHECKING:
    from lumos.blocks.block import Builder


class ScoreWork:
    """Adds the core of a layer's attention to a block."""

    def __init__(self, layer: LayerParts) -> None:
        self.layer = layer
        self.share = layer.share
        self.framework = layer.framework
        self.width = layer.width

    def forward(self, b: Builder) -> None:
        self._scores(b, Direction.FORWARD)

    def backward(self, b: Builder) -> None:
        if self.framework.attention is AttentionKernel.UNFUSED and self.share.plan.recompute is Recompute.SELECTIVE:
            self._unfused_forward(b)
        self._scores(b, Direction.BACKWARD)

    def _scores(self, b: Builder, direction: Direction) -> None:
        s, plan = self.share, self.share.plan
        if self.framework.attention is AttentionKernel.UNFUSED:
            if direction is Direction.FORWARD:
                self._unfused_forward(b)
            else:
                self._unfused_backward(b)
            return
        latent = s.model.latent
        query = latent.nope + latent.rope if latent else s.model.head_dim
        value = latent.value if latent else s.model.head_dim
        part = plan.seq_len // plan.cp // plan.documents
        kernel = self.framework.attention
        dtype = self.layer.unquantised_dtype  # Transformer Engine does not compute attention in fp8 by default

        def kernel_of(queries: int, keys: int, causal: bool) -> Attention:
            batch = plan.micro_batch * plan.documents
            return Attention(batch, queries, keys, s.heads, s.kv_heads, query, value, causal, direction, kernel, dtype)

        name = "attention" if direction is Direction.FORWARD else "attention backward"
        if plan.cp == 1:
            b.add(name, kernel_of(part, part, True))
            return
        # A ring: each device works on the keys and values that it has while it passes them on. Each device holds an early and a
        # late part of the sequence, so that all have the same causal work (Liu et al. 2023, arXiv:2310.01889; Megatron's "p2p").
        sent_bytes = self.width * plan.micro_batch * part * s.kv_heads * (query + value) * (1 if direction is Direction.FORWARD else 2)
        for hop in range(plan.cp):
            exchange = (
                [b.fork("cp exchange", s.context(CollectiveKind.SEND_RECEIVE, sent_bytes), RankStream.CONTEXT)] if hop < plan.cp - 1 else []
            )
            b.add(name, kernel_of(part, part, True) if hop == 0 else kernel_of(part, part // 2, False))
            if hop:
                b.add("merge partial attention", Traffic(3 * FP32 * s.tokens * s.heads * value))
            b.join(*exchange)

    def _unfused_forward(self, b: Builder) -> None:
        s, plan = self.share, self.share.plan
        q, d, batch = plan.seq_len, s.model.head_dim, plan.micro_batch * s.heads
        scores = batch * q * q
        b.add("scores", Gemm(q, q, d, s.dtype, batch=batch, out_bytes=self.width))
        if self._fuses_softmax():
            b.add("masked softmax", Traffic(2 * self.width * scores, 1, "normalisation"))
        else:  # cast to fp32, scale, mask, softmax, cast back
            b.add("masked softmax", Traffic((2 * self.width + 7 * FP32) * scores, 5))
        if self.framework.dropout:
            b.add("attention dropout", Traffic((2 * self.width + 1) * scores))
        b.add("context", Gemm(q, d, q, s.dtype, batch=batch, out_bytes=self.width))
        b.add("transpose", Traffic(2 * self.width * s.tokens * s.heads * d, 1, "strided"))

    def _fuses_softmax(self) -> bool:
        """Megatron-LM's fused softmax takes at most 2,048 keys, and heads · sequences that are a multiple of 4 (fused_softmax.py);
        otherwise torch's softmax runs."""
        s = self.share
        return s.plan.seq_len <= 2048 and s.plan.micro_batch * s.heads % 4 == 0

    def _unfused_backward(self, b: Builder) -> None:
        s, plan = self.share, self.share.plan
        q, d, batch = plan.seq_len, s.model.head_dim, plan.micro_batch * s.heads
        scores = batch * q * q
        b.add("transpose", Traffic(2 * self.width * s.tokens * s.heads * d, 1, "strided"))
        b.add("context input gradient", Gemm(q, q, d, s.dtype, batch=batch, out_bytes=self.width))
        b.add("value gradient", Gemm(q, d, q, s.dtype, batch=batch, out_bytes=self.width))
        if self.framework.dropout:
            b.add("attention dropout backward", Traffic((2 * self.width + 1) * scores))
        if self._fuses_softmax():
            b.add("masked softmax backward", Traffic(3 * self.width * scores, 1, "normalisation"))
        else:
            b.add("masked softmax backward", Traffic((2 * self.width + 9 * FP32) * scores, 5))
        b.add("query gradient", Gemm(q, d, q, s.dtype, batch=batch, out_bytes=self.width))
        b.add("key gradient", Gemm(q, d, q, s.dtype, batch=batch, out_bytes=self.width))
        b.add("gather qkv gradients", Traffic(2 * self.width * s.tokens * sum(self.layer.qkv()), 3, "strided"))
