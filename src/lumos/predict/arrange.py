"""Arrange a model under a plan: which blocks every stage runs, in which order, and what waits for what."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from lumos.blocks import outer_layers
from lumos.blocks.block import Block, Builder, Op
from lumos.blocks.layer import LayerWork
from lumos.blocks.parameters import RankParameters, bucket_layers, layer_parameters, stage_parameters
from lumos.blocks.share import Share
from lumos.blocks.work import Collective, Contention, RankStream
from lumos.plan.gradients import gradient_reduction, reducing_passes
from lumos.plan.plan import Plan, check_plan, layer_count, layers_of_chunks, outer_parts
from lumos.plan.schedules import Action, Pass, holds_sender, schedule
from lumos.predict.cuda_graphs import captured
from lumos.predict.layout import Blocks, Item, Layout
from lumos.vocabulary import GradientReduction, Phase, Recompute, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lumos.model import Model
    from lumos.plan.framework import Framework

#: Host time of launching a contention task, ns. No such launch exists, but every task of a stream needs one.
CONTENTION_LAUNCH = 1000


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
class _Run:
    """Consecutive layers of a chunk that do the same work. mixture: they have experts."""

    layers: range
    mixture: bool


@dataclass(slots=True)
class Stage:
    """Lists the items of one pipeline stage in the order of their launch."""

    share: Share
    work: LayerWork
    blocks: Blocks
    stage: int
    chunks: list[list[range]]
    placed: list[Item] = field(default_factory=list)
    tail: int = -1  # the last item of the compute chain
    tail_before_pass: int = -1  # what the tail was before the latest pass
    pending: list[int] = field(default_factory=list)  # gradient exchanges that the optimizer waits for
    runs: dict[int, list[_Run]] = field(default_factory=dict)  # equal layers of each chunk
    gathered: dict[int, int] = field(default_factory=dict)  # layer → the item that gathers its parameters, until it has been waited for
    host_blocked: bool = False  # the host also waits for what the next item of the chain waits for
    extra_waits: tuple[int, ...] = ()  # what the next item of the chain waits for besides the tail

    # ---------------------------------------------------------------- the step

    def items(self) -> list[Item]:
        self._begin()
        for action, final in self._actions():
            before = self.tail
            self._pass(action, final)
            self.tail_before_pass = before
        self._finish()
        return self.placed

    def runs_of_blocks(self) -> Counter[int]:
        """How often `items` runs each block, by number of the block.

        The blocks of a pass depend on its kind, on its chunk and on whether it completes gradients, but not on
        its microbatch, so passes that agree in these are listed once and counted.
        """
        self._begin()
        kinds = Counter((action.step, action.chunk, final) for action, final in self._actions())
        times = [1] * len(self.placed)
        for (step, chunk, final), count in kinds.items():
            self._pass(Action(step, 0, chunk), final)
            times += [count] * (len(self.placed) - len(times))
        self._finish()
        times += [1] * (len(self.placed) - len(times))
        total: Counter[int] = Counter()
        for item, count in zip(self.placed, times, strict=True):
            total[item.block] += item.repeat * count
        return total

    def _begin(self) -> None:
        begin = Builder("step begin", 0, round(1000 * self.share.framework.step_us)).build()
        self._place(begin, phase=Phase.SYNC)
        self._begin_parameters()

    def _actions(self) -> Iterator[tuple[Action, bool]]:
        """The passes of the stage in order, each with whether it completes gradients that are reduced then."""
        plan = self.share.plan
        actions = schedule(plan.schedule, self.stage, plan.pp, plan.microbatches, plan.vpp)
        complete = reducing_passes(actions, self._reduction_of_parts())
        for i, action in enumerate(actions):
            yield action, i in complete

    def _pass(self, action: Action, final: bool) -> None:
        if action.step is Pass.FORWARD:
            self._forward(action)
        elif not self.share.plan.forward_only:
            self._backward(action, final)

    # ---------------------------------------------------------------- passes

    def _forward(self, action: Action) -> None:
        chunk = self._position(action.chunk)
        first, last = chunk == 0, chunk == self._chunk_count - 1
        if not first:
            self._receive(f"f{chunk}.{action.microbatch}", RankStream.RECEIVE_FORWARD, "receive forward", action)
        if first:
            self._chain(self._outer_block(outer_layers.embedding_forward), Phase.FORWARD, action)
        for run in self._runs(action.chunk):
            block = self.blocks.of_pass((Pass.FORWARD, run.mixture), partial(self.work.forward, run.mixture))
            self._layers(block, run, Phase.FORWARD, action)
        if last:
            self._chain(self._outer_block(outer_layers.head_forward), Phase.FORWARD, action)
        else:
            self._send(f"f{chunk + 1}.{action.microbatch}", RankStream.SEND_FORWARD, "send forward", action)

    def _backward(self, action: Action, final: bool) -> None:
        plan = self.share.plan
        chunk = self._position(action.chunk)
        first, last = chunk == 0, chunk == self._chunk_count - 1
        overlaps = self._reduces_often() or (self._overlaps() and plan.lora_rank == 0)
        exchange = action.step is not Pass.INPUT and (plan.gathers_each or (final and overlaps))
        if action.step is Pass.WEIGHT:
            self._weights(action, exchange)
            return
        if not last:
            self._receive(f"b{chunk}.{action.microbatch}", RankStream.RECEIVE_BACKWARD, "receive backward", action)
        else:
            self._chain(self._outer_block(outer_layers.head_backward), Phase.BACKWARD, action)
        for run in reversed(self._runs(action.chunk)):
            self._backward_layers(run, action, exchange)
        if first and plan.lora_rank == 0:
            self._chain(self._outer_block(outer_layers.embedding_backward), Phase.BACKWARD, action)
            if exchange and (self.share.framework.dp_overlap or self._reduces_often()):
                self._reduce(self._outer_parameters(), action, "embedding gradients")
        if not first:
            self._send(f"b{chunk - 1}.{action.microbatch}", RankStream.SEND_BACKWARD, "send backward", action)

    def _weights(self, action: Action, exchange: bool) -> None:
        """The delayed weight gradients of a split backward pass. Their exchange can only follow them."""
        for run in reversed(self._runs(action.chunk)):
            block = self.blocks.of_pass((Pass.WEIGHT, run.mixture), partial(self.work.weights, run.mixture))
            if exchange:
                self._bucketed_backward(block, run, action)
            else:
                self._layers(block, run, Phase.BACKWARD, action)
        reduced = self.share.framework.dp_overlap or self._reduces_often()
        if exchange and self._position(action.chunk) == 0 and reduced:
            self._reduce(self._outer_parameters(), action, "embedding gradients")

    def _backward_layers(self, run: _Run, action: Action, exchange: bool) -> None:
        plan = self.share.plan
        recomputed = self._recomputed(run)
        splits: list[tuple[range, bool]] = []
        middle = run.layers.stop - recomputed
        if recomputed:
            splits.append((range(middle, run.layers.stop), True))
        if middle > run.layers.start:
            splits.append((range(run.layers.start, middle), False))
        for layers, recompute in splits:
            step = self.work.inputs if action.step is Pass.INPUT else self.work.backward
            key = (action.step, run.mixture, recompute)
            block = self.blocks.of_pass(key, partial(step, run.mixture, recompute))
            part = _Run(layers, run.mixture)
            if plan.gathers_each:
                self._sharded_backward(block, part, action)
            elif exchange:
                self._bucketed_backward(block, part, action)
            else:
                self._layers(block, part, Phase.BACKWARD, action)

    def _recomputed(self, run: _Run) -> int:
        """How many layers of the run are recomputed (Megatron's "block" method)."""
        plan = self.share.plan
        if plan.recompute is not Recompute.FULL:
            return 0
        if plan.recompute_layers < 0:
            return len(run.layers)
        return min(len(run.layers), plan.recompute_layers)

    # ---------------------------------------------------------------- sharded parameters (zero 3)

    def _layers(self, block: Block, run: _Run, phase: Phase, action: Action) -> None:
        plan = self.share.plan
        if phase is Phase.FORWARD and plan.gathers_each and plan.shards > 1:
            self._sharded_forward(block, run, action)
        elif phase is Phase.FORWARD and any(layer in self.gathered for layer in run.layers):
            for layer in run.layers:
                self._wait_for(self.gathered.pop(layer, None))
                self._chain(block, phase, action, layer=layer)
        else:
            self._chain(block, phase, action, repeat=len(run.layers), layer=run.layers.start)

    def _sharded_forward(self, block: Block, run: _Run, action: Action) -> None:
        """Each layer's parameters are gathered while the previous layer runs; at most two layers' parameters are held at a time."""
        gather = self._gather(run.mixture, RankStream.DATA)
        slowed = self._slowed(block, gather)
        before = [self.tail, self.tail]
        ready = self._place(gather, (before[0],), Phase.SYNC, action, run.layers.start)
        for layer in run.layers:
            this = ready
            if layer + 1 < run.layers.stop:
                ready = self._place(gather, (before[0],), Phase.SYNC, action, layer + 1)
            self._wait_for(this)
            before = [before[1], self._chain(slowed, Phase.FORWARD, action, layer=layer)]

    def _sharded_backward(self, block: Block, run: _Run, action: Action) -> None:
        plan = self.share.plan
        gather = self._gather(run.mixture, RankStream.DATA)
        reduce = self._reduction(run.mixture, 1)
        again = plan.reshard and plan.shards > 1
        slowed = self._slowed(block, *([gather] if again else []), reduce)
        before = [self.tail, self.tail]
        ready = self._place(gather, (before[0],), Phase.SYNC, action, run.layers[-1]) if again else -1
        for layer in reversed(run.layers):
            this = ready
            if again and layer > run.layers.start:
                ready = self._place(gather, (before[0],), Phase.SYNC, action, layer - 1)
            self._wait_for(this if again else None)
            before = [before[1], self._chain(slowed, Phase.BACKWARD, action, layer=layer)]
            self.pending.append(self._place(reduce, (self.tail,), Phase.SYNC, action, layer))

    # ---------------------------------------------------------------- gradients exchanged during the last backward pass

    def _overlaps(self) -> bool:
        plan = self.share.plan
        return self.share.framework.dp_overlap and plan.dp * plan.cp > 1

    def _reduction_of_parts(self) -> GradientReduction:
        return gradient_reduction(self.share.plan, self.share.framework)

    def _reduces_often(self) -> bool:
        """Whether gradients are reduced more often than once a step, because a rank keeps only its part of them."""
        return self._reduction_of_parts() is not GradientReduction.STEP

    def _bucketed_backward(self, block: Block, run: _Run, action: Action) -> None:
        """Gradients are reduced in buckets of whole layers, each as soon as the last layer of the bucket has run."""
        size = bucket_layers(self.share, run.mixture, most=len(run.layers))
        left = list(reversed(run.layers))
        slow = self._slowed(block, self._reduction(run.mixture, 1))
        while left:
            part, left = left[:size], left[size:]
            self._chain(slow, Phase.BACKWARD, action, repeat=len(part), layer=part[-1])
            self.pending.append(self._place(self._reduction(run.mixture, len(part)), (self.tail,), Phase.SYNC, action, part[-1]))

    def _reduction(self, mixture: bool, layers: int) -> Block:
        """The exchange of the gradients of `layers` layers: dense parts over all replicas, experts over the replicas of experts."""
        dense, experts = self._layer_parameters(mixture)
        width = self.share.framework.reduce_bytes * layers
        return self.blocks.make(
            ("reduce", mixture, layers), lambda: outer_layers.reduce_gradients(self.share, dense * width, experts * width)
        )

    def _gather(self, mixture: bool, lane: RankStream) -> Block:
        """The gather of one layer's parameters."""
        dense, experts = self._layer_parameters(mixture)
        width = self.share.parameter_bytes
        return self.blocks.make(
            ("gather", mixture, lane), lambda: outer_layers.gather_parameters(self.share, dense * width, experts * width, lane)
        )

    def _reduce(self, parameters: int, action: Action | None, name: str) -> None:
        block = outer_layers.reduce_gradients(self.share, parameters * self.share.framework.reduce_bytes, 0, name)
        if block.ops:
            self.pending.append(self._place(block, (self.tail,), Phase.SYNC, action))

    def _slowed(self, block: Block, *exchanges: Block) -> Block:
        """The block, longer by what its compute loses to the exchanges that run at the same time."""
        return self.blocks.make(("slowed", id(block), *map(id, exchanges)), lambda: self._with_contention(block, exchanges))

    def _with_contention(self, block: Block, exchanges: tuple[Block, ...]) -> Block:
        lost = [Contention(op.work) for other in exchanges for op in other.ops if isinstance(op.work, Collective)]
        if not lost:
            return block
        b = Builder(block.name, CONTENTION_LAUNCH)
        for work in lost:
            b.add("contention", work)
        extra = b.build()
        ops = (*block.ops, *_renumbered(extra, len(block.ops), block.last_ops))
        return Block(block.name, ops, (len(ops) - 1,), block.before)

    # ---------------------------------------------------------------- begin and end of the step

    def _begin_parameters(self) -> None:
        """With overlap, the parameters that a sharded optimizer updated are gathered during the first forward pass. Without it,
        `_finish` gathers them at the end of the step. A stage of sharded parameters always gathers them first."""
        plan = self.share.plan
        overlaps = self.share.framework.gather_overlap if plan.zero in (1, 2) else plan.zero == 3 and not plan.gathers_each
        if not overlaps or plan.lora_rank or plan.dp * plan.cp == 1:
            return
        for chunk in range(len(self.chunks[self.stage])):
            for run in self._runs(chunk):
                gather = self._gather(run.mixture, RankStream.GATHER)
                if not gather.ops:
                    continue
                for layer in run.layers:
                    self.gathered[layer] = self._place(gather, (), Phase.SYNC, None, layer)

    def _finish(self) -> None:
        plan, framework = self.share.plan, self.share.framework
        if plan.forward_only:
            return
        held = self._trained_parameters()
        data = plan.dp * plan.cp
        if data > 1 and not (plan.gathers_each or self._reduces_often() or framework.dp_overlap):
            width = framework.reduce_bytes
            block = outer_layers.reduce_gradients(self.share, held.dense * width, held.experts * width)
            if block.ops:
                self.pending.append(self._place(block, (self.tail,), Phase.SYNC))
        elif (
            data > 1
            and outer_parts(plan.schedule, plan.pp, self.stage).last
            and (plan.pp > 1 or plan.gathers_each or self._reduces_often() or framework.dp_overlap)
            and not self.share.model.tied
            and plan.lora_rank == 0
        ):
            self._reduce(self._head_parameters(), None, "head gradients")
        if self.share.model.tied and plan.pp > 1 and plan.lora_rank == 0 and self.stage in (0, plan.pp - 1):
            block = outer_layers.tied_gradients(self.share)
            self.pending.append(self._place(block, (self.tail, *self.pending), Phase.SYNC, transfer="tied"))
        self._wait_for(*self.pending)
        optimizer = outer_layers.optimizer(self.share, held, layer_count(self.chunks[self.stage]))
        self._chain(optimizer, Phase.OPTIMIZER, host_waits=True)
        if plan.zero in (1, 2) and data > 1 and not framework.gather_overlap:
            width = self.share.parameter_bytes
            gather = outer_layers.gather_parameters(self.share, held.dense * width, held.experts * width)
            if gather.ops:
                self._place(gather, (self.tail,), Phase.SYNC)

    # ---------------------------------------------------------------- parameters

    def _layer_parameters(self, mixture: bool) -> RankParameters[int]:
        return layer_parameters(self.share.model, mixture, self.share.plan.tp, self.share.plan.ep)

    def _outer_parameters(self) -> int:
        model = self.share.model
        return -(-model.embedding_parameters // self.share.plan.tp)

    def _head_parameters(self) -> int:
        return -(-self.share.model.head_parameters // self.share.plan.tp)

    def _trained_parameters(self) -> RankParameters[int]:
        """The parameters of the stage that are trained: all of them, or only the adapters of its layers."""
        plan, model = self.share.plan, self.share.model
        if plan.lora_rank == 0:
            return stage_parameters(self.share, self.stage, self.chunks)
        width = model.hidden + (model.heads + 2 * model.kv_heads) * model.head_dim // plan.tp
        return RankParameters(layer_count(self.chunks[self.stage]) * plan.lora_rank * width, 0)

    # ---------------------------------------------------------------- items

    @property
    def _chunk_count(self) -> int:
        return self.share.plan.pp * self.share.plan.vpp

    def _position(self, chunk: int) -> int:
        """The place of this stage's chunk among all chunks of the model."""
        if self.share.plan.schedule is Schedule.DUALPIPE and chunk == 1:
            return self.share.plan.pp - 1 - self.stage
        return chunk * self.share.plan.pp + self.stage

    def _runs(self, chunk: int) -> list[_Run]:
        if chunk not in self.runs:
            self.runs[chunk] = self._runs_of(chunk)
        return self.runs[chunk]

    def _runs_of(self, chunk: int) -> list[_Run]:
        runs: list[_Run] = []
        model = self.share.model
        for layer in self.chunks[self.stage][chunk]:
            mixture = model.is_mixture(layer)
            if runs and runs[-1].mixture == mixture:
                runs[-1] = _Run(range(runs[-1].layers.start, layer + 1), mixture)
            else:
                runs.append(_Run(range(layer, layer + 1), mixture))
        return runs

    def _wait_for(self, *items: int | None) -> None:
        self.extra_waits += tuple(i for i in items if i is not None and i >= 0)

    def _chain(
        self, block: Block, phase: Phase, action: Action | None = None, repeat: int = 1, layer: int = -1, host_waits: bool = False
    ) -> int:
        waits = (*((self.tail,) if self.tail >= 0 else ()), *self.extra_waits)
        self.extra_waits = ()
        host_waits, self.host_blocked = host_waits or self.host_blocked, False
        self.tail = self._place(block, waits, phase, action, layer, repeat, host_waits)
        return self.tail

    def _place(
        self,
        block: Block,
        waits: tuple[int, ...] = (),
        phase: Phase = Phase.SYNC,
        action: Action | None = None,
        layer: int = -1,
        repeat: int = 1,
        host_waits: bool = False,
        transfer: str = "",
    ) -> int:
        microbatch = action.microbatch if action else -1
        waits = tuple(dict.fromkeys(w for w in waits if w >= 0))
        self.placed.append(Item(self.blocks.number(block), waits, repeat, host_waits, transfer, phase, layer, microbatch))
        return len(self.placed) - 1

    def _outer_block(self, maker: Callable[[Share, LayerWork], Block]) -> Block:
        """The block of the embedding or of the head that `maker` makes."""
        return self.blocks.of_pass(maker.__name__, lambda: maker(self.share, self.work))

    def _transfer(self, name: str, lane: RankStream) -> Block:
        return self.blocks.of_pass((name, lane), lambda: outer_layers.transfer(self.share, name, lane))

    def _receive(self, key: str, lane: RankStream, name: str, action: Action) -> None:
        posted = self.tail_before_pass if self.share.framework.p2p_overlap else self.tail
        item = self._place(self._transfer(name, self._lane(lane, action)), (posted,), Phase.SYNC, action, transfer=key)
        self._wait_for(item)
        self.host_blocked = self.share.framework.transfer_blocks
        if outer_layers.scattered(self.share):
            self._chain(self.blocks.of_pass("received", lambda: outer_layers.gather_received(self.share)), Phase.SYNC, action)

    def _lane(self, lane: RankStream, action: Action) -> RankStream:
        """The lane of a transfer. With DualPipe, the pipeline that runs from the last device to the first has its own lanes."""
        up = self.share.plan.schedule is Schedule.DUALPIPE and action.chunk == 1
        return RankStream(lane + RankStream.RECEIVE_FORWARD_UP - RankStream.RECEIVE_FORWARD) if up else lane

    def _send(self, key: str, lane: RankStream, name: str, action: Action) -> None:
        item = self._place(self._transfer(name, self._lane(lane, action)), (self.tail,), Phase.SYNC, action, transfer=key)
        plan = self.share.plan
        if holds_sender(plan.schedule, plan.vpp, self.share.framework.p2p_overlap):
            self._wait_for(item)


def _renumbered(block: Block, base: int, waits: tuple[int, ...] = ()) -> tuple[Op, ...]:
    """The block's ops, renumbered to follow `base` others. Those that wait for no op wait for `waits`."""
    return tuple(replace(op, after=tuple(a + base for a in op.after) if op.after else waits) for op in block.ops)
