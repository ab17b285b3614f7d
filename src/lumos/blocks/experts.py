"""The work of a mixture-of-experts MLP on one rank: router, permutation, exchange, grouped multiplications, combination.

Every rank of the expert-parallel group sends its tokens to the ranks that hold their experts, and gets the results back
(GShard, arXiv:2006.16668). Shared experts process every token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.blocks.layer_parts import FP32, ScoreParts
from lumos.blocks.work import Contention, Gemm, GroupedGemm, RankStream, Traffic
from lumos.vocabulary import CollectiveKind, Schedule

if TYPE_CHECKING:
    from lumos.blocks.block import Builder
    from lumos.model import Experts

#: SMs that DeepEP's kernels occupy while compute runs beside them (DeepSeek-V3, arXiv:2412.19437, section 3.2.2).
DEEP_EP_CORES = 20


class ExpertParts(ScoreParts):
    """Adds the work of this rank's experts of one layer to a block."""

    @property
    def experts(self) -> Experts:
        """Those of the model, which has some where a layer is a mixture."""
        assert self.share.model.experts is not None
        return self.share.model.experts

    def experts_forward(self, b: Builder) -> None:
        """Router, permutation, dispatch, sorting, grouped multiplications, combination, then the shared experts."""
        s, e = self.share, self.experts
        h, tokens = s.model.hidden, s.residual_tokens
        sent = tokens * e.per_token
        b.add("router", Gemm(tokens, e.count, h, self.dtype("router"), out_bytes=FP32))
        b.add("top-k", Traffic(6 * FP32 * tokens * e.count, 8))
        b.add("permute", Traffic(2 * self.width * sent * h, 3))
        self._exchange_tokens(b, sent, True)
        rows = self._expert_rows()
        self._sort_tokens(b, rows)
        wide = e.ffn * (2 if s.model.gated else 1)
        b.add("experts up", self._grouped(rows, wide, h), launches=self._expert_launches)
        self.activation(b, rows * s.experts * e.ffn)
        b.add("experts down", self._grouped(rows, h, e.ffn), launches=self._expert_launches)
        self._sort_tokens(b, rows)
        self._exchange_tokens(b, sent, False)
        b.add("unpermute", Traffic(2 * self.width * sent * h, 3))
        if e.shared_ffn:
            width = e.shared_ffn // s.plan.tp
            self.column_forward(b, "shared up", *self.up_widths(width))
            self.activation(b, s.tokens * width)
            self.row_forward(b, "shared down", width)
            b.add("shared add", Traffic(3 * self.width * tokens * h))

    def experts_backward(self, b: Builder) -> None:
        s, e = self.share, self.experts
        h, tokens = s.model.hidden, s.residual_tokens
        sent = tokens * e.per_token
        if e.shared_ffn:
            width = e.shared_ffn // s.plan.tp
            self.row_backward(b, "shared down", width, False)
            self.activation_backward(b, s.tokens * width)
            self.column_backward(b, "shared up", False, *self.up_widths(width))
        b.add("unpermute backward", Traffic(3 * self.width * sent * h, 3))
        self._exchange_tokens(b, sent, False)
        rows = self._expert_rows()
        self._sort_tokens(b, rows)
        wide = e.ffn * (2 if s.model.gated else 1)
        self._grouped_backward(b, "experts down", rows, h, e.ffn)
        self.activation_backward(b, rows * s.experts * e.ffn)
        self._grouped_backward(b, "experts up", rows, wide, h)
        self._sort_tokens(b, rows)
        self._exchange_tokens(b, sent, False)
        b.add("permute backward", Traffic(2 * self.width * sent * h, 3))
        b.add("top-k backward", Traffic(6 * FP32 * tokens * e.count, 8))
        self.linear_backward(b, "router", tokens, e.count, h)

    def _expert_rows(self) -> int:
        """Mean number of tokens of one expert, from all ranks of the expert-parallel group."""
        s, e = self.share, self.experts
        return max(1, s.residual_tokens * e.per_token * s.plan.ep // e.count)

    def _exchange_tokens(self, b: Builder, sent: int, dispatch: bool) -> None:
        s = self.share
        if s.plan.ep == 1:
            return
        nbytes = self.width * sent * s.model.hidden
        if self.framework.deep_ep:
            nbytes = self._deep_ep_bytes(dispatch)
        work = s.expert(CollectiveKind.ALL_TO_ALL, nbytes)
        if self.framework.ep_overlap or s.plan.schedule is Schedule.DUALPIPE:
            b.fork_to_end("ep all-to-all", work, RankStream.EXPERT)
            if self.framework.deep_ep:
                b.add("units lent to the exchange", Contention(work, DEEP_EP_CORES))
        else:
            b.add("ep all-to-all", work, RankStream.EXPERT)

    def _sort_tokens(self, b: Builder, rows: int) -> None:
        """Tokens arrive by rank, and in each rank's part by expert: with several experts here they are brought into the order of experts,
        and back before they return (Megatron Core, moe/token_dispatcher.py: the second permutation of the all-to-all dispatcher). DeepEP's
        dispatch leaves that as the only permutation, which is there already."""
        s = self.share
        if s.plan.ep > 1 and s.experts > 1 and not self.framework.deep_ep:
            b.add("sort by expert", Traffic(2 * self.width * rows * s.experts * s.model.hidden))

    def _deep_ep_bytes(self, dispatch: bool) -> int:
        """Bytes that a rank sends if each token goes once to every node that it needs, and is distributed there over the node's links."""
        s, e = self.share, self.experts
        nodes = max(1, s.plan.ep * (1 if s.plan.folded else s.plan.tp) // s.devices_per_node)
        places = nodes if nodes > 1 else s.plan.ep  # within one node's links, every device is a place of its own
        reached = places * (1 - (1 - 1 / places) ** e.per_token)  # expected number of places, for experts chosen at random
        copies = min(reached, e.nodes) if e.nodes and nodes > 1 else reached
        width = 1 if dispatch and s.dtype.quantised else self.width
        return round(width * s.residual_tokens * s.model.hidden * copies)

    @property
    def _expert_launches(self) -> int:
        """Launches of one product for all experts of this rank."""
        return 1 if self.framework.grouped_kernel else self.share.experts

    def _grouped(self, rows: int, n: int, k: int) -> GroupedGemm:
        return GroupedGemm(rows, self.share.experts, n, k, self.share.dtype, self.framework.expert_skew)

    def _grouped_backward(self, b: Builder, name: str, rows: int, n: int, k: int) -> None:
        fused = self.framework.fused_accumulation
        b.add(f"{name} input gradient", self._grouped(rows, k, n), launches=self._expert_launches)
        accumulate = fused and self.share.plan.microbatches > 1
        out = FP32 if fused else self.width
        b.add(
            f"{name} weight gradient",
            Gemm(k, n, rows, self.share.dtype, batch=self.share.experts, out_bytes=out, accumulate=accumulate, cast=False),
            launches=self._expert_launches,
        )
