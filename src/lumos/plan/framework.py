"""What a training framework does with a plan: which kernels, what it fuses, what it overlaps, what the host costs.

A profile is chosen from the framework's name and year (`choose`), or by the user, switch by switch. The values are priors
from the frameworks' sources and documentation, not fitted to single runs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from difflib import get_close_matches

from lumos.errors import UsageError


@dataclass(frozen=True, slots=True)
class Framework:
    """Switches of a framework. Host times in µs.

    attention: "unfused" (scores in memory), "flash" (the accelerator's best), "fa1" (FlashAttention 1, Triton's of 2022/23)
    or a kernel that `cost.attention` knows.
    fusion: "eager" (one kernel per operation), "fused" (hand-fused: bias + GeLU, bias + dropout + add, rotary, norms) or
    "compiled" (neighbouring element-wise operations in one kernel). dropout: hidden and attention dropout are on.
    loss: "torch" (eager), "megatron" (vocabulary-parallel, in steps) or "fused".
    tp_async: the backward's tensor-parallel reduction runs beside the weight gradient. tp_overlap: gathers and scatters are
    pipelined with their multiplications. dp_overlap: gradients are reduced while the last backward runs. gather_overlap:
    the parameters that a sharded optimizer updated are gathered beside the next forward. p2p_overlap: pipeline transfers run
    beside compute. ep_overlap: experts' exchanges run beside another microbatch's compute (also where the schedule is DualPipe):
    a block takes the longer of both. deep_ep: a token goes once to each node that has experts of its own, in 8 bit where the
    precision is (DeepEP). fused_projections: queries, keys and values (gate and up) come from one multiplication.
    fused_accumulation: weight gradients accumulate inside the multiplication (fp32).
    by_owner: a sharded optimizer's shards are whole tensors, and each is broadcast by its owner after the update in place of
    one gather (InternEvo, hybrid_zero_optim.py; its reductions to the owners are bucketed and priced as scattered).
    fp8_gather: in 8 bit, what tensor parallelism and parameter sharding gather is cast before, on the part that a device holds
    (torchao's tensor-wise recipe). fp8_rows: scales by row, so that the operands of a weight gradient are cast again along the
    other axis, in two passes (torchao's row-wise recipe, which gathers in 16 bit).
    gradient_bytes: of one accumulated gradient; reduce_bytes: of one reduced gradient; reduce_each: they are reduced after
    every microbatch. bucket_bytes: gradient buckets.
    host_us: host time of one kernel's launch with its framework work; layer_us: of one pass through a layer beside its
    kernels (hooks, checkpointing); checkpoint_us: of one layer's recomputation beside that; step_us: of one step outside the
    passes (data, logging, synchronisations); tensor_us: of the optimizer for one parameter tensor, where it is not fused.
    transfer_us: of one pipeline transfer. transfer_blocks: the host waits for the device after a receive (Megatron's
    `batch_p2p_sync`), so it cannot run ahead of the pipeline. transfer_scattered: without sequence parallel every tensor-parallel
    rank sends its part of the activations, gathered again behind (Narayanan et al. 2021, section 4.1).
    cuda_graphs: each pass of a microbatch over a rank's layers is launched as one graph (`capture`).
    metrics: losses computed again for the training log, every microbatch.
    zero, sequence_parallel, recompute: what the framework does where a configuration leaves it open. selective: what
    selective recomputation repeats: "attention" (its core, where unfused) or "alternate" (every second multiplication).
    """

    name: str
    attention: str = "flash"
    fusion: str = "fused"
    dropout: bool = False
    loss: str = "megatron"
    tp_async: bool = True
    tp_overlap: bool = False
    dp_overlap: bool = True
    gather_overlap: bool = False
    p2p_overlap: bool = False
    ep_overlap: bool = False
    deep_ep: bool = False
    fused_projections: bool = True
    fused_accumulation: bool = True
    by_owner: bool = False
    fp8_gather: bool = False
    fp8_rows: bool = False
    gradient_bytes: int = 4
    reduce_bytes: int = 4
    reduce_each: bool = False
    bucket_bytes: float = 160e6
    host_us: float = 9.0
    layer_us: float = 60.0
    checkpoint_us: float = 100.0
    step_us: float = 4000.0
    tensor_us: float = 0.0
    transfer_us: float = 150.0
    transfer_blocks: bool = True
    transfer_scattered: bool = False
    cuda_graphs: bool = False
    metrics: int = 0
    zero: int = 1
    sequence_parallel: bool = True
    recompute: str = "none"
    selective: str = "attention"


PROFILES = {
    "megatron-2021": Framework(
        "megatron-2021", attention="unfused", dropout=True, tp_async=False, dp_overlap=False, fused_accumulation=False,
        transfer_scattered=True, host_us=11.0, layer_us=100.0, zero=0, sequence_parallel=False,
    ),
    "megatron-deepspeed": Framework(
        "megatron-deepspeed", attention="unfused", dropout=True, tp_async=False, dp_overlap=False, fused_accumulation=False,
        gradient_bytes=2, reduce_bytes=2, host_us=18.0, layer_us=400.0, checkpoint_us=1200.0, transfer_us=400.0, step_us=500.0, zero=0,
        sequence_parallel=False,
    ),
    "megatron-core": Framework("megatron-core", gather_overlap=True),
    "nemo": Framework(
        "nemo", attention="cudnn", tp_overlap=True, gather_overlap=True, p2p_overlap=True, transfer_blocks=False, host_us=9.0,
    ),
    "llm-foundry": Framework(
        "llm-foundry", loss="torch", attention="fa1", fusion="eager", fused_accumulation=False, gradient_bytes=4, reduce_bytes=2,
        reduce_each=True, gather_overlap=True, host_us=9.0, layer_us=150.0, zero=3, sequence_parallel=False, metrics=2,
    ),
    "fsdp": Framework(
        "fsdp", loss="torch", attention="fa2", fusion="eager", fused_accumulation=False, gradient_bytes=4, reduce_bytes=2, reduce_each=True,
        gather_overlap=True, host_us=9.0, layer_us=150.0, zero=3, sequence_parallel=False,
    ),
    "fsdp2": Framework(
        "fsdp2", loss="torch", attention="fa2", tp_async=False, fused_projections=False, fusion="eager", fused_accumulation=False,
        gradient_bytes=4, reduce_bytes=4, reduce_each=True, gather_overlap=True, host_us=9.0, layer_us=150.0, zero=3,
        selective="alternate", fp8_gather=True,
    ),
    "fsdp2-compiled": Framework(
        "fsdp2-compiled", attention="fa2", tp_async=False, fused_projections=False, fusion="compiled", fused_accumulation=False,
        gradient_bytes=4, reduce_bytes=4, reduce_each=True, gather_overlap=True, loss="fused", host_us=5.0, layer_us=150.0, zero=3,
        selective="alternate", fp8_gather=True,
    ),
    "deepspeed": Framework(
        "deepspeed", loss="torch", attention="fa2", fusion="eager", fused_accumulation=False, gradient_bytes=2, reduce_bytes=2,
        host_us=11.0, layer_us=100.0, checkpoint_us=300.0, zero=1, sequence_parallel=False,
    ),
    "internevo": Framework(
        "internevo", loss="torch", attention="fa2", fusion="fused", fused_accumulation=False, gradient_bytes=2, reduce_bytes=2,
        host_us=10.0, layer_us=100.0, tensor_us=1700.0, zero=1, sequence_parallel=False,
        by_owner=True,
    ),
}  # fmt: skip


def profile(name: str) -> Framework:
    """The profile of that name. UsageError with the nearest and the valid ones."""
    if name in PROFILES:
        return PROFILES[name]
    near = get_close_matches(name.lower(), PROFILES, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UsageError(f"framework {name!r} is not known{hint}; valid: {', '.join(PROFILES)}")


def choose(framework: str, year: int | None = None, notes: str = "") -> tuple[Framework, str]:
    """The profile for a framework as a table names it, and why: by family, then by the era of its kernels.

    notes: free text that may name compilation or the absence of overlap.
    """
    text, hints = framework.lower(), notes.lower()
    year = year or 2024
    if "primus" in text or ("megatron" in text and "bridge" not in text and "deepspeed" not in text and "nemo" not in text):
        return _megatron(year)
    if "internevo" in text:
        return PROFILES["internevo"], "InternEvo"
    if "megatron-deepspeed" in text or ("deepspeed" in text and "megatron" in text):
        return PROFILES["megatron-deepspeed"], "Megatron-DeepSpeed: kernels of Megatron-LM 2021"
    if "deepspeed" in text:
        return PROFILES["deepspeed"], "DeepSpeed"
    if "nemo" in text or "bridge" in text or "megascale" in text:
        return PROFILES["nemo"], "NeMo: Megatron Core with its overlaps on"
    if "titan" in text or "fsdp2" in text:
        compiled = "compile" in hints
        return PROFILES["fsdp2-compiled" if compiled else "fsdp2"], "torch FSDP2" + (", compiled" if compiled else ", eager")
    if "llm-foundry" in text or "composer" in text:
        chosen = PROFILES["llm-foundry"]
        if year >= 2024:
            return replace(chosen, attention="fa2"), "llm-foundry: torch FSDP with FlashAttention 2"
        return chosen, "llm-foundry of 2023: torch FSDP with Triton's FlashAttention"
    if "fsdp" in text:
        return PROFILES["fsdp"], "torch FSDP"
    return PROFILES["megatron-core"], f"framework {framework!r} is not known: taken as Megatron Core"


def _megatron(year: int) -> tuple[Framework, str]:
    if year < 2022:
        return PROFILES["megatron-2021"], "Megatron-LM up to 2021: unfused attention, nothing overlapped"
    if year == 2022:  # Korthikanti et al., arXiv:2205.05198, section 5
        newer = replace(PROFILES["megatron-2021"], tp_async=True, fused_accumulation=True)
        return newer, "Megatron-LM of 2022: unfused attention, gradients reduced beside and accumulated inside multiplications"
    return PROFILES["megatron-core"], "Megatron Core"


def with_switches(framework: Framework, switches: dict[str, str]) -> Framework:
    """The profile with single switches set from text. UsageError for an unknown switch or a value of the wrong kind."""
    known = {f.name: f for f in fields(Framework) if f.name != "name"}
    changes: dict[str, object] = {}
    for key, text in switches.items():
        if key not in known:
            near = get_close_matches(key, known, 1)
            raise UsageError(
                f"framework switch {key!r} is not known{f'; did you mean {near[0]!r}?' if near else ''}; valid: {', '.join(known)}"
            )
        changes[key] = _parsed(key, text, getattr(framework, key))
    return replace(framework, **changes)  # type: ignore[arg-type]


def _parsed(key: str, text: str, current: object) -> object:
    if isinstance(current, bool):
        if text.lower() not in ("true", "false", "on", "off", "yes", "no"):
            raise UsageError(f"framework switch {key}: {text!r} is not on or off")
        return text.lower() in ("true", "on", "yes")
    if isinstance(current, str):
        return text
    try:
        return int(text) if isinstance(current, int) else float(text)
    except ValueError:
        raise UsageError(f"framework switch {key}: {text!r} is not a number") from None
