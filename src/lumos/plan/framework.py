"""How a training framework runs a plan: which kernels it uses, what it fuses and overlaps, what its host work costs.

The profiles of known frameworks are in `profiles`; `with_switches` changes single switches of one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, get_type_hints

from lumos.choices import nearest
from lumos.errors import UsageError
from lumos.vocabulary import AttentionKernel, Fusion, GradientReduction, Loss, Precision, Recompute, Selective, one_of

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Framework:
    """Switches of a framework. Times are in µs. Raises UsageError for a value that a switch cannot have; a valid word becomes
    the member of its enum.

    Kernels. attention, fusion, loss: as those enums say. dropout: hidden and attention dropout are on. fused_projections: queries, keys and
    values come from one multiplication, as do gate and up. fused_accumulation: the multiplication that computes a weight gradient adds it
    to the accumulated fp32 gradient. grouped_kernel: one kernel multiplies for all experts of a rank; otherwise each expert's product is a
    launch of its own. selective: what selective recomputation computes again. dtensor: tensor parallelism is torch's DTensor. It gathers
    and scatters the second dimension, the sequence, by exchanging the first and copying the tensor
    (torch/distributed/_functional_collectives.py: all_gather_tensor, reduce_scatter_tensor); and autograd keeps what a multiplication was
    given, so that the backward pass does not gather it again as Megatron's does.

    Overlap. tp_async: the tensor-parallel reduction of input gradients runs during the computation of weight gradients. tp_overlap: gathers
    and scatters are pipelined with their multiplications. dp_overlap: gradients are reduced during the last backward pass.
    gather_overlap: the parameters that a sharded optimizer updated are gathered during the next forward pass.
    p2p_overlap: pipeline transfers run during compute. ep_overlap: the experts' exchanges run during another microbatch's
    compute, so a block takes the longer of the two (the DualPipe schedule implies it).

    Communication. deep_ep: a token is sent once to each node that holds some of its experts, and in 8 bit if the precision is fp8 (DeepEP).
    expert_skew: rows of the most loaded expert / mean. fp8_gather: in fp8, each device casts its part before tensor parallelism or
    parameter sharding gathers it (torchao's tensor-wise recipe). fp8_rows: scales are by row, so that the operands of a weight gradient are
    cast again along the other axis, in two passes (torchao's row-wise recipe, which gathers in 16 bit). fp8_norms: in fp8, norms write the
    8-bit input of the multiplication that follows, which needs no cast of its own. fp8_activations: the same of the MLP's activation, and
    of its backward kernel. fp8_kept: in fp8, the inputs of multiplications are kept for the backward pass in 8 bit, and the results of
    experts are not kept. gradient_bytes: bytes of one accumulated gradient. reduce_bytes: bytes of one gradient as it is reduced.
    grad_reduce: how often a pipeline reduces gradients of which each rank keeps only its part (ZeRO 2, `lumos.plan.schedules`).
    bucket_bytes: size of the buckets in which gradients are reduced. transfer_scattered: without sequence parallelism, each tensor-parallel
    rank sends its part of the activations to the next stage, which gathers them (Narayanan et al. 2021, section 4.1).

    Host. host_us: host time to launch one kernel, with the framework's work around it. Host times beyond those of
    its kernels: layer_us, of one pass through a layer (hooks, checkpointing); checkpoint_us, of the recomputation of one layer;
    step_us, of one step outside its passes (data, logging, synchronisations). tensor_us: the optimizer's host time for one
    parameter tensor, where it is not fused. transfer_us: host time of one pipeline transfer. transfer_blocks: after a
    receive the host waits for the device (Megatron's `batch_p2p_sync`), so it cannot run ahead of the pipeline. cuda_graphs:
    each pass of a microbatch over a rank's layers is launched as one graph (`lumos.prediction.cuda_graphs`).

    Defaults. zero, sequence_parallel, recompute, precision: what the framework does if a published row leaves it open.
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
    expert_skew: float
    fused_projections: bool
    fused_accumulation: bool
    grouped_kernel: bool
    fp8_gather: bool
    fp8_rows: bool
    fp8_norms: bool
    fp8_activations: bool
    fp8_kept: bool
    gradient_bytes: int
    reduce_bytes: int
    grad_reduce: GradientReduction
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
    dtensor: bool
    zero: int
    sequence_parallel: bool
    recompute: Recompute
    selective: Selective
    precision: Precision

    def __post_init__(self) -> None:
        for key in SWITCHES:
            object.__setattr__(self, key, _checked(f"framework {self.name}: {key}", key, getattr(self, key)))
        if self.zero > 3:
            raise UsageError(f"framework {self.name}: zero = {self.zero}; valid: 0, 1, 2, 3")

    @property
    def repeats_selectively(self) -> bool:
        """Whether selective recomputation has anything to compute again."""
        return self.attention is AttentionKernel.UNFUSED or self.selective is not Selective.ATTENTION


#: The type of each switch: int, float, bool (on or off) or an enum.
SWITCHES: dict[str, type] = {key: kind for key, kind in get_type_hints(Framework).items() if key != "name"}
#: The switches that are defaults: what the framework does if a plan leaves it open.
DEFAULTS = ("zero", "sequence_parallel", "recompute", "precision")
#: The least value of a numeric switch, if it is not 0.
_LEAST = {"expert_skew": 1, "gradient_bytes": 1, "reduce_bytes": 1, "bucket_bytes": 1}


#: The largest value of a switch: a second of the host's time for one piece of work, and as many of anything, is beyond any framework.
MOST_OF_A_SWITCH = 1e6
#: The largest bucket: larger than any model's gradients.
MOST_BYTES = 1e18


def _checked(what: str, key: str, value: Any) -> Any:
    """The value of a switch; a word becomes the member of its enum. Raises UsageError for a value of another type, or out of bounds."""
    kind, least, most = SWITCHES[key], _LEAST.get(key, 0), MOST_BYTES if key == "bucket_bytes" else MOST_OF_A_SWITCH
    if issubclass(kind, StrEnum):
        return one_of(kind, value, what)
    if kind is bool:
        if not isinstance(value, bool):
            raise UsageError(f"{what} = {value!r} is not on or off")
    elif not isinstance(value, Integral if kind is int else Real) or value < least or not value <= most:
        raise UsageError(f"{what} = {value!r} must be {'a whole' if kind is int else 'a finite'} number from {least} to {most:g}")
    return value


def with_switches(framework: Framework, switches: Mapping[str, str]) -> Framework:
    """The profile with some switches set from text. Raises UsageError for an unknown switch, or a value that it cannot have."""
    changes: dict[str, Any] = {}
    for key, text in switches.items():
        if key not in SWITCHES:
            raise UsageError(f"framework switch {key!r} is not known{nearest(key, SWITCHES)}; valid: {', '.join(SWITCHES)}")
        changes[key] = _parsed(key, text)
    return replace(framework, **changes)


def switch_text(value: object) -> str:
    """A switch's value as text, as the command line and files have it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


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
