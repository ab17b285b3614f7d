"""What recorded exchanges take among other ranks, of other bytes or over other links: measured × model(after) / model(before).

A change says what takes the place of recorded exchanges (`regroup`); what that takes is said here alone, once for all changes
(`reexchange`). Where the peers of an exchange were not recorded, its time may hold waiting: what the model of the transfer does not
explain is kept, and the interval reaches to a transfer alone. What moved nothing before, as in a job of one process, is added. Where the
links are not known, exchanges take time as their bytes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.changes.layout.measured_layout import GroupExchange, Regrouped
from lumos.changes.layout.prices import Ratio
from lumos.cost.collective_model import MODELLED_KINDS, collective, laid
from lumos.diagnostics import Diagnostic
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.cost.cluster import Cluster
    from lumos.cost.estimate import Estimate
    from lumos.graph.table import Collectives
    from lumos.trace.table import Job

_IN_PROPORTION = Diagnostic("exchange-in-proportion", "the job's links are not known: exchanges take time as their bytes")
_WAITING_KEPT = Diagnostic(
    "waiting-kept", "collectives without their peers: the time that the model of their transfer does not explain is kept as waiting"
)


class Links(NamedTuple):
    """The clusters over whose links a job exchanged when it was recorded, and exchanges after a change."""

    before: Cluster
    after: Cluster

    @property
    def differ(self) -> bool:
        """Whether the change is to other links."""
        return self.before != self.after


def recorded_exchange(facts: Collectives, row: int, unknown: int = 2) -> GroupExchange:
    """The exchange of a row of the graph's facts, of an unknown kind where no model covers it. unknown: the ranks of a group whose size was
    not recorded."""
    kind, nbytes = facts.kinds[facts.kind[row]], int(facts.nbytes[row])
    ranks = 2 if kind.is_transfer else int(facts.ranks[row]) if facts.ranks[row] > 0 else unknown
    members = facts.members(row)
    stride = max((max(members) - min(members)) // (len(members) - 1), 1) if len(members) > 1 else 1
    if nbytes <= 0 or not (kind in MODELLED_KINDS or kind.is_transfer):
        return GroupExchange(CollectiveKind.UNKNOWN, ranks, 1, stride)
    return GroupExchange(kind, ranks, kind.buffer_bytes(nbytes, ranks), stride)


def modelled_exchange(exchange: GroupExchange, cluster: Cluster) -> Estimate:
    """What an exchange takes over the links of a cluster."""
    kind, ranks, nbytes, stride = exchange
    lies = laid(ranks, stride, cluster.node.devices)._asdict() if cluster.fabric.topology != "none" else {}
    return collective(kind, ranks, round(nbytes), cluster, **lies)


def regroup(
    layout: MeasuredLayout,
    rows: Iterable[int],
    *becomes: Callable[[GroupExchange], Sequence[GroupExchange]],
    unknown: int = 2,
    read_as: Callable[[GroupExchange], GroupExchange] = lambda exchange: exchange,
) -> MeasuredLayout:
    """The layout in which exchanges, by the rows of the graph's facts, become what the first of `becomes` makes of them, or, less likely,
    what the others do: exchanges one after the other, or none where nothing moves any more. unknown: as of `recorded_exchange`. read_as:
    what a recorded exchange is."""
    facts, more = layout.segmentation.graph.collectives, {}
    if facts is None:
        return layout
    for row in rows:
        before = layout.exchanges.get(row)
        if before is None:
            recorded = read_as(recorded_exchange(facts, row, unknown))
            before = Regrouped(recorded, ((recorded,),))
        readings = [tuple(new for one in reading for new in change(one)) for reading in before.readings for change in becomes]
        more[row] = before._replace(readings=tuple(dict.fromkeys(readings)))
    return replace(layout, exchanges={**layout.exchanges, **more})


def reexchange(layout: MeasuredLayout, job: Job, links: Links | None) -> MeasuredLayout:
    """The layout in which exchanges take what becomes of them. links: None where they are not known."""
    graph = layout.segmentation.graph
    facts, prices, modelled = graph.collectives, layout.prices.copy(), set(layout.modelled)
    if facts is None:
        return layout
    becomes, notes = dict(layout.exchanges), dict[str, Diagnostic]()
    if links is not None and links.differ:
        others = {row: recorded_exchange(facts, row, job.world) for row in range(len(facts.task)) if row not in becomes}
        becomes.update({row: Regrouped(exchange, ((exchange,),)) for row, exchange in others.items()})
        if kept := sum(taken.kind is CollectiveKind.UNKNOWN and taken.ranks > 1 for taken in others.values()):
            text = f"{kept} collectives of unknown kind, size or group keep their measured time"
            notes["collectives-kept"] = Diagnostic("collectives-kept", text)
    waiting, takes = np.isin(facts.task, graph.waiting_unknown), cache(partial(_takes, links))
    for row, (recorded, readings) in becomes.items():
        task, took = int(facts.task[row]), [takes(recorded, reading) for reading in readings]
        ratios = [taken.of(int(graph.duration[task]), waits=bool(waiting[row])) for taken in took]
        prices.multiply(task, Ratio(ratios[0].best, min(r.low for r in ratios), max(r.high for r in ratios)))
        if took[0].modelled and took[0].best != took[0].before and (waiting[row] or not took[0].before):
            modelled.add(task)
            notes.update({_WAITING_KEPT.code: _WAITING_KEPT} if took[0].before else {})
        notes.update({note.code: note for taken in took for note in taken.notes})
    return replace(layout, prices=prices, modelled=frozenset(modelled), diagnostics=(*layout.diagnostics, *notes.values()))


class _Takes(NamedTuple):
    """What takes the place of a recorded exchange, and the ends of its 80 % interval, with what that took by the same measure. modelled:
    whether that is ns of a model; else bytes, to which the time is in proportion."""

    before: float
    best: float
    low: float
    high: float
    modelled: bool = False
    notes: tuple[Diagnostic, ...] = ()

    def of(self, whole: int, *, waits: bool) -> Ratio:
        """By what a recorded time is multiplied, ns. waits: whether it may hold waiting for others."""
        after, whole = self[1:4], max(whole, 1)
        if not self.before:
            return Ratio(*((whole + ns) / whole for ns in after))
        times = [taken / self.before for taken in after]
        moving = min(self.before / whole, 1.0) if waits and self.modelled else 1.0
        best, low, high = (1 - moving + moving * taken for taken in times)
        return Ratio(best, min(low, times[1]), max(high, times[2]))


#: What an exchange takes that stays what it was.
_AS_BEFORE = _Takes(1.0, 1.0, 1.0, 1.0)


def _takes(links: Links | None, recorded: GroupExchange, reading: tuple[GroupExchange, ...]) -> _Takes:
    """What a reading of a recorded exchange takes."""
    known = links is not None and recorded.kind is not CollectiveKind.UNKNOWN
    if reading == (recorded,) and not (known and links is not None and links.differ):
        return _AS_BEFORE
    moving = [exchange for exchange in reading if exchange.ranks > 1 and exchange.nbytes > 0]
    if links is None or not known:
        nbytes, was = sum(exchange.nbytes for exchange in moving), recorded.nbytes
        return _Takes(was, nbytes, min(nbytes, was), max(nbytes, was), notes=(_IN_PROPORTION,) if links is None else ())
    before = float(int(modelled_exchange(recorded, links.before).time)) if recorded.ranks > 1 else 0.0
    after = [modelled_exchange(exchange, links.after) for exchange in moving]
    best, low, high = (float(sum(int(getattr(exchange, end)) for exchange in after)) for end in ("time", "low", "high"))
    return _Takes(before, best, low, high, True, tuple(note for exchange in after for note in exchange.diagnostics))
