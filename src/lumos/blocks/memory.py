"""Memory of one device: what it holds throughout the step, and the activations at the worst moment of the schedule.

Bytes per parameter of mixed precision: the working copy (2), the gradient (the framework's `gradient_bytes`), Adam's fp32
master copy and two moments (12), each divided by the number of shards. A parameter in fp32 is its own master copy (8). Where gradients
are added up in fp32 by a kernel of its own, autograd's in 16 bit exist beside them (`apart_bytes`). The activations of a layer are the
tensors that its backward pass needs (after Korthikanti et al. 2022, arXiv:2205.05198, with the attention that is used), for every
microbatch in flight. With full recomputation these are only the layer's input, and all tensors of the one layer that is recomputed.
A weight gradient that a zero-bubble schedule delays keeps the inputs and output gradients of its multiplications: 32 of the 34
bytes an element that the backward pass needed (Qi et al. 2023, arXiv:2401.10241, section 3); all 34 are counted, also of
recomputed layers. The peak counts what the allocator has handed out, without the CUDA context and the libraries' own buffers, and is held
against what a process can have beside its context (`Accelerator.usable_bytes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.blocks.share import Count, Share, bucket_parameters, owned_parameters, stage_parameters
from lumos.plan.plan import layers_of_chunks
from lumos.plan.schedules import BUCKETS, Pass, schedule
from lumos.vocabulary import AttentionKernel, DType, GradientReduction, Loss, Recompute, Selective

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.model import Model
    from lumos.plan.framework import Framework
    from lumos.plan.job import PlannedJob

#: Bytes of an fp32 number.
FP32_BYTES = DType.FP32.bytes
#: Adam's two moments in fp32.
_MOMENTS = 8


def adam_bytes(width: int) -> int:
    """Bytes that Adam keeps of a parameter of `width` bytes: two moments, and an fp32 master copy of one that is not in fp32 itself."""
    return _MOMENTS + (0 if width == FP32_BYTES else FP32_BYTES)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one device of a pipeline stage. fits: they are within the accelerator's memory (or its size is not known)."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    peak_bytes: int
    fits: bool
    stage: int


def apart_bytes(framework: Framework, width: int) -> int:
    """Bytes of a gradient that autograd keeps in the activations' type, beside the wider one to which it is added.

    A multiplication that adds to the wide gradient itself keeps none. Otherwise they last from one backward pass to the next, in the
    parameters (DeepSpeed, runtime/bf16_optimizer.py: `update_hp_grads` adds up what a whole backward pass left) or in the buckets of
    torch's DistributedDataParallel (nanotron, optim/gradient_accumulator.py: a hook adds up each bucket).
    """
    return width if framework.gradient_bytes > width and not framework.fused_accumulation else 0


def peak_memory(job: PlannedJob) -> Memory:
    """The memory of the stage that needs most."""
    return max((stage_memory(job, stage) for stage in range(job.plan.pp)), key=lambda m: m.peak_bytes)


def stage_memory(job: PlannedJob, stage: int) -> Memory:
    """The memory of one rank of pipeline stage `stage`."""
    plan, framework = job.plan, job.framework
    share = Share(job.model, plan, framework, job.cluster.node.devices)
    chunks = layers_of_chunks(plan, job.model)
    held = stage_parameters(share, stage, chunks)
    owned = owned_parameters(share, held)
    sizes = (plan.zero, plan.pp, plan.vpp, plan.microbatches, held.total, owned, largest_layer(job.model) // plan.tp)
    parameters, gradients, optimizer = map(int, held_bytes(framework, share.activation_bytes, *sizes, BUCKETS * bucket_parameters(share)))
    activations = activation_bytes(share, stage, chunks)
    peak = parameters + gradients + optimizer + activations + (0 if plan.lora_rank else weight_gradients(share, stage))
    capacity = job.cluster.accelerator.usable_bytes
    return Memory(parameters, gradients, optimizer, activations, peak, capacity is None or peak <= capacity, stage)


def largest_layer(model: Model) -> int:
    """Parameters of the largest layer, on all ranks together."""
    return max(model.layer_parameters(kind).total for kind in {model.is_mixture(i) for i in range(model.layers)})


class HeldBytes(NamedTuple):
    """Bytes that a rank holds throughout the step, of one plan or of each in a column."""

    parameters: NDArray[np.int64]
    gradients: NDArray[np.int64]
    optimizer: NDArray[np.int64]


def held_bytes(
    framework: Framework,
    width: int,
    zero: Count,
    pp: Count,
    vpp: Count,
    microbatches: Count,
    held: Count,
    owned: Count,
    layer: Count,
    buckets: Count,
) -> HeldBytes:
    """What a rank holds of one plan, or of each in a column. width: bytes of a parameter. held, owned: parameters on the rank, and of those
    it keeps optimizer states for. layer: of the largest layer, on one rank. buckets: gradients that are reduced at a time."""
    often, others = framework.grad_reduce, held - owned
    sharded, piped = zero == 3, (zero == 3) & (pp > 1)  # a stage keeps its parameters whole, and its gradients until the last microbatch
    shown = np.where(piped, held, 2 * layer)  # else the parameters of two layers are whole at a time
    apart = (often is GradientReduction.GROUP) | (vpp == 1) | (microbatches <= pp)
    one_by_one = (pp == 1) | (often is GradientReduction.MICROBATCH)
    whole = np.where(one_by_one, np.minimum(others, buckets), -(-others // np.where(apart, vpp, 1)))
    beside = np.where(piped, 0, apart_bytes(framework, width))
    added_up = np.where(zero == 2, owned + whole, held) * framework.gradient_bytes + held * beside
    return HeldBytes(
        np.where(sharded, owned * FP32_BYTES + width * shown, held * width),
        np.where(sharded & np.asarray(pp == 1), owned * FP32_BYTES + width * layer, added_up),
        owned * np.where(sharded, adam_bytes(FP32_BYTES), adam_bytes(width)),
    )


def activation_bytes(share: Share, stage: int, chunks: list[list[range]]) -> int:
    """Bytes of activations at the worst moment of the schedule."""
    plan, model = share.plan, share.model
    full, retained = [0] * len(chunks[stage]), [0] * len(chunks[stage])
    for c, chunk in enumerate(chunks[stage]):
        for i, layer in enumerate(chunk):
            activations = layer_activations(share, model.is_mixture(layer))
            again = plan.recompute is Recompute.FULL and (plan.recompute_layers < 0 or i < plan.recompute_layers)
            full[c] += activations
            retained[c] += share.activation_bytes * share.residual_tokens * model.hidden if again else activations
    live = peak = 0
    for action in schedule(plan.schedule, stage, plan.pp, plan.microbatches, plan.vpp):
        c = action.chunk
        by_pass = {Pass.FORWARD: retained[c], Pass.BACKWARD: -retained[c], Pass.INPUT: full[c] - retained[c], Pass.WEIGHT: -full[c]}
        live += by_pass[action.step]
        peak = max(peak, live)
    if plan.recompute is Recompute.FULL:
        peak += max(layer_activations(share, model.is_mixture(layer)) for chunk in chunks[stage] for layer in chunk)
    if stage == plan.pp - 1:
        peak += logits_bytes(share)
    if stage == 0:
        peak += share.activation_bytes * share.residual_tokens * model.hidden
    return peak


def layer_activations(share: Share, mixture: bool) -> int:
    """Bytes that the backward pass of one layer needs from the forward pass of one microbatch."""
    model, plan, width, framework = share.model, share.plan, share.activation_bytes, share.framework
    selective = framework.selective if plan.recompute is Recompute.SELECTIVE else None
    light = selective is Selective.LIGHT  # norms, up-projections of latent attention and activations are computed again
    in_8_bit = light and framework.fp8_kept
    tokens, residual_tokens, hidden = share.tokens, share.residual_tokens, model.hidden
    mask = 1 if framework.dropout else 0
    residual = 2 * residual_tokens * hidden * (width + mask)  # inputs of the two norms, dropout masks
    kept = tokens if framework.dtensor else residual_tokens  # others than DTensor gather their slices of the sequence again
    inputs = 0 if light else 2 * kept * hidden * width  # outputs of the two norms
    if model.latent is not None:
        m = model.latent
        up = 0 if light else tokens * share.heads * (2 * (m.nope + m.rope) + m.value) * width
        qkv = residual_tokens * (m.query_rank + m.kv_rank + m.rope) * 2 * width + up
        core = tokens * share.heads * m.value * width
    else:
        qkv = tokens * (share.heads + 2 * share.kv_heads) * model.head_dim * width
        core = tokens * share.heads * model.head_dim * width
    scores = 0
    if framework.attention is AttentionKernel.UNFUSED:
        scores = 0 if selective else plan.micro_batch * share.heads * plan.seq_len**2 * (2 * width + 1)
    else:
        core += FP32_BYTES * tokens * share.heads  # log-sum-exp
    widths = (2 if model.gated else 1) + (0 if light else 1)  # before an activation, and after it
    stored = 1 if in_8_bit and share.dtype.quantised else width  # bytes of what a multiplication needs
    if mixture and model.experts is not None:
        e = model.experts
        rows = residual_tokens * e.per_token
        results = 0 if in_8_bit else rows * hidden * width
        mlp = rows * (hidden + e.ffn * widths) * stored + results + residual_tokens * e.count * FP32_BYTES * 2
        mlp += tokens * (e.shared_ffn // plan.tp) * widths * stored
    else:
        mlp = tokens * share.ffn * widths * stored
    if selective is Selective.ALTERNATE:  # attention and every second multiplication are kept; what lies between is computed again
        return residual // 2 + qkv + core + mlp // widths
    return residual + inputs + qkv + core + scores + mlp


def weight_gradients(share: Share, stage: int) -> int:
    """Bytes of the weight gradients that are not yet accumulated: the largest of a layer and, on the last stage, the head's."""
    model, plan = share.model, share.plan
    up = (2 if model.gated else 1) * model.ffn * model.hidden // plan.tp
    head = share.vocab * model.hidden if stage == plan.pp - 1 else 0
    return share.activation_bytes * (max(up, model.hidden * model.attention_width // plan.tp) + head)


#: Bytes of a logit at the worst moment of the loss, beside the 16-bit logit itself. torch: the fp32 copy, log-softmax's output and the
#: gradient of it. megatron: the fp32 copy and its exponential. fused: the gradient, in 16 bit.
LOSS_BYTES = {Loss.TORCH: 3 * FP32_BYTES, Loss.MEGATRON: 2 * FP32_BYTES, Loss.FUSED: 2}


def logits_bytes(share: Share) -> int:
    """Bytes of one microbatch's logits, of their gradient and of the copies of which the loss is computed."""
    return share.tokens * share.vocab * (share.activation_bytes + LOSS_BYTES[share.framework.loss])
