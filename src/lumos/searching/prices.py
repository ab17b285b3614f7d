"""Times of the blocks of which plans consist: each distinct block is built and priced once, then written to columns of all plans.

A block depends on few of a plan's sizes, so it is built for one plan of all those with equal sizes (their representative). Times
are those of collapsed blocks, in ns.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lumos.blocks import outer_layers
from lumos.blocks.block import Block, Builder, collapse
from lumos.blocks.layer import LayerWork
from lumos.blocks.memory import layer_activations, logits_bytes, weight_gradients
from lumos.blocks.share import Share, bucket_layers, bucket_parameters, layer_parameters, stage_parameters
from lumos.blocks.work import Collective, Contention, RankStream, Work
from lumos.plan.plan import layer_count, layers_of_chunks
from lumos.plan.schedules import BUCKETS
from lumos.searching.space import SCHEDULES, Plans
from lumos.vocabulary import Recompute, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lumos.blocks.price import Pricer

Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]

#: Schedules that split backward passes.
SPLIT = (Schedule.ZERO_BUBBLE, Schedule.DUALPIPE)


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Times of every plan, float64[n] or float64[n, k], ns unless said otherwise.

    forward, backward, inputs, weights: the passes of one layer, by (dense, mixture). `*_host`: the host time of its launches. `*_lead`:
    by how much the host delays the end of the layer if host and device start at the same time. slowdown: by how much a layer's passes
    take longer while communication runs at the same time, as (backward pass during the exchange of gradients by dense and mixture,
    the same during the gather of parameters). reduction: exchange of one layer's gradients, in buckets. bucket: layers of a bucket.
    gather: gather of one layer's parameters. embedding, head: (forward, backward). outer_reduction: exchange of the gradients of
    (embedding, head). transfer: one pipeline transfer. optimizer, final_reduction, final_gather: by stage (first, middle, last). tied:
    exchange of the gradients of the table that embedding and head share.
    """

    forward: Floats
    forward_host: Floats
    forward_lead: Floats
    backward: Floats
    backward_host: Floats
    backward_lead: Floats
    inputs: Floats
    inputs_host: Floats
    inputs_lead: Floats
    weights: Floats
    weights_host: Floats
    weights_lead: Floats
    embedding: Floats
    embedding_host: Floats
    head: Floats
    head_host: Floats
    transfer: Floats
    slowdown: Floats
    reduction: Floats
    bucket: Floats
    gather: Floats
    outer_reduction: Floats
    optimizer: Floats
    final_reduction: Floats
    final_gather: Floats
    tied: Floats

    @property
    def ends_host(self) -> Floats:
        """The host time of the launches of (embedding, head), forward and backward together."""
        return np.stack([self.embedding_host.sum(axis=1), self.head_host.sum(axis=1)], axis=1)

    def take(self, which: NDArray[np.generic]) -> Columns:
        return Columns(**{f.name: getattr(self, f.name)[which] for f in fields(self)})


_NAMES = frozenset(field.name for field in fields(Columns))
#: Blocks by the name of the column that has their times on the device.
_Blocks = dict[str, list[Block]]


class _Lengths(NamedTuple):
    """The times of a collapsed block, ns."""

    device: float
    host: float
    lead: float

    @property
    def by_ending(self) -> dict[str, float]:
        """Each by what is appended to a block's name for the column that has it."""
        return {"": self.device, "_host": self.host, "_lead": self.lead}


def block_columns(plans: Plans, pricer: Pricer) -> Columns:
    """Times of the plans' blocks, priced by `pricer`."""
    many = (plans.microbatches > 1).astype(np.int64)
    sharded = np.where(plans["zero"] == 3, 2, np.minimum(plans["zero"], 1))
    dualpipe = plans["schedule"] == SCHEDULES.index(Schedule.DUALPIPE)
    # exchanges of experts run at the same time as compute
    both_ways = (dualpipe & (plans.problem.model.experts is not None)).astype(np.int64)
    layer = _representatives(plans, ("tp", "cp", "ep", "micro_batch", "sequence_parallel", "recompute"), many, both_ways)
    outer = _representatives(plans, ("tp", "cp", "micro_batch", "sequence_parallel"), many)
    parts = plans["pp"] * plans["vpp"]
    exchange = _representatives(plans, ("tp", "cp", "ep", "dp"), sharded, parts)
    end_of_step = _representatives(plans, ("tp", "cp", "ep", "dp", "pp", "vpp", "schedule"), sharded)
    transfer = _representatives(plans, ("tp", "cp", "pp", "micro_batch", "sequence_parallel"))
    split = bool(np.any(np.isin(plans["schedule"], [SCHEDULES.index(name) for name in SPLIT])))
    by_name = _spread(pricer, layer, lambda s: _layer_blocks(s, split))
    by_name |= _spread(pricer, outer, _outer_blocks)
    by_name |= _spread(pricer, transfer, lambda s: {"transfer": [outer_layers.transfer(s, "transfer", RankStream.SEND_FORWARD)]})
    by_name |= _spread(pricer, exchange, _exchange_blocks)
    by_name |= _spread(pricer, end_of_step, _tail_blocks)
    by_name |= exchange.columns([{"bucket": [float(_bucket(s, mixture)) for mixture in _kinds(s)]} for s in exchange.shares])
    by_name["reduction"] = by_name["reduction"] / by_name["bucket"]
    most = pricer.coefficients.contention * np.hstack([by_name["backward"], by_name["forward"]])
    by_name["slowdown"] = np.minimum(by_name["slowdown"], most)
    return Columns(**by_name)


def _spread(pricer: Pricer, representatives: _Representatives, build: Callable[[Share], _Blocks]) -> dict[str, Floats]:
    """Columns of all plans from the blocks of their representatives. A column of a single block has one dimension."""
    built = [build(share) for share in representatives.shares]
    times = iter(_times(pricer, [block for named in built for blocks in named.values() for block in blocks]))
    of_each = []
    for named in built:
        columns: dict[str, list[float]] = {}
        for name, blocks in named.items():
            for time in (next(times) for _ in blocks):
                for ending, length in time.by_ending.items():
                    columns.setdefault(name + ending, []).append(length)
        of_each.append({name: column for name, column in columns.items() if name in _NAMES})
    return {name: column[:, 0] if column.shape[1] == 1 else column for name, column in representatives.columns(of_each).items()}


def _times(pricer: Pricer, blocks: Sequence[Block]) -> list[_Lengths]:
    """The times of every block; equal blocks are priced once."""
    works: dict[Work, None] = dict.fromkeys(op.work for block in blocks for op in block.ops)
    known = dict(zip(works, pricer(list(works)), strict=True))
    memo: dict[Block, _Lengths] = {}
    out = []
    for block in blocks:
        if block not in memo:
            c = collapse(block, [known[op.work].times for op in block.ops])
            memo[block] = _Lengths(float(c.device.best), float(c.host), float(c.lead))
        out.append(memo[block])
    return out


class _Representatives(NamedTuple):
    """One plan of all those with equal sizes, for each such set. inverse: for every plan the index of its own."""

    shares: list[Share]
    inverse: _Ints

    def columns(self, values: Sequence[Mapping[str, float | Sequence[float]]]) -> dict[str, NDArray[Any]]:
        """Columns of all plans from the values of their representatives."""
        names = values[0] if values else ()
        return {name: np.array([price[name] for price in values])[self.inverse] for name in names}


def _representatives(plans: Plans, names: tuple[str, ...], *more: _Ints) -> _Representatives:
    """Those of the plans with equal values in the named columns and in `more`."""
    table = np.stack([*(plans[name] for name in names), *more], axis=1)
    combination = np.zeros(len(table), np.int64)
    for column in table.T:
        _, value_index = np.unique(column, return_inverse=True)
        combination = combination * (int(value_index.max(initial=0)) + 1) + value_index
    _, rows, inverse = np.unique(combination, return_index=True, return_inverse=True)
    problem, node = plans.problem, plans.problem.cluster.node.devices
    return _Representatives([Share(problem.model, plans.plan(row), problem.framework, node) for row in rows.tolist()], inverse)


# ---------------------------------------------------------------- layers


def _layer_blocks(share: Share, split: bool) -> _Blocks:
    work = LayerWork(share)
    recompute = share.plan.recompute is Recompute.FULL
    halves = {mixture: (work.inputs(mixture, recompute), work.weights(mixture)) for mixture in {*_kinds(share)}} if split else {}
    whole = {mixture: (work.forward(mixture), work.backward(mixture, recompute)) for mixture in sorted({*_kinds(share)})}
    passes = [(*whole[mixture], *halves.get(mixture, (_EMPTY, _EMPTY))) for mixture in _kinds(share)]
    return {name: list(blocks) for name, *blocks in zip(("forward", "backward", "inputs", "weights"), *passes, strict=True)}


_EMPTY = Block("", (), ())


def _kinds(share: Share) -> tuple[bool, ...]:
    """For both columns whether their layers are mixtures, dense first. A model with one kind of layers has it in both columns."""
    mixtures = share.model.mixture_layers
    return (mixtures == share.model.layers, mixtures > 0)


def _outer_blocks(share: Share) -> _Blocks:
    work = LayerWork(share)
    return {
        "embedding": [outer_layers.embedding_forward(share, work), outer_layers.embedding_backward(share, work)],
        "head": [outer_layers.head_forward(share, work), outer_layers.head_backward(share, work)],
    }


# ---------------------------------------------------------------- exchanges of gradients and parameters


def _bucket(share: Share, mixture: bool) -> int:
    """How many layers exchange their gradients together."""
    return bucket_layers(share, mixture, most=-(-share.model.layers // (share.plan.pp * share.plan.vpp)))


def _exchange_blocks(share: Share) -> _Blocks:
    plan, model, width = share.plan, share.model, share.framework.reduce_bytes
    slowed: list[Block] = []
    reductions, gathers = [], []
    for mixture in _kinds(share):
        dense, experts = layer_parameters(model, mixture, plan.tp, plan.ep)
        size = _bucket(share, mixture)
        slowed.append(_contention(outer_layers.reduce_gradients(share, dense * width, experts * width)))
        reductions.append(outer_layers.reduce_gradients(share, dense * width * size, experts * width * size))
        gathers.append(outer_layers.gather_parameters(share, dense * share.parameter_bytes, experts * share.parameter_bytes))
    outer = [-(-parameters // plan.tp) * width for parameters in (model.embedding_parameters, model.head_parameters)]
    return {
        "slowdown": [*slowed, *map(_contention, gathers)],
        "reduction": reductions,
        "gather": gathers,
        "outer_reduction": [outer_layers.reduce_gradients(share, nbytes) for nbytes in outer],
    }


def _contention(block: Block) -> Block:
    b = Builder("contention", 0)
    for op in block.ops:
        if isinstance(op.work, Collective):
            b.add("contention", Contention(op.work))
    return b.build()


# ---------------------------------------------------------------- the end of the step


def _tail_blocks(share: Share) -> _Blocks:
    f, plan, model = share.framework, share.plan, share.model
    chunks = layers_of_chunks(plan, model)
    late = not f.gather_overlap and plan.zero in (1, 2)
    blocks: _Blocks = {"optimizer": [], "final_reduction": [], "final_gather": []}
    for stage in (0, min(1, plan.pp - 1), plan.pp - 1):  # the first, one for those in the middle, the last
        held = stage_parameters(share, stage, chunks)
        reduced, gathered = f.reduce_bytes, share.parameter_bytes
        blocks["optimizer"].append(outer_layers.optimizer(share, held, layer_count(chunks[stage])))
        reduction = _EMPTY if f.dp_overlap else outer_layers.reduce_gradients(share, held.dense * reduced, held.experts * reduced)
        blocks["final_reduction"].append(reduction)
        gather = outer_layers.gather_parameters(share, held.dense * gathered, held.experts * gathered) if late else _EMPTY
        blocks["final_gather"].append(gather)
    return blocks | {"tied": [outer_layers.tied_gradients(share) if model.tied and plan.pp > 1 else _EMPTY]}


# ---------------------------------------------------------------- memory


def memory_columns(plans: Plans) -> dict[str, _Ints]:
    """Bytes of one microbatch, by plan. `layer`: activations of a layer, by (dense, mixture). `input`: the part of them that full
    recomputation saves. `logits`. `weights`: weight gradients that are being exchanged, by (not the last stage, the last). `buckets`: the
    number of gradients in the buckets that are reduced at a time."""
    layers = _representatives(plans, ("tp", "cp", "ep", "micro_batch", "sequence_parallel", "recompute"))
    parts = _representatives(plans, ("tp", "ep"), plans["pp"] * plans["vpp"])
    columns = layers.columns(
        [
            {
                "layer": [layer_activations(s, mixture) for mixture in _kinds(s)],
                "input": s.activation_bytes * s.residual_tokens * s.model.hidden,
                "logits": logits_bytes(s),
                "weights": [weight_gradients(s, -1), weight_gradients(s, s.plan.pp - 1)],
            }
            for s in layers.shares
        ]
    )
    return columns | parts.columns([{"buckets": BUCKETS * bucket_parameters(s)} for s in parts.shares])
