"""What attention and the MLP of a layer have in common on one rank: norms, multiplications and the collectives around them.

The bytes of an element-wise kernel count every read and write, in its fused or unfused form. The backward pass of a
multiplication is two: input gradient and weight gradient. Communication of tensor parallelism: Shoeybi et al. 2019
(arXiv:1909.08053); with sequence parallelism: Korthikanti et al. 2022 (arXiv:2205.05198).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.blocks.block import Builder
from lumos.blocks.work import Attention, Collective, Gemm, RankStream, Traffic
from lumos.vocabulary import AttentionKernel, CollectiveKind, Direction, DType, Fusion, Recompute

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.blocks.share import Share

#: Bytes of an fp32 number.
FP32 = DType.FP32.bytes


class LayerParts:
    """Adds the operations that the parts of a layer have in common to a block. width: bytes of an activation."""

    def __init__(self, share: Share) -> None:
        self.share = share
        self.framework = share.framework
        self.width = share.activation_bytes
        self.eager = share.framework.fusion is Fusion.EAGER
        self.compiled = share.framework.fusion is Fusion.COMPILED

    def _builder(self, name: str, before_us: float) -> Builder:
        return Builder(name, round(1000 * self.framework.host_us), round(1000 * before_us))

    def qkv(self) -> tuple[int, int, int]:
        s = self.share
        return s.heads * s.model.head_dim, s.kv_heads * s.model.head_dim, s.kv_heads * s.model.head_dim

    def up_widths(self, width: int) -> tuple[int, ...]:
        return (width, width) if self.share.model.gated else (width,)

    def norm_forward(self, b: Builder, tokens: int, width: int | None = None) -> None:
        elements = tokens * (width or self.share.model.hidden)
        if self.eager and self.share.model.norm == "rms":  # cast to fp32, square, mean, rsqrt, scale, cast back, weight
            b.add("rms norm", Traffic(36 * elements, 6))
        else:
            b.add("norm", Traffic(2 * self.width * elements, 1, "normalisation"))

    def norm_backward(self, b: Builder, tokens: int, width: int | None = None) -> None:
        elements = tokens * (width or self.share.model.hidden)
        if self.eager and self.share.model.norm == "rms":
            b.add("rms norm backward", Traffic(60 * elements, 10))
        else:
            b.add("norm backward", Traffic(5 * self.width * elements, 2, "normalisation"))

    def residual_forward(self, b: Builder, tokens: int) -> None:
        elements = tokens * self.share.model.hidden
        if self.framework.dropout:
            mask = 1
            if self.eager:
                b.add("dropout", Traffic((2 * self.width + mask) * elements))
                b.add("residual add", Traffic(3 * self.width * elements))
            else:
                b.add("bias dropout add", Traffic((3 * self.width + mask) * elements))
        elif not self.compiled:
            b.add("residual add", Traffic(3 * self.width * elements))

    def residual_backward(self, b: Builder, tokens: int) -> None:
        elements = tokens * self.share.model.hidden
        if self.framework.dropout:
            b.add("dropout backward", Traffic((2 * self.width + 1) * elements))
        if not self.compiled:
            b.add("gradient add", Traffic(3 * self.width * elements))

    def linear_forward(self, b: Builder, name: str, tokens: int, n: int, k: int, cast: bool = True) -> None:
        b.add(name, Gemm(tokens, n, k, self.dtype(name), out_bytes=self.width, cast=cast and not self._activated(name, "down")))

    def _activated(self, name: str, part: str) -> bool:
        """Whether the activation, or its backward kernel, writes the operand of a multiplication in 8 bit (`fp8_activations`)."""
        return self.framework.fp8_activations and name.endswith(part)

    def dtype(self, name: str) -> DType:
        """Type of a multiplication: fp8 recipes leave the output projection and the router in 16 bit."""
        return self.unquantised_dtype if name in ("logits", "router") else self.share.dtype

    @property
    def unquantised_dtype(self) -> DType:
        """Type of the multiplications that fp8 recipes leave in 16 bit."""
        return DType.BF16 if self.share.dtype.quantised else self.share.dtype

    def linear_backward(
        self,
        b: Builder,
        name: str,
        tokens: int,
        n: int,
        k: int,
        reduce: Callable[[], list[int]] | None = None,
        bias: bool = False,
        cast: bool = True,
    ) -> None:
        """Input gradient, then weight gradient. reduce: starts the communication of the input gradient in between, and returns the
        ops that the end has to wait for."""
        dtype, plan = self.dtype(name), self.share.plan
        cast = cast and not self._activated(name, "up")
        b.add(f"{name} input gradient", Gemm(tokens, k, n, dtype, out_bytes=self.width, cast=cast))
        pending = reduce() if reduce is not None else []
        if plan.lora_rank == 0:
            fused = self.framework.fused_accumulation
            accumulate = fused and plan.microbatches > 1
            if dtype.quantised and self.framework.fp8_rows:
                b.add(f"{name} casts by column", Traffic((2 * self.width + 1) * tokens * (n + k), 4))
            b.add(
                f"{name} weight gradient",
                Gemm(k, n, tokens, dtype, out_bytes=FP32 if fused else self.width, accumulate=accumulate, cast=False),
            )
            if bias:
                b.add(f"{name} bias gradient", Traffic(self.width * tokens * n))
            if not fused and (plan.microbatches > 1 or self.framework.gradient_bytes > self.width):
                b.add(f"{name} accumulate", Traffic((self.width + 2 * self.framework.gradient_bytes) * n * k))
        b.join(*pending)

    def activation(self, b: Builder, elements: int) -> None:
        if self.share.model.gated:
            if self.eager:
                b.add("silu", Traffic(2 * self.width * elements))
                b.add("gate product", Traffic(3 * self.width * elements))
            else:
                b.add("gated activation", Traffic(3 * self.width * elements))
        elif self.share.model.squared_relu and not self.compiled:  # no framework fuses relu and its square
            b.add("squared relu", Traffic(4 * self.width * elements, 2))
        else:
            b.add("activation", Traffic(2 * self.width * elements))

    def activation_backward(self, b: Builder, elements: int) -> None:
        if self.share.model.gated:
            if self.eager:
                b.add("gate product backward", Traffic(6 * self.width * elements, 2))
                b.add("silu backward", Traffic(3 * self.width * elements))
            else:
                b.add("gated activation backward", Traffic(5 * self.width * elements))
        elif self.share.model.squared_relu and not self.compiled:  # twice the input times the gradient, where the input is positive
            b.add("squared relu backward", Traffic(8 * self.width * elements, 3))
        else:
            b.add("activation backward", Traffic(3 * self.width * elements))

    # ---------------------------------------------------------------- tensor parallel communication

    def gather_input(self, b: Builder, in_fp8: bool = False) -> None:
        """Before a column-parallel multiplication, gather the slices of the sequence (with sequence parallelism)."""
        s = self.share
        if s.plan.tp > 1 and s.plan.sequence_parallel:
            self._cast_slice(b, in_fp8)
            b.add("tp all-gather", self._slice_gather(in_fp8), RankStream.TENSOR)
            if self.framework.dtensor:
                b.add("copy of what was gathered", Traffic(2 * self._residual_bytes() // (self.width if in_fp8 else 1)))

    def _slice_gather(self, in_fp8: bool) -> Collective:
        return self.share.tensor(CollectiveKind.ALL_GATHER, self._residual_bytes() // (self.width if in_fp8 else 1))

    def _cast_slice(self, b: Builder, in_fp8: bool) -> None:
        if in_fp8:
            b.add("cast to 8 bit", Traffic((self.width + 1) * self.share.residual_tokens * self.share.model.hidden))

    def _gathers_fp8(self, name: str) -> bool:
        """Whether the input of a multiplication is cast to fp8 before it is gathered."""
        s = self.share
        return self.framework.fp8_gather and self.dtype(name).quantised and s.plan.tp > 1 and s.plan.sequence_parallel

    def reduce_output(self, b: Builder, copied: bool = False) -> None:
        """After a row-parallel multiplication, reduce the partial sums; with sequence parallelism each rank keeps its slice.
        copied: what is scattered lies in the order of the ranks already."""
        s = self.share
        if s.plan.tp > 1:
            if self.framework.dtensor and s.plan.sequence_parallel and not copied:
                b.add("copy of what is scattered", Traffic(2 * self._residual_bytes()))
            kind = CollectiveKind.REDUCE_SCATTER if s.plan.sequence_parallel else CollectiveKind.ALL_REDUCE
            b.add(f"tp {kind}", s.tensor(kind, self._residual_bytes()), RankStream.TENSOR)

    def _residual_bytes(self) -> int:
        return self.width * self.share.tokens * self.share.model.hidden

    def _overlaps(self) -> bool:
        s = self.share
        return self.framework.tp_overlap and s.plan.tp > 1 and s.plan.sequence_parallel

    def _gather(self, b: Builder, in_fp8: bool) -> list[int]:
        """Gather the input of a multiplication: before it or, if the framework overlaps them, at the same time.

        Returns the operations that the block has still to join.
        """
        if not self._overlaps():
            self.gather_input(b, in_fp8)
            return []
        self._cast_slice(b, in_fp8)
        return [b.fork("tp all-gather", self._slice_gather(in_fp8), RankStream.TENSOR)]

    def column_forward(self, b: Builder, name: str, *widths: int) -> None:
        """Gather, then multiply by matrices of `widths` columns; at the same time if the framework overlaps them."""
        s = self.share
        in_fp8 = self._gathers_fp8(name)
        gather = self._gather(b, in_fp8)
        for n in self._joined(widths):
            self.linear_forward(b, name, s.tokens, n, s.model.hidden, not (in_fp8 or self.framework.fp8_norms))
        b.join(*gather)

    def _joined(self, widths: tuple[int, ...]) -> tuple[int, ...]:
        return (sum(widths),) if self.framework.fused_projections else widths

    def row_forward(self, b: Builder, name: str, k: int) -> None:
        """Multiply, then reduce; at the same time if the framework overlaps them."""
        s = self.share
        if not self._overlaps():
            self.linear_forward(b, name, s.tokens, s.model.hidden, k)
            self.reduce_output(b)
            return
        reduction = b.fork("tp reduce-scatter", s.tensor(CollectiveKind.REDUCE_SCATTER, self._residual_bytes()), RankStream.TENSOR)
        self.linear_forward(b, name, s.tokens, s.model.hidden, k)
        b.join(reduction)

    def row_backward(self, b: Builder, name: str, k: int, bias: bool) -> None:
        """The gradient of the output is gathered first: with sequence parallelism it arrives in slices."""
        s = self.share
        in_fp8 = self._gathers_fp8(name)
        gather = self._gather(b, in_fp8)
        self.linear_backward(b, name, s.tokens, s.model.hidden, k, lambda: gather, bias, not in_fp8)

    def column_backward(self, b: Builder, name: str, bias: bool, *widths: int) -> None:
        """The input gradient is reduced during the weight gradient's multiplication if the framework does so (`tp_async`)."""
        s = self.share
        tp, sequence, dtensor = s.plan.tp > 1, s.plan.sequence_parallel, self.framework.dtensor
        input_again = []
        if tp and sequence and not dtensor:
            input_again = [b.fork("tp all-gather", self._slice_gather(self._gathers_fp8(name)), RankStream.TENSOR)]

        *first, last = self._joined(widths)
        added = bool(first) and self.compiled

        def reduce() -> list[int]:
            b.join(*input_again)
            if added:  # one kernel adds all gradients, and writes the sum in the order in which it is scattered
                b.add("gradient add", Traffic((len(first) + 2) * self._residual_bytes()))
            if not tp or not self.framework.tp_async:
                return []
            kind = CollectiveKind.REDUCE_SCATTER if sequence else CollectiveKind.ALL_REDUCE
            return [b.fork(f"tp {kind}", s.tensor(kind, self._residual_bytes()), RankStream.TENSOR)]

        for n in first:
            self.linear_backward(b, name, s.tokens, n, s.model.hidden, None, bias)
            if not added:
                b.add("gradient add", Traffic(3 * self._residual_bytes()))
        self.linear_backward(b, name, s.tokens, last, s.model.hidden, reduce, bias)
        if tp and not self.framework.tp_async:
            self.reduce_output(b, copied=added)


class ScoreParts(LayerParts):
    """Adds the core of attention (scores, softmax, context): one fused kernel, a ring of them, or unfused."""

    def scores_forward(self, b: Builder) -> None:
        self._scores(b, Direction.FORWARD)

    def scores_backward(self, b: Builder) -> None:
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
        dtype = self.unquantised_dtype  # Transformer Engine does not compute attention in fp8 by default

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
        b.add("gather qkv gradients", Traffic(2 * self.width * s.tokens * sum(self.qkv()), 3, "strided"))
