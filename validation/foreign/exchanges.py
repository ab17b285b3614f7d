"""Collectives of a script: what the profiler says of them, their kernels, and what a link of this folder's own takes for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from validation.foreign.kernels import SIZES, elements
from validation.foreign.nodes import Node
from validation.foreign.prices import BY_NAME, factor

#: Bytes a second that each rank's link carries at best, and what each step of a ring takes, s. Invented, near those of NVLink 3.
LINK, HOP = 235e9, 1.1e-6
#: Of the best rate, what messages up to that many bytes reach (the protocols LL, LL128 and Simple of NCCL).
RATES = ((256e3, 0.22), (8e6, 0.68), (float("inf"), 0.92))
#: Spread of the factor of a kind, a group's size and a number of bytes, as the standard deviation of its logarithm.
BY_BYTES = 0.03
TYPES = {"float": "Float", "c10::BFloat16": "BFloat16", "long int": "Long"}
NAMES = {"Float": "f32", "BFloat16": "bf16", "Long": "i64"}


@dataclass(frozen=True)
class Kind:
    """A kind of collective. name: as the profiler says it. kernel: with the type where it has one. rings: passes of the data around the
    ring. sent, received: elements of input and output, from those of the operator's first tensors and the number of ranks. pairs: whether
    every rank sends each other one a part of its own, directly."""

    name: str
    kernel: str
    rings: int
    sent: Callable[[list[int], int], int]
    received: Callable[[list[int], int], int]
    pairs: bool = False


_REDUCE = Kind("allreduce", "ncclDevKernel_AllReduce_Sum_{}_RING_LL", 2, lambda n, _: n[0], lambda n, _: n[0])
KINDS = {
    "c10d::allreduce_": _REDUCE,
    "_c10d_functional::all_reduce": _REDUCE,
    "c10d::_allgather_base_": Kind("_allgather_base", "ncclDevKernel_AllGather_RING_LL", 1, lambda n, _: n[1], lambda n, _: n[0]),
    "_c10d_functional::all_gather_into_tensor": Kind(
        "_allgather_base", "ncclDevKernel_AllGather_RING_LL", 1, lambda n, _: n[0], lambda n, ranks: n[0] * ranks
    ),
    "c10d::_reduce_scatter_base_": Kind(
        "_reduce_scatter_base", "ncclDevKernel_ReduceScatter_Sum_{}_RING_LL", 1, lambda n, _: n[1], lambda n, _: n[0]
    ),
    "c10d::broadcast_": Kind("broadcast", "ncclDevKernel_Broadcast_RING_LL", 1, lambda n, _: n[0], lambda n, _: n[0]),
    "_c10d_functional::reduce_scatter_tensor": Kind(
        "_reduce_scatter_base", "ncclDevKernel_ReduceScatter_Sum_{}_RING_LL", 1, lambda n, _: n[0], lambda n, ranks: n[0] // ranks
    ),
    "_c10d_functional::all_to_all_single": Kind(
        "all_to_allv", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 1, lambda n, _: n[0], lambda n, _: n[0], pairs=True
    ),
}
WAIT = "_c10d_functional::wait_tensor"
#: The kernel of messages.
MESSAGE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


@dataclass(frozen=True)
class Transfer:
    """A collective of `ranks` ranks. facts: what the profiler notes of it, without the group."""

    kind: Kind
    kernel: str
    us: float
    facts: dict[str, Any]


def transfer(node: Node, ranks: int) -> Transfer:
    """The collective of an operator in a group of that many ranks."""
    kind = KINDS[node.name]
    dtype = node.types[0] if node.types[0] in SIZES else node.lists[0].dtype if node.lists else "float"
    counts = [elements(d) for d in node.dims if d]
    sent, received = kind.sent(counts, ranks), kind.received(counts, ranks)
    amount = max(sent, received) * SIZES[dtype]
    rate = next(rate for limit, rate in RATES if amount <= limit)
    to_one = kind.pairs and sum(map(bool, node.splits)) == 1  # all of it goes to one rank, as around a ring
    others, parts = (1, amount) if to_one else (ranks - 1, amount / ranks)
    seconds = 3.5e-6 + others * kind.rings * (HOP + parts / (LINK * rate))
    name = kind.kernel.format(NAMES[TYPES[dtype]])
    us = seconds * 1e6 * factor(f"{kind.name} {ranks}", BY_NAME) * factor(f"{kind.name} {ranks} {amount}", BY_BYTES)
    facts = {"Collective name": kind.name, "In msg nelems": sent, "Out msg nelems": received, "Group size": ranks, "dtype": TYPES[dtype]}
    return Transfer(kind, name, us, facts)


@dataclass(frozen=True)
class Posted:
    """One side of a message. us: what its transfer takes, alone."""

    sends: bool
    us: float
    facts: dict[str, Any]


def posted(node: Node, ranks: int, other: int) -> Posted:
    """The message of an operator in a group of that many ranks, to or from the rank `other`."""
    sends = node.name == "c10d::send"
    tensors = node.lists[0]
    count, dtype = tensors.elements, tensors.dtype
    amount = count * SIZES[dtype]
    rate = next(rate for limit, rate in RATES if amount <= limit)
    us = (3.5e-6 + HOP + amount / (LINK * rate)) * 1e6 * factor("message", BY_NAME) * factor(f"message {amount}", BY_BYTES)
    name = "send" if sends else "recv"
    facts = {"Collective name": name, "In msg nelems": count, "Out msg nelems": count, "Group size": ranks, "dtype": TYPES[dtype]}
    return Posted(sends, us, {**facts, "Dst Rank" if sends else "Src Rank": other})


def is_asynchronous(node: Node) -> bool:
    """Whether the script goes on and waits later; functional collectives always do."""
    return node.name.startswith("_c10d_functional::") or "True" in node.concrete


__all__ = ["KINDS", "MESSAGE", "WAIT", "Posted", "Transfer", "is_asynchronous", "posted", "transfer"]
