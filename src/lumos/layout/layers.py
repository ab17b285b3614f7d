"""The work of one transformer layer on one rank: forward, backward and recomputation, as blocks.

Bytes of element-wise kernels count every read and write of the unfused or fused form. The backward pass of a
multiplication is two (input gradient, weight gradient). Communication of tensor parallelism: Shoeybi et al. 2019
(arXiv:1909.08053); with sequence parallelism: Korthikanti et al. 2022 (arXiv:2205.05198).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lumos.layout.block import Block, Builder, Op
from lumos.layout.experts import ExpertWork
from lumos.layout.scores import ScoreWork
from lumos.layout.sizes import Share
from lumos.layout.work import Collective, Gemm, Lane, Traffic

FP32 = 4


class LayerWork:
    """Blocks of the layers of one rank's share."""

    def __init__(self, share: Share) -> None:
        self.share = share
        self.framework = share.framework
        self.width = share.activation_bytes
        self.eager = share.framework.fusion == "eager"
        self.compiled = share.framework.fusion == "compiled"
        self._backward: dict[tuple[bool, bool], Block] = {}  # split passes are cut out of the whole one

    # ---------------------------------------------------------------- passes

    def forward(self, mixture: bool) -> Block:
        b = self._builder("layer forward", self.framework.layer_us)
        self._attention_forward(b)
        self._mlp_forward(b, mixture)
        return b.build()

    def backward(self, mixture: bool, recompute: bool) -> Block:
        """Backward pass, after the forward pass again where `recompute`."""
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
        elif self.share.plan.recompute == "selective" and self.framework.selective == "alternate":
            self._alternate_forward(b)
        self._mlp_backward(b, mixture)
        self._attention_backward(b)
        return b.build()

    def inputs(self, mixture: bool, recompute: bool) -> Block:
        """The backward pass without the weight gradients (zero-bubble schedules)."""
        whole = self.backward(mixture, recompute)
        return without(whole, "layer input gradients", lambda op: _is_weight(op.name))

    def weights(self, mixture: bool) -> Block:
        """The weight gradients alone."""
        kept = [op for op in self.backward(mixture, False).ops if _is_weight(op.name)]
        b = self._builder("layer weight gradients", self.framework.layer_us)
        for op in kept:
            b.add(op.name, op.work)
        return b.build()

    def _builder(self, name: str, before_us: float) -> Builder:
        return Builder(name, round(1000 * self.framework.host_us), round(1000 * before_us))

    # ---------------------------------------------------------------- parts

    def norm_forward(self, b: Builder, tokens: int, width: int | None = None) -> None:
        elements = tokens * (width or self.share.model.hidden)
        if self.eager and self.share.model.norm == "rms":  # to fp32, square, mean, rsqrt, scale, back, weight
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
        b.add(name, Gemm(tokens, n, k, self.dtype(name), out_bytes=self.width, cast=cast))

    def dtype(self, name: str) -> str:
        """Type of a multiplication: recipes of 8 bit leave the output projection and the router in 16."""
        return self.wide_dtype if name in ("logits", "router") else self.share.dtype

    @property
    def wide_dtype(self) -> str:
        """Type of what recipes of 8 bit leave in 16."""
        return "bf16" if self.share.dtype == "fp8" else self.share.dtype

    def linear_backward(
        self,
        b: Builder,
        name: str,
        tokens: int,
        n: int,
        k: int,
        between: Callable[[], list[int]] | None = None,
        bias: bool = False,
        cast: bool = True,
    ) -> None:
        """Input gradient, then (`between`: communication of the input gradient starts) the weight gradient, then the join."""
        dtype, plan = self.dtype(name), self.share.plan
        b.add(f"{name} input gradient", Gemm(tokens, k, n, dtype, out_bytes=self.width, cast=cast))
        pending = between() if between is not None else []
        if plan.lora_rank == 0:
            fused = self.framework.fused_accumulation
            accumulate = fused and plan.microbatches > 1
            if dtype == "fp8" and self.framework.fp8_rows:
                b.add(f"{name} casts by column", Traffic((2 * self.width + 1) * tokens * (n + k), 4))
            b.add(
                f"{name} weight gradient",
                Gemm(k, n, tokens, dtype, out_bytes=FP32 if fused else self.width, accumulate=accumulate, cast=False),
            )
            if bias:
                b.add(f"{name} bias gradient", Traffic(self.width * tokens * n))
            if not fused and (plan.microbatches > 1 or self.framework.gradient_bytes > self.width):
                held = self.framework.gradient_bytes
                b.add(f"{name} accumulate", Traffic((self.width + 2 * held) * n * k))
        b.join(*pending)

    # ---------------------------------------------------------------- tensor parallel communication

    def gather_in(self, b: Builder, eight: bool = False) -> None:
        """Before a column-parallel multiplication: the slices of the sequence are gathered, in 8 bit where `eight`."""
        s = self.share
        if s.plan.tp > 1 and s.plan.sequence_parallel:
            self._cast_slice(b, eight)
            b.add("tp all-gather", self._gathered(eight), Lane.TENSOR)

    def _gathered(self, eight: bool) -> Collective:
        return self.share.tensor("all_gather", self._residual_bytes() // (self.width if eight else 1))

    def _cast_slice(self, b: Builder, eight: bool) -> None:
        if eight:
            b.add("cast to 8 bit", Traffic((self.width + 1) * self.share.slim * self.share.model.hidden))

    def _cast_first(self, name: str) -> bool:
        """Whether what is gathered for a multiplication is cast to 8 bit before."""
        s = self.share
        return self.framework.fp8_gather and self.dtype(name) == "fp8" and s.plan.tp > 1 and s.plan.sequence_parallel

    def reduce_out(self, b: Builder) -> None:
        """After a row-parallel multiplication: partial sums are reduced, and scattered with sequence parallel."""
        s = self.share
        if s.plan.tp > 1:
            kind = "reduce_scatter" if s.plan.sequence_parallel else "all_reduce"
            b.add(f"tp {kind.replace('_', '-')}", s.tensor(kind, self._residual_bytes()), Lane.TENSOR)

    def _residual_bytes(self) -> int:
        return self.width * self.share.tokens * self.share.model.hidden

    def _overlaps(self) -> bool:
        s = self.share
        return self.framework.tp_overlap and s.plan.tp > 1 and s.plan.sequence_parallel

    def column_forward(self, b: Builder, name: str, *widths: int) -> None:
        """Gather, then multiply (by matrices of `widths`); pipelined where the framework overlaps them."""
        s = self.share
        moving: list[int] = []
        eight = self._cast_first(name)
        if self._overlaps():
            self._cast_slice(b, eight)
            moving = [b.beside("tp all-gather", self._gathered(eight), Lane.TENSOR)]
        else:
            self.gather_in(b, eight)
        for n in self._joined(widths):
            self.linear_forward(b, name, s.tokens, n, s.model.hidden, not eight)
        b.join(*moving)

    def _joined(self, widths: tuple[int, ...]) -> tuple[int, ...]:
        return (sum(widths),) if self.framework.fused_projections else widths

    def row_forward(self, b: Builder, name: str, k: int) -> None:
        """Multiply, then reduce; pipelined where the framework overlaps them."""
        s = self.share
        if not self._overlaps():
            self.linear_forward(b, name, s.tokens, s.model.hidden, k)
            self.reduce_out(b)
            return
        moving = b.beside("tp reduce-scatter", s.tensor("reduce_scatter", self._residual_bytes()), Lane.TENSOR)
        self.linear_forward(b, name, s.tokens, s.model.hidden, k)
        b.join(moving)

    def row_backward(self, b: Builder, name: str, k: int, bias: bool) -> None:
        """The output's gradient arrives in slices with sequence parallel and is gathered first."""
        s = self.share
        moving: list[int] = []
        eight = self._cast_first(name)
        if self._overlaps():
            self._cast_slice(b, eight)
            moving = [b.beside("tp all-gather", self._gathered(eight), Lane.TENSOR)]
        else:
            self.gather_in(b, eight)
        self.linear_backward(b, name, s.tokens, s.model.hidden, k, lambda: moving, bias, not eight)

    def column_backward(self, b: Builder, name: str, bias: bool, *widths: int) -> None:
        """The input's gradient is reduced beside the weight gradient where the framework does so."""
        s = self.share
        tp, sequence = s.plan.tp > 1, s.plan.sequence_parallel
        again = [b.beside("tp all-gather", self._gathered(self._cast_first(name)), Lane.TENSOR)] if tp and sequence else []

        def reduce() -> list[int]:
            b.join(*again)
            if not tp or not self.framework.tp_async:
                return []
            kind = "reduce_scatter" if sequence else "all_reduce"
            return [b.beside(f"tp {kind.replace('_', '-')}", s.tensor(kind, self._residual_bytes()), Lane.TENSOR)]

        *first, last = self._joined(widths)
        for n in first:
            self.linear_backward(b, name, s.tokens, n, s.model.hidden, None, bias)
            b.add("gradient add", Traffic(3 * self.width * s.tokens * s.model.hidden))
        self.linear_backward(b, name, s.tokens, last, s.model.hidden, reduce, bias)
        if tp and not self.framework.tp_async:
            self.reduce_out(b)

    # ---------------------------------------------------------------- attention

    def qkv(self) -> tuple[int, int, int]:
        s = self.share
        return s.heads * s.model.head_dim, s.kv_heads * s.model.head_dim, s.kv_heads * s.model.head_dim

    def up(self, width: int) -> tuple[int, ...]:
        return (width, width) if self.share.model.gated else (width,)

    def _attention_forward(self, b: Builder) -> None:
        s = self.share
        self.norm_forward(b, s.slim)
        if s.model.latent is not None:
            self._latent_forward(b)
        else:
            self.column_forward(b, "qkv", *self.qkv())
            self._adapter_forward(b)
            if s.model.qk_norm:
                self.norm_forward(b, s.tokens, (s.heads + s.kv_heads) * s.model.head_dim)
            self._rotary(b)
        ScoreWork(self).forward(b)
        self.row_forward(b, "projection", s.model.attention_width // s.plan.tp)
        self.residual_forward(b, s.slim)

    def _attention_backward(self, b: Builder) -> None:
        s = self.share
        self.residual_backward(b, s.slim)
        self.row_backward(b, "projection", s.model.attention_width // s.plan.tp, s.model.bias)
        ScoreWork(self).backward(b)
        if s.model.latent is not None:
            self._latent_backward(b)
        else:
            self._rotary(b)
            if s.model.qk_norm:
                self.norm_backward(b, s.tokens, (s.heads + s.kv_heads) * s.model.head_dim)
            self._adapter_backward(b)
            self.column_backward(b, "qkv", s.model.bias or s.model.qkv_bias, *self.qkv())
        self.norm_backward(b, s.slim)

    def _adapter_forward(self, b: Builder) -> None:
        """LoRA beside queries, keys and values (Hu et al. 2021, arXiv:2106.09685): down, up, added to what they are beside."""
        s, rank, wide = self.share, self.share.plan.lora_rank, sum(self.qkv())
        if rank:
            b.add("adapter down", Gemm(s.tokens, rank, s.model.hidden, self.wide_dtype, out_bytes=self.width))
            b.add("adapter up", Gemm(s.tokens, wide, rank, self.wide_dtype, out_bytes=self.width))
            b.add("adapter add", Traffic(3 * self.width * s.tokens * wide))

    def _adapter_backward(self, b: Builder) -> None:
        s, rank, wide = self.share, self.share.plan.lora_rank, sum(self.qkv())
        if rank:
            for name, n, k in (("up", wide, rank), ("down", rank, s.model.hidden)):
                b.add(f"adapter {name} input gradient", Gemm(s.tokens, k, n, self.wide_dtype, out_bytes=self.width))
                b.add(f"adapter {name} weight gradient", Gemm(k, n, s.tokens, self.wide_dtype, out_bytes=self.width))
            b.add("gradient add", Traffic(3 * self.width * s.tokens * s.model.hidden))

    def _rotary(self, b: Builder) -> None:
        s = self.share
        if s.model.positions != "rope":
            return
        elements = s.tokens * (s.heads + s.kv_heads) * s.model.head_dim
        if self.eager:  # halves swapped, two products, a sum, in fp32 and back
            b.add("rotary", Traffic(24 * elements, 6))
        else:
            b.add("rotary", Traffic(2 * self.width * elements, 2, "strided"))

    def _latent_forward(self, b: Builder) -> None:
        """Multi-head latent attention: compressed projections (replicated over the tensor group), then heads."""
        s, m = self.share, self.share.model.latent
        assert m is not None
        tokens, h = s.slim, s.model.hidden
        if m.query_rank:
            self.linear_forward(b, "query down", tokens, m.query_rank, h)
            self.norm_forward(b, tokens, m.query_rank)
            self.gather_in(b)
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
        tokens, h = s.slim, s.model.hidden
        b.add("rotary and split", Traffic(2 * self.width * s.tokens * s.heads * (2 * (m.nope + m.rope) + m.value), 5))
        self.linear_backward(b, "kv up", s.tokens, s.heads * (m.nope + m.value), m.kv_rank)
        self.norm_backward(b, tokens, m.kv_rank)
        self.linear_backward(b, "kv down", tokens, m.kv_rank + m.rope, h)
        if m.query_rank:
            self.linear_backward(b, "query up", s.tokens, s.heads * (m.nope + m.rope), m.query_rank)
            if s.plan.tp > 1 and s.plan.sequence_parallel:
                b.add("tp reduce-scatter", s.tensor("reduce_scatter", self.width * s.tokens * m.query_rank), Lane.TENSOR)
            self.norm_backward(b, tokens, m.query_rank)
            self.linear_backward(b, "query down", tokens, m.query_rank, h)
        else:
            self.column_backward(b, "query", False, s.heads * (m.nope + m.rope))
        b.add("gradient add", Traffic(3 * self.width * tokens * h))

    # ---------------------------------------------------------------- MLP

    def _mlp_forward(self, b: Builder, mixture: bool) -> None:
        s = self.share
        self.norm_forward(b, s.slim)
        if mixture:
            self._experts().forward(b)
        else:
            self.column_forward(b, "mlp up", *self.up(s.ffn))
            self.activation(b, s.tokens * s.ffn)
            self.row_forward(b, "mlp down", s.ffn)
        self.residual_forward(b, s.slim)

    def _mlp_backward(self, b: Builder, mixture: bool) -> None:
        s = self.share
        self.residual_backward(b, s.slim)
        if mixture:
            self._experts().backward(b)
        else:
            self.row_backward(b, "mlp down", s.ffn, s.model.bias)
            self.activation_backward(b, s.tokens * s.ffn)
            self.column_backward(b, "mlp up", s.model.bias, *self.up(s.ffn))
        self.norm_backward(b, s.slim)

    def _experts(self) -> ExpertWork:
        assert self.share.model.experts is not None
        return ExpertWork(self, self.share.model.experts)

    def activation(self, b: Builder, elements: int) -> None:
        if self.share.model.gated:
            if self.eager:
                b.add("silu", Traffic(2 * self.width * elements))
                b.add("gate product", Traffic(3 * self.width * elements))
            else:
                b.add("gated activation", Traffic(3 * self.width * elements))
        elif self.share.model.squared_relu and not self.compiled:  # no framework fuses it: relu, then its square
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
        elif self.share.model.squared_relu and not self.compiled:  # twice the input, times the gradient, where positive
            b.add("squared relu backward", Traffic(8 * self.width * elements, 3))
        else:
            b.add("activation backward", Traffic(3 * self.width * elements))

    # ---------------------------------------------------------------- selective recomputation

    def _alternate_forward(self, b: Builder) -> None:
        """torchtitan's selective checkpointing: every second multiplication is kept, attention is kept, the rest is done again."""
        s = self.share
        self.norm_forward(b, s.slim)
        self.gather_in(b, self._cast_first("projection"))
        self._rotary(b)
        self.linear_forward(b, "projection again", s.tokens, s.model.hidden, s.model.attention_width // s.plan.tp)
        self.residual_forward(b, s.slim)
        self.norm_forward(b, s.slim)
        self.gather_in(b, self._cast_first("projection"))
        self.linear_forward(b, "mlp up again", s.tokens, s.ffn, s.model.hidden)
        self.activation(b, s.tokens * s.ffn)


def _is_weight(name: str) -> bool:
    return name.endswith(("weight gradient", "bias gradient", "accumulate"))


def without(block: Block, name: str, dropped: Callable[[Op], bool]) -> Block:
    """The block without some of its ops; what waited for them waits for what they waited for."""
    kept: list[Op] = []
    place: dict[int, tuple[int, ...]] = {}
    for i, op in enumerate(block.ops):
        after = tuple(sorted({p for a in op.after for p in place[a]}))
        if dropped(op):
            place[i] = after
        else:
            place[i] = (len(kept),)
            kept.append(replace(op, after=after))
    return Block(name, tuple(kept), tuple(sorted({p for e in block.ends for p in place[e]})), block.before)
