"""The work of collectives and messages: on which stream of a rank they run, and what the cost model needs to price them.

A collective that its caller did not wait for runs on the stream that NCCL's process group keeps for its group; one that the caller
waits for at once runs on the caller's own stream (as in PyTorch since 2.8). Sends and receives run on a stream for each group, peer and
direction, so that two ranks that send to each other cannot wait for each other's receive.

Ranks fill nodes in their order, and every group of the job's ranks communicates at the same time, as the ranks of one program do: so the
groups that reach across nodes share their node's network interfaces.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lumos.blocks.work import Collective
from lumos.emulation.device.launch import width
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from lumos.cost.cluster import Cluster
    from lumos.emulation.record import Exchange

#: Kinds without a cost model of their own, and the one that moves as much: a barrier is an all-reduce of one element, and from one rank
#: to all, or from all to one, go through the links of that rank as an exchange of all with all does.
_PRICED_AS = {
    CollectiveKind.BARRIER: CollectiveKind.ALL_REDUCE,
    CollectiveKind.GATHER: CollectiveKind.ALL_TO_ALL,
    CollectiveKind.SCATTER: CollectiveKind.ALL_TO_ALL,
    CollectiveKind.UNKNOWN: CollectiveKind.ALL_TO_ALL,
    CollectiveKind.SEND: CollectiveKind.SEND_RECEIVE,
    CollectiveKind.RECEIVE: CollectiveKind.SEND_RECEIVE,
}


def stream_of(exchange: Exchange) -> Hashable:
    """What names the stream of an exchange: its own number where it runs on the caller's stream, else what NCCL keeps a stream for."""
    if exchange.kind in (CollectiveKind.SEND, CollectiveKind.RECEIVE):
        return (exchange.group, exchange.kind, exchange.peer)
    return (exchange.group,) if exchange.asynchronous else exchange.stream


def exchange_work(exchange: Exchange, rank: int, ranks: Sequence[int], world: int, cluster: Cluster) -> Collective:
    """What an exchange of `rank` moves among the ranks of its group. world: ranks of the job."""
    members = (rank, exchange.peer) if exchange.kind.is_transfer and exchange.peer >= 0 else tuple(ranks)
    devices = cluster.node.devices
    on_node = max(Counter(member // devices for member in members).values())
    size = max(exchange.input_elements, exchange.output_elements, 1) * width(exchange.dtype)
    span = max(members) - min(members) + 1
    concurrent = max(1, min(devices, world) // on_node) if on_node < len(members) else 1
    return Collective(_PRICED_AS.get(exchange.kind, exchange.kind), len(members), size, on_node, concurrent, span)
