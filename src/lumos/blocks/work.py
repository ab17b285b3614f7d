"""The units of work of which blocks consist. They are hashable, so that equal work is priced once."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from lumos.vocabulary import AttentionKernel, CollectiveKind, Direction, DType


class RankStream(IntEnum):
    """The stream of a rank that a task runs on."""

    COMPUTE = 0
    TENSOR = 1  # tensor-parallel collectives
    CONTEXT = 2  # context-parallel exchanges
    EXPERT = 3  # expert-parallel exchanges
    DATA = 4  # gradients and parameters of the data-parallel group
    GATHER = 5  # parameters gathered ahead (FSDP's own stream)
    RECEIVE_FORWARD = 6
    SEND_FORWARD = 7
    RECEIVE_BACKWARD = 8
    SEND_BACKWARD = 9
    RECEIVE_FORWARD_UP = 10  # the pipeline that runs in the opposite direction (DualPipe)
    SEND_FORWARD_UP = 11
    RECEIVE_BACKWARD_UP = 12
    SEND_BACKWARD_UP = 13


#: Names of the streams, by lane.
RANK_STREAM_NAMES = ("compute", "tensor parallel", "context parallel", "expert parallel", "data parallel", "parameter gather",
              "receive forward", "send forward", "receive backward", "send backward",
              "receive forward up", "send forward up", "receive backward up", "send backward up")  # fmt: skip


class Gemm(NamedTuple):
    """`batch` equal matrix multiplications [m, k] · [k, n] in one kernel; options as in `lumos.cost.gemm_model.gemm`. older: by a kernel
    that is written for the generation of devices before (`lumos.cost.cluster.Accelerator.with_older_kernels`). narrower: so many times
    narrower than 16 bytes are its loads, since rows begin anywhere."""

    m: int
    n: int
    k: int
    dtype: DType
    batch: int = 1
    out_bytes: int = 2
    accumulate: bool = False
    cast: bool = True
    taps: int = 1
    shared_bytes: int = 0
    split: bool = True
    older: bool = False
    narrower: int = 1


class GroupedGemm(NamedTuple):
    """`groups` multiplications, each of `rows` tokens on average with weights of its own. skew: rows of the largest group / mean."""

    rows: int
    groups: int
    n: int
    k: int
    dtype: DType
    skew: float = 1.0
    out_bytes: int = 2
    accumulate: bool = False
    cast: bool = True


class Attention(NamedTuple):
    """A fused attention kernel."""

    batch: int
    queries: int
    keys: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    causal: bool
    direction: Direction
    kernel: AttentionKernel
    dtype: DType = DType.BF16


class Traffic(NamedTuple):
    """Element-wise work, normalisations, copies: `bytes` read and written in device memory by `kernels` kernels. instructions: what their
    threads issue, and in_turn: elements that threads fetch one after the other, where that may take longer than memory does."""

    bytes: int
    kernels: int = 1
    kernel_class: str = "pointwise"  # of cost.memory_bound.TRAFFIC_CLASSES
    instructions: int = 0
    in_turn: int = 0


class Contention(NamedTuple):
    """The time that compute loses while `collective` runs at the same time: a share of the collective's time, or of the time of the work
    `beside` it, where that ends first. cores: units of the device that the collective occupies meanwhile, where that is known."""

    collective: Collective
    cores: int = 0
    beside: tuple[Work, ...] = ()


class Collective(NamedTuple):
    """A collective of `ranks` ranks.

    size: bytes of the larger of one rank's input and output, as in nccl-tests. per_node: ranks of the group on one node.
    concurrent: groups of a node that communicate with other nodes at the same time. span: how many consecutive ranks of the
    job the group is spread over.
    """

    kind: CollectiveKind
    ranks: int
    size: int
    per_node: int
    concurrent: int
    span: int

    @property
    def input_bytes(self) -> int:
        """Bytes of one rank's input, which is how graphs and traces count."""
        return self.kind.input_bytes(self.size, self.ranks)


class Fixed(NamedTuple):
    """A known duration in ns."""

    ns: int


Work = Gemm | GroupedGemm | Attention | Traffic | Collective | Contention | Fixed


def flops(work: Work) -> float:
    """Floating-point operations that multiplications and attention execute; 0 for other work."""
    if isinstance(work, Gemm):
        return 2.0 * work.m * work.n * work.k * work.batch
    if isinstance(work, GroupedGemm):
        return 2.0 * work.rows * work.groups * work.n * work.k
    if isinstance(work, Attention):
        pairs = work.queries * work.keys * (0.5 if work.causal else 1.0)
        return (
            2.0
            * work.batch
            * work.heads
            * pairs
            * (work.head_dim + work.value_dim)
            * (2.5 if work.direction is Direction.BACKWARD else 1.0)
        )
    return 0.0
