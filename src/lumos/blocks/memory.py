"""Memory of one device: what is held all the time, and what the schedule holds at its worst moment.

Bytes per parameter of mixed precision: the working copy (2), gradients (framework's width), Adam's fp32 master and two
moments (12), each divided by what shards it. Activations of a layer are what the backward pass needs, from the layer's own
tensors (after Korthikanti et al. 2022, arXiv:2205.05198, with the attention that is used): kept for every microbatch in
flight, or with full recomputation only the layer's input, and one layer's whole while it is recomputed. Where weight gradients are
put off, the inputs and output gradients of the multiplications wait with them: 32 of the 34 bytes an element that the backward
pass needed (Qi et al. 2023, arXiv:2401.10241, section 3), taken as all of them, recomputed ones as well. Peak is what the
allocator has handed out, without the context and the libraries' own buffers; the maximum over stages.
"""

from __future__ import annotations

from dataclasses import dataclass

from lumos.blocks.parameters import owned_parameters, stage_parameters
from lumos.blocks.share import Share
from lumos.plan.job import Job
from lumos.plan.plan import layers_of_chunks
from lumos.plan.schedules import Pass, schedule
from lumos.vocabulary import AttentionKernel, DType, Loss, Recompute, Selective

#: Bytes of an fp32 number.
FP32 = DType.FP32.bytes
#: fp32 master copy and two moments.
ADAM_STATES = 12


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the worst device of the job."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    peak_bytes: int
    fits: bool
    stage: int


def peak_memory(job: Job) -> Memory:
    """The stage that needs most."""
    return max((stage_memory(job, stage) for stage in range(job.plan.pp)), key=lambda m: m.peak_bytes)


def stage_memory(job: Job, stage: int) -> Memory:
    """What one rank of pipeline stage `stage` holds."""
    plan, framework = job.plan, job.framework
    share = Share(job.model, plan, framework, job.cluster.node.devices)
    chunks = layers_of_chunks(plan, job.model)
    held = stage_parameters(share, stage, chunks)
    owned = owned_parameters(share, held)
    width = share.activation_bytes
    layer = max((p.total for p in (job.model.layer_parameters(job.model.is_mixture(i)) for i in range(job.model.layers))), default=0)
    if plan.zero == 3:  # two layers' parameters are whole at a time
        parameters = owned * FP32 + 2 * width * (layer // plan.tp)
        gradients = owned * FP32 + width * (layer // plan.tp)
        optimizer = owned * (ADAM_STATES - FP32)
    else:
        parameters = held.total * width
        gradients = (owned if plan.zero == 2 else held.total) * framework.gradient_bytes
        optimizer = owned * ADAM_STATES
    activations = activation_bytes(share, stage, chunks)
    peak = parameters + gradients + optimizer + activations + (0 if plan.lora_rank else weight_gradients(share, stage))
    capacity = job.cluster.accelerator.memory_bytes
    return Memory(parameters, gradients, optimizer, activations, peak, capacity is None or peak <= capacity, stage)


def activation_bytes(share: Share, stage: int, chunks: list[list[range]]) -> int:
    """Activations at the worst moment of the schedule."""
    plan, model = share.plan, share.model
    whole, kept = [0] * len(chunks[stage]), [0] * len(chunks[stage])
    for c, chunk in enumerate(chunks[stage]):
        for i, layer in enumerate(chunk):
            each = layer_activations(share, model.is_mixture(layer))
            again = plan.recompute is Recompute.FULL and (plan.recompute_layers < 0 or i < plan.recompute_layers)
            whole[c] += each
            kept[c] += share.activation_bytes * share.slim * model.hidden if again else each
    live = peak = 0
    for action in schedule(plan.schedule, stage, plan.pp, plan.microbatches, plan.vpp):
        c = action.chunk
        live += {Pass.FORWARD: kept[c], Pass.BACKWARD: -kept[c], Pass.INPUT: whole[c] - kept[c], Pass.WEIGHT: -whole[c]}[action.step]
        peak = max(peak, live)
    if plan.recompute is Recompute.FULL:
        peak += max(layer_activations(share, model.is_mixture(layer)) for chunk in chunks[stage] for layer in chunk)
    if stage == plan.pp - 1:
        peak += logits_bytes(share)
    if stage == 0:
        peak += share.activation_bytes * share.slim * model.hidden
    return peak


def layer_activations(share: Share, mixture: bool) -> int:
    """What one layer's backward pass needs of a microbatch's forward pass."""
    model, plan, width = share.model, share.plan, share.activation_bytes
    tokens, slim, hidden = share.tokens, share.slim, model.hidden
    mask = 1 if share.framework.dropout else 0
    residual = 2 * slim * hidden * (width + mask)  # inputs of the two norms, dropout masks
    inputs = 2 * slim * hidden * width  # the norms' outputs, gathered again where sequence parallel
    if model.latent is not None:
        m = model.latent
        qkv = slim * (m.query_rank + m.kv_rank + m.rope) * 2 * width + tokens * share.heads * (2 * (m.nope + m.rope) + m.value) * width
        core = tokens * share.heads * m.value * width
    else:
        qkv = tokens * (share.heads + 2 * share.kv_heads) * model.head_dim * width
        core = tokens * share.heads * model.head_dim * width
    scores = 0
    if share.framework.attention is AttentionKernel.UNFUSED:
        scores = plan.micro_batch * share.heads * plan.seq_len**2 * (2 * width + 1) if plan.recompute is not Recompute.SELECTIVE else 0
    else:
        core += FP32 * tokens * share.heads  # log-sum-exp
    if mixture and model.experts is not None:
        e = model.experts
        rows = slim * e.per_token
        mlp = rows * (hidden * 2 + e.ffn * (3 if model.gated else 2)) * width + slim * e.count * FP32 * 2
        mlp += tokens * (e.shared_ffn // plan.tp) * (3 if model.gated else 2) * width
    else:
        mlp = tokens * share.ffn * (3 if model.gated else 2) * width
    if plan.recompute is Recompute.SELECTIVE and share.framework.selective is Selective.ALTERNATE:
        # every second multiplication is kept, and attention; what lies between is computed again
        return residual // 2 + qkv + core + mlp // (3 if model.gated else 2)
    return residual + inputs + qkv + core + scores + mlp


def weight_gradients(share: Share, stage: int) -> int:
    """Weight gradients in flight before they are accumulated: the largest of a layer, and on the last stage the head's."""
    model, plan = share.model, share.plan
    up = (2 if model.gated else 1) * model.ffn * model.hidden // plan.tp
    head = share.vocab * model.hidden if stage == plan.pp - 1 else 0
    return share.activation_bytes * (max(up, model.hidden * model.attention_width // plan.tp) + head)


def logits_bytes(share: Share) -> int:
    """Logits and their gradient or fp32 copy, of one microbatch."""
    each = share.tokens * share.vocab
    return each * (2 * share.activation_bytes if share.framework.loss is Loss.FUSED else share.activation_bytes + 2 * FP32)
