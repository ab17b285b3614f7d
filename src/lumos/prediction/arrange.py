"""Arrange a model under a plan: which blocks every stage runs, in which order, and what waits for what."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from lumos.blocks import outer_layers
from lumos.blocks.block import Block, Builder
from lumos.blocks.layer import LayerWork
from lumos.blocks.share import RankParameters, Share, stage_parameters
from lumos.blocks.work import RankStream
from lumos.plan.plan import Plan, check_plan, layer_count, layers_of_chunks, outer_parts
from lumos.plan.schedules import Action, Pass, gradient_reduction, holds_sender, reducing_passes, schedule
from lumos.prediction.cuda_graphs import captured
from lumos.prediction.exchanges import StageExchanges
from lumos.prediction.layout import Blocks, Chain, Item, LayerRun, Layout, equal_layers
from lumos.vocabulary import Phase, Recompute, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lumos.model import Model
    from lumos.plan.framework import Framework


def arrange(model: Model, plan: Plan, framework: Framework, devices_per_node: int) -> Layout:
    """The layout of one training step. Raises PlanError if the plan breaks a rule."""
    check_plan(plan, model)
    share = Share(model, plan, framework, devices_per_node)
    chunks = layers_of_chunks(plan, model)
    blocks, work = Blocks(), LayerWork(share)
    stages = tuple(tuple(Stage(share, work, blocks, s, chunks).items()) for s in range(plan.pp))
    layout = Layout(model, plan, framework, tuple(blocks.blocks), stages)
    return captured(layout) if framework.cuda_graphs else layout


@dataclass(slots=True)
class Stage:
    """Lists the items of one pipeline stage in the order of their launch."""

    share: Share
    work: LayerWork
    blocks: Blocks
    stage: int
    chunks: list[list[range]]
    chain: Chain = field(init=False)
    exchanges: StageExchanges = field(init=False)
    runs: list[list[LayerRun]] = field(init=False)  # equal layers of each chunk
    tail_before_pass: int = -1  # what the tail of the chain was before the latest pass

    def __post_init__(self) -> None:
        self.chain = Chain(self.blocks)
        self.exchanges = StageExchanges(self.share, self.chain)
        self.runs = [equal_layers(self.share.model, layers) for layers in self.chunks[self.stage]]

    # ---------------------------------------------------------------- the step

    def items(self) -> list[Item]:
        self._begin()
        for action, final in self._actions():
            before = self.chain.tail
            self._pass(action, final)
            self.tail_before_pass = before
        self._finish()
        return self.chain.placed

    def _actions(self) -> Iterator[tuple[Action, bool]]:
        """The passes of the stage in order, each with whether it completes gradients that are reduced then."""
        plan = self.share.plan
        actions = schedule(plan.schedule, self.stage, plan.pp, plan.microbatches, plan.vpp)
        complete = reducing_passes(actions, gradient_reduction(plan, self.share.framework))
        for i, action in enumerate(actions):
            yield action, i in complete

    def _begin(self) -> None:
        """Begin the step. With overlap, the parameters that a sharded optimizer updated are gathered during the first forward pass.
        Without it, `_finish` gathers them at the end of the step. A stage of sharded parameters always gathers them first."""
        plan, framework = self.share.plan, self.share.framework
        self.chain.beside(Builder("step begin", 0, round(1000 * framework.step_us)).build())
        overlaps = framework.gather_overlap if plan.zero in (1, 2) else plan.zero == 3 and not plan.gathers_each
        if overlaps and plan.lora_rank == 0 and plan.dp * plan.cp > 1:
            for runs in self.runs:
                for run in runs:
                    self.exchanges.gather_before(run)

    def _finish(self) -> None:
        plan, framework = self.share.plan, self.share.framework
        held = self._trained_parameters()
        data = plan.dp * plan.cp
        if data > 1 and not (plan.gathers_each or self.exchanges.reduces_often or framework.dp_overlap):
            self.exchanges.reduce(held)
        elif data > 1 and outer_parts(plan.schedule, plan.pp, self.stage).last and not self.share.model.tied and plan.lora_rank == 0:
            self.exchanges.reduce(self._outer_part(self.share.model.head_parameters), "head gradients")
        if self.share.model.tied and plan.pp > 1 and plan.lora_rank == 0 and self.stage in (0, plan.pp - 1):
            self.exchanges.reduce_tied()
        self.chain.wait_for(*self.exchanges.pending, host=True)
        self.chain.then(outer_layers.optimizer(self.share, held, layer_count(self.chunks[self.stage])), Phase.OPTIMIZER)
        if plan.zero in (1, 2) and data > 1 and not framework.gather_overlap:
            self.exchanges.gather_after(held)

    # ---------------------------------------------------------------- passes

    def _pass(self, action: Action, final: bool) -> None:
        if action.step is Pass.FORWARD:
            self._forward(action)
        else:
            self._backward(action, final)

    def _forward(self, action: Action) -> None:
        chunk = self._position(action.chunk)
        first, last = chunk == 0, chunk == self._chunk_count - 1
        if not first:
            self._receive(f"f{chunk}.{action.microbatch}", RankStream.RECEIVE_FORWARD, "receive forward", action)
        if first:
            self._outer(outer_layers.embedding_forward, Phase.FORWARD, action)
        for run in self.runs[action.chunk]:
            block = self.blocks.make((Pass.FORWARD, run.mixture), partial(self.work.forward, run.mixture))
            self.exchanges.forward(block, run, action)
        if last:
            self._outer(outer_layers.head_forward, Phase.FORWARD, action)
        else:
            self._send(f"f{chunk + 1}.{action.microbatch}", RankStream.SEND_FORWARD, "send forward", action)

    def _backward(self, action: Action, final: bool) -> None:
        plan = self.share.plan
        chunk = self._position(action.chunk)
        first, last = chunk == 0, chunk == self._chunk_count - 1
        exchange = action.step is not Pass.INPUT and (plan.gathers_each or (final and self.exchanges.overlaps))
        if action.step is Pass.WEIGHT:
            self._weights(action, exchange)
            return
        if not last:
            self._receive(f"b{chunk}.{action.microbatch}", RankStream.RECEIVE_BACKWARD, "receive backward", action)
        else:
            self._outer(outer_layers.head_backward, Phase.BACKWARD, action)
        for run in reversed(self.runs[action.chunk]):
            self._backward_layers(run, action, exchange)
        if first and plan.lora_rank == 0:
            self._outer(outer_layers.embedding_backward, Phase.BACKWARD, action)
            self._reduce_embedding(action, exchange)
        if not first:
            self._send(f"b{chunk - 1}.{action.microbatch}", RankStream.SEND_BACKWARD, "send backward", action)

    def _weights(self, action: Action, exchange: bool) -> None:
        """The delayed weight gradients of a split backward pass. Their exchange can only follow them."""
        for run in reversed(self.runs[action.chunk]):
            block = self.blocks.make((Pass.WEIGHT, run.mixture), partial(self.work.weights, run.mixture))
            if exchange:
                self.exchanges.bucketed_backward(block, run, action)
            else:
                self._layers(block, run.layers, action)
        if self._position(action.chunk) == 0:
            self._reduce_embedding(action, exchange)

    def _reduce_embedding(self, action: Action, exchange: bool) -> None:
        if exchange and (self.share.framework.dp_overlap or self.exchanges.reduces_often):
            self.exchanges.reduce(self._outer_part(self.share.model.embedding_parameters), "embedding gradients", action)

    def _backward_layers(self, run: LayerRun, action: Action, exchange: bool) -> None:
        """The backward pass over a run; of its layers, those that are recomputed come last along the model."""
        middle = run.layers.stop - self._recomputed(run)
        for layers, recompute in ((range(middle, run.layers.stop), True), (range(run.layers.start, middle), False)):
            if not layers:
                continue
            step = self.work.inputs if action.step is Pass.INPUT else self.work.backward
            block = self.blocks.make((action.step, run.mixture, recompute), partial(step, run.mixture, recompute))
            part = LayerRun(layers, run.mixture)
            if self.share.plan.gathers_each:
                self.exchanges.sharded_backward(block, part, action)
            elif exchange:
                self.exchanges.bucketed_backward(block, part, action)
            else:
                self._layers(block, layers, action)

    def _layers(self, block: Block, layers: range, action: Action) -> None:
        """A backward pass over layers whose gradients are not reduced yet."""
        self.chain.then(block, Phase.BACKWARD, action, repeat=len(layers), layer=layers.start)

    def _recomputed(self, run: LayerRun) -> int:
        """How many layers of the run are recomputed (Megatron's "block" method)."""
        plan = self.share.plan
        if plan.recompute is not Recompute.FULL:
            return 0
        return len(run.layers) if plan.recompute_layers < 0 else min(len(run.layers), plan.recompute_layers)

    # ---------------------------------------------------------------- parameters

    def _outer_part(self, parameters: int) -> RankParameters[int]:
        """A rank's part of the parameters of the embedding or of the head."""
        return RankParameters(-(-parameters // self.share.plan.tp), 0)

    def _trained_parameters(self) -> RankParameters[int]:
        """The parameters of the stage that are trained: all of them, or only the adapters of its layers."""
        plan, model = self.share.plan, self.share.model
        if plan.lora_rank == 0:
            return stage_parameters(self.share, self.stage, self.chunks)
        width = model.hidden + (model.heads + 2 * model.kv_heads) * model.head_dim // plan.tp
        return RankParameters(layer_count(self.chunks[self.stage]) * plan.lora_rank * width, 0)

    # ---------------------------------------------------------------- parts of the model

    @property
    def _chunk_count(self) -> int:
        return self.share.plan.pp * self.share.plan.vpp

    def _position(self, chunk: int) -> int:
        """The place of this stage's chunk among all chunks of the model."""
        if self.share.plan.schedule is Schedule.DUALPIPE and chunk == 1:
            return self.share.plan.pp - 1 - self.stage
        return chunk * self.share.plan.pp + self.stage

    def _outer(self, maker: Callable[[Share, LayerWork], Block], phase: Phase, action: Action) -> None:
        """The block of the embedding or of the head that `maker` makes."""
        self.chain.then(self.blocks.make(maker.__name__, lambda: maker(self.share, self.work)), phase, action)

    # ---------------------------------------------------------------- transfers

    def _transfer(self, name: str, lane: RankStream, action: Action) -> Block:
        """A transfer's block. With DualPipe, the pipeline that runs from the last device to the first has its own lanes."""
        up = self.share.plan.schedule is Schedule.DUALPIPE and action.chunk == 1
        own = RankStream(lane + RankStream.RECEIVE_FORWARD_UP - RankStream.RECEIVE_FORWARD) if up else lane
        return self.blocks.make((name, own), lambda: outer_layers.transfer(self.share, name, own))

    def _receive(self, key: str, lane: RankStream, name: str, action: Action) -> None:
        framework = self.share.framework
        posted = self.tail_before_pass if framework.p2p_overlap else self.chain.tail
        item = self.chain.beside(self._transfer(name, lane, action), (posted,), Phase.SYNC, action, transfer=key)
        self.chain.wait_for(item, host=framework.transfer_blocks)
        if outer_layers.scattered(self.share):
            self.chain.then(self.blocks.make("received", lambda: outer_layers.gather_received(self.share)), Phase.SYNC, action)

    def _send(self, key: str, lane: RankStream, name: str, action: Action) -> None:
        item = self.chain.beside(self._transfer(name, lane, action), (self.chain.tail,), Phase.SYNC, action, transfer=key)
        plan = self.share.plan
        if holds_sender(plan.schedule, plan.vpp, self.share.framework.p2p_overlap):
            self.chain.wait_for(item)
