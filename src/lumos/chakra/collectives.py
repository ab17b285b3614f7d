"""Convert kinds of collectives to Chakra's types and back.

Simulators run only four types. Every other kind is written as the one of these that loads the links in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.trace.chakra.schema import CollectiveType
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Mapping


#: The type that a kind is written and priced as. A broadcast of n bytes puts n on the busiest link, as gathering shards of n / ranks does,
#: a reduce likewise; a gather brings (ranks - 1) shards to its root, as an all-gather does to all; a scatter sends as an all-to-all.
LOWERED: Mapping[CollectiveKind, CollectiveType] = {
    CollectiveKind.ALL_REDUCE: CollectiveType.ALL_REDUCE,
    CollectiveKind.ALL_GATHER: CollectiveType.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER: CollectiveType.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL: CollectiveType.ALL_TO_ALL,
    CollectiveKind.SEND: CollectiveType.ALL_TO_ALL,
    CollectiveKind.RECEIVE: CollectiveType.ALL_TO_ALL,
    CollectiveKind.SEND_RECEIVE: CollectiveType.ALL_TO_ALL,
    CollectiveKind.BROADCAST: CollectiveType.ALL_GATHER,
    CollectiveKind.REDUCE: CollectiveType.REDUCE_SCATTER,
    CollectiveKind.GATHER: CollectiveType.ALL_GATHER,
    CollectiveKind.SCATTER: CollectiveType.ALL_TO_ALL,
    CollectiveKind.BARRIER: CollectiveType.ALL_REDUCE,
    CollectiveKind.UNKNOWN: CollectiveType.ALL_REDUCE,
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
