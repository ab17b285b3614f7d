"""Convert kinds of collectives to Chakra's types and back.

Simulators run only four types. Every other kind is written as the one of these that loads the links in the same way.
"""

from __future__ import annotations

from lumos.trace.chakra.schema import CollectiveType
from lumos.vocabulary import CollectiveKind

#: The type that a kind is written and priced as. A broadcast of n bytes puts n on the busiest link, as gathering shards of n / ranks does,
#: a reduce likewise; a gather brings (ranks - 1) shards to its root, as an all-gather does to all; a scatter sends as an all-to-all.
LOWERED = {
    **dict.fromkeys((CollectiveKind.ALL_TO_ALL, CollectiveKind.SCATTER), CollectiveType.ALL_TO_ALL),
    **dict.fromkeys((CollectiveKind.SEND, CollectiveKind.RECEIVE, CollectiveKind.SEND_RECEIVE), CollectiveType.ALL_TO_ALL),
    **dict.fromkeys((CollectiveKind.ALL_REDUCE, CollectiveKind.BARRIER, CollectiveKind.UNKNOWN), CollectiveType.ALL_REDUCE),
    **dict.fromkeys((CollectiveKind.ALL_GATHER, CollectiveKind.BROADCAST, CollectiveKind.GATHER), CollectiveType.ALL_GATHER),
    **dict.fromkeys((CollectiveKind.REDUCE_SCATTER, CollectiveKind.REDUCE), CollectiveType.REDUCE_SCATTER),
}

_KINDS = {int(kind): CollectiveKind[kind.name.removesuffix("_BLOCK")] for kind in CollectiveType}

#: What a send and a receive are called where the sender does not wait for the receiver.
EAGER = ("eager-send", "eager-receive")


def chakra_kind(comm_type: int) -> CollectiveKind:
    """The kind of a node's `comm_type`; UNKNOWN for a number that Chakra does not define."""
    return _KINDS.get(comm_type, CollectiveKind.UNKNOWN)


def kind_of_label(label: str) -> CollectiveKind:
    """The kind of collective that a label of `Communication.kinds` means, eager or not."""
    return CollectiveKind.of_word(label.removeprefix("eager-"))


def lowered_bytes(kind: CollectiveKind, input_bytes: int, ranks: int) -> int:
    """Bytes to write for a collective of that many input bytes a rank: of a broadcast one rank's shard, rounded up."""
    return -(-input_bytes // ranks) if kind is CollectiveKind.BROADCAST else input_bytes


def input_bytes(kind: CollectiveKind, comm_type: int, comm_size: int, ranks: int) -> int:
    """The input bytes of one rank from the size that was written: the inverse of `lowered_bytes`."""
    return comm_size * ranks if kind is CollectiveKind.BROADCAST and comm_type == LOWERED[kind] else comm_size
