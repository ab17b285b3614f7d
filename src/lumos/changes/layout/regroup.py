"""What a recorded exchange takes among other ranks, of other bytes or over other links: measured × model(after) / model(before)."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from lumos.changes.layout.prices import Ratio, around, exactly
from lumos.cost.collective_model import collective, laid

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.cost.cluster import Cluster
    from lumos.cost.estimate import Estimate
    from lumos.graph.table import Collectives
    from lumos.vocabulary import CollectiveKind


class GroupExchange(NamedTuple):
    """An exchange between `ranks` ranks. nbytes: of its buffer, the larger of one rank's input and output. stride: how far the ranks are
    apart among those of the job, on average."""

    kind: CollectiveKind
    ranks: int
    nbytes: int
    stride: int = 1

    def of(self, times: float = 1.0, ranks: int | None = None, apart: int = 1) -> GroupExchange:
        """The same of so many times the bytes, between so many ranks, which are so many times as far apart."""
        return GroupExchange(self.kind, self.ranks if ranks is None else ranks, round(self.nbytes * times), self.stride * apart)


def recorded_exchange(facts: Collectives, row: int, ranks: int) -> GroupExchange:
    """The exchange of a row of the graph's facts, in a group of `ranks`."""
    kind = facts.kinds[facts.kind[row]]
    members = facts.members(row)
    stride = max((max(members) - min(members)) // (len(members) - 1), 1) if len(members) > 1 else 1
    return GroupExchange(kind, ranks, kind.buffer_bytes(int(facts.nbytes[row]), ranks), stride)


def modelled_exchange(exchange: GroupExchange, cluster: Cluster) -> Estimate:
    """What an exchange takes over the links of a cluster."""
    kind, ranks, nbytes, stride = exchange
    lies = laid(ranks, stride, cluster.node.devices)._asdict() if cluster.fabric.topology != "none" else {}
    return collective(kind, ranks, nbytes, cluster, **lies)


def modelled_exchanges(cluster: Cluster) -> Callable[[GroupExchange], Estimate]:
    """A function that gives what an exchange takes over the links of a cluster; equal ones are modelled once."""
    return cache(lambda exchange: modelled_exchange(exchange, cluster))


def regrouping(old: Cluster, new: Cluster | None = None) -> Callable[..., Ratio]:
    """A function of an exchange and of those that take its place, one after the other (none, or of one rank each, where nothing moves any
    more): by what its time is multiplied. The interval is that of the model's time after. old, new: the links before and after."""
    before_change, after_change = modelled_exchanges(old), modelled_exchanges(new or old)

    @cache
    def ratio(before: GroupExchange, *after: GroupExchange) -> Ratio:
        if after == (before,) and new is None:
            return exactly(1.0)
        times = [after_change(each) for each in after if each.ranks > 1 and each.nbytes > 0]
        best, high = sum(int(each.time) for each in times), sum(int(each.high) for each in times)
        return around(best / max(int(before_change(before).time), 1), high / best - 1) if best else exactly(0.0)

    return ratio
