"""The work outside the layers: embedding, head and loss, exchange of gradients and parameters, optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.blocks.block import Block, Builder
from lumos.blocks.layer_parts import FP32, LayerParts
from lumos.blocks.share import RankParameters, owned_parameters, tensors_of_layer
from lumos.blocks.work import RankStream, Traffic
from lumos.vocabulary import CollectiveKind, Loss

if TYPE_CHECKING:
    from lumos.blocks.share import Share

#: Bytes per parameter that one fused Adam step moves: the fp32 master weight and two moments, each read and written.
ADAM_BYTES = 2 * 3 * FP32
#: Bytes moved for each logit, and the number of kernels, by how the loss is computed. torch: cast to fp32, log-softmax in one
#: kernel; backward: gradient of the selection, of log-softmax, cast to 16 bit. megatron (parallel over the vocabulary): cast to
#: fp32, maximum, subtract, exponential, sum, divide; backward: scale, cast to 16 bit. fused: two passes over 16-bit logits;
#: the gradient is written in their place.
LOSS_FORWARD = {Loss.TORCH: (16, 4), Loss.MEGATRON: (38, 8), Loss.FUSED: (6, 3)}
LOSS_BACKWARD = {Loss.TORCH: (22, 4), Loss.MEGATRON: (14, 4), Loss.FUSED: (4, 1)}


def embedding_forward(share: Share, layers: LayerParts) -> Block:
    """Look up the rows of the table, which is split over the tensor-parallel ranks, and add learned positions."""
    b = _builder("embedding forward", share)
    elements = share.tokens * share.model.hidden
    width = share.activation_bytes
    b.add("embedding", Traffic(2 * width * elements, 3 if share.plan.tp > 1 else 1))
    layers.reduce_output(b)
    if share.model.positions == "learned":
        b.add("positions", Traffic(3 * width * share.residual_tokens * share.model.hidden, 2))
    if share.framework.dropout:
        b.add("embedding dropout", Traffic((2 * width + 1) * share.residual_tokens * share.model.hidden))
    return b.build()


def embedding_backward(share: Share, layers: LayerParts) -> Block:
    """The dense gradient of the table: it is zeroed, then rows are added."""
    b = _builder("embedding backward", share)
    layers.gather_input(b)
    width, rows = share.activation_bytes, share.vocab * share.model.hidden
    b.add("embedding gradient", Traffic(width * rows + 3 * width * share.tokens * share.model.hidden, 6))
    if share.plan.microbatches > 1 or share.framework.gradient_bytes > width:
        b.add("embedding accumulate", Traffic((width + 2 * share.framework.gradient_bytes) * rows))
    return b.build()


def head_forward(share: Share, layers: LayerParts) -> Block:
    """Final norm, logits, and cross-entropy over this rank's part of the vocabulary."""
    b = _builder("head forward", share)
    layers.norm_forward(b, share.residual_tokens)
    layers.gather_input(b)
    layers.linear_forward(b, "logits", share.tokens, share.vocab, share.model.hidden)
    logits = share.tokens * share.vocab
    nbytes, kernels = LOSS_FORWARD[share.framework.loss]
    b.add("cross-entropy", Traffic(nbytes * logits, kernels))
    if share.plan.tp > 1:
        for part in ("maximum", "target", "sum"):
            b.add(f"tp all-reduce of the {part}", share.tensor(CollectiveKind.ALL_REDUCE, FP32 * share.tokens), RankStream.TENSOR)
    return b.build()


def head_backward(share: Share, layers: LayerParts) -> Block:
    b = _builder("head backward", share)
    logits = share.tokens * share.vocab
    nbytes, kernels = LOSS_BACKWARD[share.framework.loss]
    b.add("cross-entropy backward", Traffic(nbytes * logits, kernels))
    layers.column_backward(b, "logits", False, share.vocab)
    layers.norm_backward(b, share.residual_tokens)
    return b.build()


def optimizer(share: Share, held: RankParameters[int], layers: int) -> Block:
    """Gradient norm, clipping and Adam. held: the parameters on this rank, of `layers` layers; only the part whose optimizer
    states this rank owns is updated. Sharded parameters of a layer are one tensor (torch FSDP's FlatParameter)."""
    f = share.framework
    owned, tensors = owned_parameters(share, held), layers * (1 if share.plan.zero == 3 else tensors_of_layer(share.model))
    b = Builder("optimizer", round(1000 * f.host_us), round(1000 * f.tensor_us * tensors))
    b.add("gradient norm", Traffic(f.gradient_bytes * owned, 2))
    if share.plan.devices > 1:
        group = share.data if share.plan.dp * share.plan.cp > 1 else share.tensor
        b.add("gradient norm all-reduce", group(CollectiveKind.ALL_REDUCE, 8), RankStream.DATA)
    moved = ADAM_BYTES + f.gradient_bytes + share.activation_bytes
    b.add("clip gradients", Traffic(2 * f.gradient_bytes * owned, 1))
    b.add("adam", Traffic(moved * owned, 4))
    if share.dtype.quantised and share.plan.lora_rank == 0:  # the new weights and their transposes, read in 16 bit and written in 8
        b.add("cast weights", Traffic(4 * held.total, 8))
    b.add("zero gradients", Traffic(f.gradient_bytes * held.total, 1))
    return b.build()


def reduce_gradients(share: Share, dense: int, experts: int = 0, name: str = "gradient reduction") -> Block:
    """Reduce `dense` and `experts` bytes of gradients over their replicas: all-reduce, or reduce-scatter if they are sharded.

    Hybrid sharding reduce-scatters inside the shard group, then all-reduces each shard over its replicas.
    """
    b = _builder(name, share)
    plan = share.plan
    sharded = plan.zero > 0
    if dense and plan.dp * plan.cp > 1:
        if not sharded:
            b.add("gradient all-reduce", share.data(CollectiveKind.ALL_REDUCE, dense), RankStream.DATA)
        elif plan.shards > 1:
            b.add("gradient reduce-scatter", share.shards(CollectiveKind.REDUCE_SCATTER, dense), RankStream.DATA)
        if sharded and plan.shards < plan.dp * plan.cp:
            b.add("gradient all-reduce of shards", share.replicas(CollectiveKind.ALL_REDUCE, dense // plan.shards), RankStream.DATA)
    if experts and plan.expert_replicas > 1:
        b.add(
            "expert gradient reduction",
            share.expert_data(CollectiveKind.REDUCE_SCATTER if sharded else CollectiveKind.ALL_REDUCE, experts),
            RankStream.DATA,
        )
    return b.build()


def gather_parameters(share: Share, dense: int, experts: int = 0, lane: RankStream = RankStream.GATHER) -> Block:
    """Gather `dense` and `experts` bytes of parameters from their shards."""
    b = _builder("parameter gather", share)
    if dense and share.plan.shards > 1:
        b.add("parameter all-gather", share.shards(CollectiveKind.ALL_GATHER, dense), lane)
    if experts and share.plan.expert_replicas > 1:
        b.add("expert parameter all-gather", share.expert_data(CollectiveKind.ALL_GATHER, experts), lane)
    return b.build()


def tied_gradients(share: Share) -> Block:
    """The first and the last stage each hold a copy of the token table: they add up its gradients."""
    nbytes = share.vocab * share.model.hidden * share.framework.reduce_bytes
    b = _builder("tied embedding gradients", share)
    b.add("tied embedding all-reduce", share.pipeline(nbytes)._replace(kind=CollectiveKind.ALL_REDUCE), RankStream.DATA)
    return b.build()


def transfer(share: Share, name: str, lane: RankStream) -> Block:
    """One side of the pipeline transfer of a microbatch's activations or of their gradient."""
    nbytes = share.activation_bytes * share.residual_tokens * share.model.hidden
    if scattered(share):
        nbytes = -(-nbytes // share.plan.tp)
    b = Builder(name, round(1000 * share.framework.transfer_us))
    b.add(name, share.pipeline(nbytes), lane, launches=1)  # transfer_us is of the whole transfer
    return b.build()


def scattered(share: Share) -> bool:
    """Whether the tensor-parallel ranks each send a part of a pipeline transfer, which the receivers then gather."""
    return share.framework.transfer_scattered and share.plan.tp > 1 and not share.plan.sequence_parallel


def gather_received(share: Share) -> Block:
    """Gather the parts of a scattered transfer."""
    b = _builder("gather of a transfer", share)
    b.add(
        "tp all-gather of a transfer",
        share.tensor(CollectiveKind.ALL_GATHER, share.activation_bytes * share.tokens * share.model.hidden),
        RankStream.TENSOR,
    )
    return b.build()


def _builder(name: str, share: Share) -> Builder:
    return Builder(name, round(1000 * share.framework.host_us))
