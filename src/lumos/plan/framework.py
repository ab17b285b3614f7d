"""What a training framework does with a plan: which kernels, what it fuses, what it overlaps, what the host costs.

The profiles of known frameworks are in `profiles`; single switches are set by the user (`with_switches`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import StrEnum
from numbers import Integral, Real
from typing import Any, get_type_hints

from lumos.errors import UsageError
from lumos.vocabulary import AttentionKernel, Fusion, Loss, Recompute, Selective, one_of


@dataclass(frozen=True, slots=True)
class Framework:
    """Switches of a framework. Host times in µs. Raises UsageError for a value that a switch cannot have; a valid word becomes
    the member of its set.

    attention, fusion, loss: kernels, as their sets say. dropout: hidden and attention dropout are on.
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
    selective recomputation repeats.
    """

    name: str
    attention: AttentionKernel
    fusion: Fusion
    dropout: bool
    loss: Loss
    tp_async: bool
    tp_overlap: bool
    dp_overlap: bool
    gather_overlap: bool
    p2p_overlap: bool
    ep_overlap: bool
    deep_ep: bool
    fused_projections: bool
    fused_accumulation: bool
    by_owner: bool
    fp8_gather: bool
    fp8_rows: bool
    gradient_bytes: int
    reduce_bytes: int
    reduce_each: bool
    bucket_bytes: float
    host_us: float
    layer_us: float
    checkpoint_us: float
    step_us: float
    tensor_us: float
    transfer_us: float
    transfer_blocks: bool
    transfer_scattered: bool
    cuda_graphs: bool
    metrics: int
    zero: int
    sequence_parallel: bool
    recompute: Recompute
    selective: Selective

    def __post_init__(self) -> None:
        for key, kind in SWITCHES.items():
            object.__setattr__(self, key, _checked(f"framework {self.name}: {key}", getattr(self, key), kind, _LEAST.get(key, 0)))
        if self.zero > 3:
            raise UsageError(f"framework {self.name}: zero = {self.zero}; valid: 0, 1, 2, 3")

    @property
    def repeats_selectively(self) -> bool:
        """Whether selective recomputation has anything to repeat."""
        return self.attention is AttentionKernel.UNFUSED or self.selective is Selective.ALTERNATE


#: What each switch is: a whole number, a number, on or off, or a word of a closed set.
SWITCHES: dict[str, type] = {key: kind for key, kind in get_type_hints(Framework).items() if key != "name"}
#: The least value of a number, where it is not 0.
_LEAST = {"gradient_bytes": 1, "reduce_bytes": 1, "bucket_bytes": 1}


def _checked(what: str, value: Any, kind: type, least: int) -> Any:
    """The value, as a member of its set where it is a word. UsageError where it is not of its kind, or less than `least`."""
    if issubclass(kind, StrEnum):
        return one_of(kind, value, what)
    if kind is bool:
        if not isinstance(value, bool):
            raise UsageError(f"{what} = {value!r} is not on or off")
    elif not isinstance(value, Integral if kind is int else Real) or not math.isfinite(value) or value < least:
        raise UsageError(f"{what} = {value!r} must be {'a whole' if kind is int else 'a finite'} number from {least}")
    return value


def with_switches(framework: Framework, switches: Mapping[str, str]) -> Framework:
    """The profile with single switches set from text. UsageError for an unknown switch, or a value that it cannot have."""
    changes: dict[str, Any] = {}
    for key, text in switches.items():
        if key not in SWITCHES:
            near = get_close_matches(key, SWITCHES, 1)
            raise UsageError(
                f"framework switch {key!r} is not known{f'; did you mean {near[0]!r}?' if near else ''}; valid: {', '.join(SWITCHES)}"
            )
        changes[key] = _parsed(key, text)
    return replace(framework, **changes)


def _parsed(key: str, text: str) -> object:
    kind = SWITCHES[key]
    if kind is bool:
        if text.lower() not in ("true", "false", "on", "off", "yes", "no"):
            raise UsageError(f"framework switch {key}: {text!r} is not on or off")
        return text.lower() in ("true", "on", "yes")
    if issubclass(kind, StrEnum):
        return one_of(kind, text, f"framework switch {key}")
    try:
        return int(text) if kind is int else float(text)
    except ValueError:
        raise UsageError(f"framework switch {key}: {text!r} is not a number") from None
