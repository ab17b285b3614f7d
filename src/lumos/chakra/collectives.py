"""Convert kinds of collectives to Chakra's types and back.

Simulators run only four types. Every other kind is written as the one of these that loads the links in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lumos.trace.chakra.schema import CollectiveType
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Mapping


class Lowered(NamedTuple):
    """The type that a kind is written as. shard: whether its size is the bytes of one rank's shard, bytes / ranks."""

    type: CollectiveType
    shard: bool = False


#: A broadcast of n bytes puts n on the busiest link, as gathering shards of n / ranks does; a reduce likewise; a gather
#: brings (ranks - 1) shards to its root, as an all-gather brings to all; a scatter sends what an all-to-all sends.
LOWERED: Mapping[CollectiveKind, Lowered] = {
    CollectiveKind.ALL_REDUCE: Lowered(CollectiveType.ALL_REDUCE),
    CollectiveKind.ALL_GATHER: Lowered(CollectiveType.ALL_GATHER),
    CollectiveKind.REDUCE_SCATTER: Lowered(CollectiveType.REDUCE_SCATTER),
    CollectiveKind.ALL_TO_ALL: Lowered(CollectiveType.ALL_TO_ALL),
    CollectiveKind.SEND: Lowered(CollectiveType.ALL_TO_ALL),
    CollectiveKind.RECEIVE: Lowered(CollectiveType.ALL_TO_ALL),
    CollectiveKind.SEND_RECEIVE: Lowered(CollectiveType.ALL_TO_ALL),
    CollectiveKind.BROADCAST: Lowered(CollectiveType.ALL_GATHER, shard=True),
    CollectiveKind.REDUCE: Lowered(CollectiveType.REDUCE_SCATTER),
    CollectiveKind.GATHER: Lowered(CollectiveType.ALL_GATHER),
    CollectiveKind.SCATTER: Lowered(CollectiveType.ALL_TO_ALL),
    CollectiveKind.BARRIER: Lowered(CollectiveType.ALL_REDUCE),
    CollectiveKind.UNKNOWN: Lowered(CollectiveType.ALL_REDUCE),
}

_KINDS: Mapping[CollectiveType, CollectiveKind] = {
    CollectiveType.ALL_REDUCE: CollectiveKind.ALL_REDUCE,
    CollectiveType.REDUCE: CollectiveKind.REDUCE,
    CollectiveType.ALL_GATHER: CollectiveKind.ALL_GATHER,
    CollectiveType.GATHER: CollectiveKind.GATHER,
    CollectiveType.SCATTER: CollectiveKind.SCATTER,
    CollectiveType.BROADCAST: CollectiveKind.BROADCAST,
    CollectiveType.ALL_TO_ALL: CollectiveKind.ALL_TO_ALL,
    CollectiveType.REDUCE_SCATTER: CollectiveKind.REDUCE_SCATTER,
    CollectiveType.REDUCE_SCATTER_BLOCK: CollectiveKind.REDUCE_SCATTER,
    CollectiveType.BARRIER: CollectiveKind.BARRIER,
}

#: What a send and a receive are called where the sender does not wait for the receiver.
EAGER = ("eager-send", "eager-receive")


def chakra_kind(comm_type: int) -> CollectiveKind:
    """The kind of a node's `comm_type`; UNKNOWN for a number that Chakra does not define."""
    return _KINDS[CollectiveType(comm_type)] if comm_type in list(CollectiveType) else CollectiveKind.UNKNOWN


def kind_of_label(label: str) -> CollectiveKind:
    """The kind of collective that a label of `Communication.kinds` means, eager or not."""
    return CollectiveKind.of_word(label.removeprefix("eager-"))


def lowered_bytes(kind: CollectiveKind, input_bytes: int, ranks: int) -> int:
    """Bytes to write for a collective of that many input bytes a rank; a shard is rounded up."""
    return -(-input_bytes // ranks) if LOWERED[kind].shard else input_bytes


def input_bytes(kind: CollectiveKind, comm_type: int, comm_size: int, ranks: int) -> int:
    """The input bytes of one rank from the size that was written: the inverse of `lowered_bytes`."""
    lowered = LOWERED[kind]
    return comm_size * ranks if lowered.shard and comm_type == lowered.type else comm_size
