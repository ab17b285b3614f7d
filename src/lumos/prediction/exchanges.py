"""Exchanges of parameters and gradients between the data-parallel ranks of one stage, placed beside its passes.

Where every pass needs parameters of which a rank keeps only a part, each layer's are gathered while the previous layer runs. Gradients
that a pass completes are reduced while the layers after it run. What runs at the same time as compute slows it down.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lumos.blocks import outer_layers
from lumos.blocks.block import Block, Op
from lumos.blocks.share import RankParameters, bucket_layers, layer_parameters
from lumos.blocks.work import Collective, Contention, RankStream
from lumos.plan.schedules import BUCKETS, gradient_reduction
from lumos.vocabulary import GradientReduction, Phase

if TYPE_CHECKING:
    from lumos.blocks.share import Share
    from lumos.plan.schedules import Action
    from lumos.prediction.layout import Chain, LayerRun

#: Host time of launching a contention task, ns. No such launch exists, but every task of a stream needs one.
CONTENTION_LAUNCH = 1000


@dataclass(slots=True)
class StageExchanges:
    """Places exchanges beside a stage's chain. pending: those of gradients, for which the optimizer waits."""

    share: Share
    chain: Chain
    pending: list[int] = field(default_factory=list)
    _gathered: dict[int, int] = field(default_factory=dict)  # layer → the item that gathers its parameters, until it has been waited for

    # ---------------------------------------------------------------- what the plan asks for

    @property
    def reduces_often(self) -> bool:
        """Whether gradients are reduced more often than once a step, because a rank keeps only its part of them."""
        return self._reduction_of_parts is not GradientReduction.STEP

    @property
    def _reduction_of_parts(self) -> GradientReduction:
        return gradient_reduction(self.share.plan, self.share.framework)

    @property
    def overlaps(self) -> bool:
        """Whether gradients are reduced beside the passes that complete them, not after the last pass."""
        plan = self.share.plan
        beside = self.share.framework.dp_overlap and plan.dp * plan.cp > 1 and plan.lora_rank == 0
        return self.reduces_often or beside

    # ---------------------------------------------------------------- passes with exchanges

    def gather_before(self, run: LayerRun) -> None:
        """Gather the parameters of a run's layers for the first pass over each."""
        gather = self._gather(run.mixture, RankStream.GATHER)
        if gather.ops:
            for layer in run.layers:
                self._gathered[layer] = self.chain.beside(gather, layer=layer)

    def forward(self, block: Block, run: LayerRun, action: Action) -> None:
        """A forward pass over layers, each after its parameters are gathered: for this pass, or before (`gather_before`)."""
        plan = self.share.plan
        if plan.gathers_each and plan.shards > 1:
            self._sharded_forward(block, run, action)
        elif any(layer in self._gathered for layer in run.layers):
            for layer in run.layers:
                self.chain.wait_for(self._gathered.pop(layer, None))
                self.chain.then(block, Phase.FORWARD, action, layer=layer)
        else:
            self.chain.then(block, Phase.FORWARD, action, repeat=len(run.layers), layer=run.layers.start)

    def _sharded_forward(self, block: Block, run: LayerRun, action: Action) -> None:
        """Each layer's parameters are gathered while the previous layer runs; at most two layers' parameters are held at a time."""
        chain = self.chain
        gather = self._gather(run.mixture, RankStream.DATA)
        slowed = self._slowed(block, gather)
        before = [chain.tail, chain.tail]
        ready = chain.beside(gather, (before[0],), Phase.SYNC, action, run.layers.start)
        for layer in run.layers:
            this = ready
            if layer + 1 < run.layers.stop:
                ready = chain.beside(gather, (before[0],), Phase.SYNC, action, layer + 1)
            chain.wait_for(this)
            before = [before[1], chain.then(slowed, Phase.FORWARD, action, layer=layer)]

    def sharded_backward(self, block: Block, run: LayerRun, action: Action) -> None:
        """A backward pass whose parameters are gathered again, and whose gradients are reduced layer by layer."""
        plan, chain = self.share.plan, self.chain
        gather = self._gather(run.mixture, RankStream.DATA)
        reduce = self._reduction(run.mixture, 1)
        again = plan.shards > 1
        slowed = self._slowed(block, *([gather] if again else []), reduce)
        before = [chain.tail, chain.tail]
        ready = chain.beside(gather, (before[0],), Phase.SYNC, action, run.layers[-1]) if again else -1
        for layer in reversed(run.layers):
            this = ready
            if again and layer > run.layers.start:
                ready = chain.beside(gather, (before[0],), Phase.SYNC, action, layer - 1)
            chain.wait_for(this if again else None)
            before = [before[1], chain.then(slowed, Phase.BACKWARD, action, layer=layer)]
            self.pending.append(chain.beside(reduce, (chain.tail,), Phase.SYNC, action, layer))

    def bucketed_backward(self, block: Block, run: LayerRun, action: Action) -> None:
        """Gradients are reduced in buckets of whole layers, each as soon as the last layer of the bucket has run.

        Where every microbatch reduces, a rank has room for the gradients of few buckets (`BUCKETS`): of the one that is computed and of the
        one that is reduced. So a bucket is not computed before the one before the previous one has been reduced.
        """
        bounded = self._reduction_of_parts is GradientReduction.MICROBATCH
        size = bucket_layers(self.share, run.mixture, most=len(run.layers))
        left = list(reversed(run.layers))
        slow = self._slowed(block, self._reduction(run.mixture, 1))
        while left:
            part, left = left[:size], left[size:]
            if bounded:
                self.chain.wait_for(*self.pending[-BUCKETS : 1 - BUCKETS])
            self.chain.then(slow, Phase.BACKWARD, action, repeat=len(part), layer=part[-1])
            reduction = self._reduction(run.mixture, len(part))
            self.pending.append(self.chain.beside(reduction, (self.chain.tail,), Phase.SYNC, action, part[-1]))

    # ---------------------------------------------------------------- outside the layers

    def reduce(self, held: RankParameters[int], name: str = "gradient reduction", action: Action | None = None) -> None:
        """Reduce the gradients of these parameters after the latest item of the chain."""
        width = self.share.framework.reduce_bytes
        block = outer_layers.reduce_gradients(self.share, held.dense * width, held.experts * width, name)
        if block.ops:
            self.pending.append(self.chain.beside(block, (self.chain.tail,), Phase.SYNC, action))

    def reduce_tied(self) -> None:
        """Add up the gradients of the embedding that the first and the last stage share, after all others."""
        block = outer_layers.tied_gradients(self.share)
        self.pending.append(self.chain.beside(block, (self.chain.tail, *self.pending), Phase.SYNC, transfer="tied"))

    def gather_after(self, held: RankParameters[int]) -> None:
        """Gather the parameters that the optimizer updated after the latest item of the chain."""
        width = self.share.parameter_bytes
        gather = outer_layers.gather_parameters(self.share, held.dense * width, held.experts * width)
        if gather.ops:
            self.chain.beside(gather, (self.chain.tail,), Phase.SYNC)

    # ---------------------------------------------------------------- blocks

    def _parameters(self, mixture: bool) -> RankParameters[int]:
        return layer_parameters(self.share.model, mixture, self.share.plan.tp, self.share.plan.ep)

    def _reduction(self, mixture: bool, layers: int) -> Block:
        """The exchange of the gradients of `layers` layers: dense parts over all replicas, experts over the replicas of experts."""
        dense, experts = self._parameters(mixture)
        width = self.share.framework.reduce_bytes * layers
        return self.chain.blocks.make(
            ("reduce", mixture, layers), lambda: outer_layers.reduce_gradients(self.share, dense * width, experts * width)
        )

    def _gather(self, mixture: bool, lane: RankStream) -> Block:
        """The gather of one layer's parameters."""
        dense, experts = self._parameters(mixture)
        width = self.share.parameter_bytes
        return self.chain.blocks.make(
            ("gather", mixture, lane), lambda: outer_layers.gather_parameters(self.share, dense * width, experts * width, lane)
        )

    def _slowed(self, block: Block, *exchanges: Block) -> Block:
        """The block, longer by what its compute loses to the exchanges that run at the same time."""
        return self.chain.blocks.make(("slowed", id(block), *map(id, exchanges)), lambda: _with_contention(block, exchanges))


def _with_contention(block: Block, exchanges: tuple[Block, ...]) -> Block:
    beside = tuple(op.work for op in block.ops if op.lane is RankStream.COMPUTE)
    lost = [Contention(op.work, beside=beside) for other in exchanges for op in other.ops if isinstance(op.work, Collective)]
    if not lost:
        return block
    ops, waits = [*block.ops], block.last_ops
    for work in lost:
        ops.append(Op("contention", RankStream.COMPUTE, work, CONTENTION_LAUNCH, waits))
        waits = (len(ops) - 1,)
    return Block(block.name, tuple(ops), waits, block.before)
