"""What the parts of a layer are made of on one rank: norms, multiplications and the collectives around them.

Bytes of element-wise kernels count every read and write of the unfused or fused form. The backward pass of a
multiplication is two (input gradient, weight gradient). Communication of tensor parallelism: Shoeybi et al. 2019
(arXiv:1909.08053); with sequence parallelism: Korthikanti et al. 2022 (arXiv:2205.05198).
"""

from __future__ import annotations

from collections.abc import Callable

from lumos.blocks.block import Builder
from lumos.blocks.share import Share
from lumos.blocks.work import Collective, Gemm, Lane, Traffic
from lumos.vocabulary import CollectiveKind, DType, Fusion

#: Bytes of an fp32 number.
FP32 = DType.FP32.bytes


class LayerParts:
    """Adds the operations that the parts of a layer have in common to a block."""

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

    def up(self, width: int) -> tuple[int, ...]:
        return (width, width) if self.share.model.gated else (width,)

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

    def dtype(self, name: str) -> DType:
        """Type of a multiplication: recipes of 8 bit leave the output projection and the router in 16."""
        return self.wide_dtype if name in ("logits", "router") else self.share.dtype

    @property
    def wide_dtype(self) -> DType:
        """Type of what recipes of 8 bit leave in 16."""
        return DType.BF16 if self.share.dtype is DType.FP8 else self.share.dtype

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
            if dtype is DType.FP8 and self.framework.fp8_rows:
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

    # ---------------------------------------------------------------- tensor parallel communication

    def gather_in(self, b: Builder, eight: bool = False) -> None:
        """Before a column-parallel multiplication: the slices of the sequence are gathered, in 8 bit where `eight`."""
        s = self.share
        if s.plan.tp > 1 and s.plan.sequence_parallel:
            self._cast_slice(b, eight)
            b.add("tp all-gather", self._gathered(eight), Lane.TENSOR)

    def _gathered(self, eight: bool) -> Collective:
        return self.share.tensor(CollectiveKind.ALL_GATHER, self._residual_bytes() // (self.width if eight else 1))

    def _cast_slice(self, b: Builder, eight: bool) -> None:
        if eight:
            b.add("cast to 8 bit", Traffic((self.width + 1) * self.share.slim * self.share.model.hidden))

    def _cast_first(self, name: str) -> bool:
        """Whether what is gathered for a multiplication is cast to 8 bit before."""
        s = self.share
        return self.framework.fp8_gather and self.dtype(name) is DType.FP8 and s.plan.tp > 1 and s.plan.sequence_parallel

    def reduce_out(self, b: Builder) -> None:
        """After a row-parallel multiplication: partial sums are reduced, and scattered with sequence parallel."""
        s = self.share
        if s.plan.tp > 1:
            kind = CollectiveKind.REDUCE_SCATTER if s.plan.sequence_parallel else CollectiveKind.ALL_REDUCE
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
        moving = b.beside("tp reduce-scatter", s.tensor(CollectiveKind.REDUCE_SCATTER, self._residual_bytes()), Lane.TENSOR)
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
            kind = CollectiveKind.REDUCE_SCATTER if sequence else CollectiveKind.ALL_REDUCE
            return [b.beside(f"tp {kind.replace('_', '-')}", s.tensor(kind, self._residual_bytes()), Lane.TENSOR)]

        *first, last = self._joined(widths)
        for n in first:
            self.linear_backward(b, name, s.tokens, n, s.model.hidden, None, bias)
            b.add("gradient add", Traffic(3 * self.width * s.tokens * s.model.hidden))
        self.linear_backward(b, name, s.tokens, last, s.model.hidden, reduce, bias)
        if tp and not self.framework.tp_async:
            self.reduce_out(b)
