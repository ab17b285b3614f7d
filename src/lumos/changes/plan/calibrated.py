"""TaskPrices of work that are corrected by a measured job: model(new) × measured / model(old).

Work that the measured job did too is multiplied by the ratio measured / modelled of exactly that work; other work by the ratio
of its class (multiplications, attention by direction, element-wise, collectives by kind). The same holds for host times. So
work that a new plan only moves to another rank or time keeps its measured time, and changed work keeps the job's own efficiency.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from lumos.blocks.block import Times
from lumos.blocks.price import Price, Pricer
from lumos.blocks.work import Contention, Work
from lumos.graph.table import Graph, Kind
from lumos.prediction.step_time import layout_of
from lumos.segment.signatures import OTHER, Signature, of_work

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumos.changes.plan.identify import Identified
    from lumos.cost.cluster import Cluster
    from lumos.trace.table import Int64

_Factors = NDArray[np.float64]
#: The time of a collective of fewer bytes is only latency, which says nothing about larger ones.
_SMALL = 1 << 20


class CalibratedPricer(Pricer):
    """TaskPrices on `cluster`, corrected by the ratios of a measured job. own: the ratio by signature of work that it did. by_class: the
    ratio by class, for other work. host: the ratio of host times."""

    def __init__(self, cluster: Cluster, own: dict[Signature, float], by_class: dict[Signature, float], host: float) -> None:
        super().__init__(cluster)
        c = self.coefficients
        self.coefficients = msgspec.structs.replace(c, host=c.host * host, step=c.step * host)
        self._own, self._by_class = own, by_class

    def _price(self, work: Iterable[Work]) -> None:
        new = list(work)
        super()._price(new)
        for w in new:
            signature = of_work(w.collective if isinstance(w, Contention) else w)
            class_ratio = self._by_class.get(_class(signature), self._by_class.get(signature[:1], 1.0))
            ratio = self._own.get(signature, class_ratio)
            old = self._prices[w]
            mid, low, high = old.times
            if signature in self._own:  # measured: the model's interval no longer matters
                low = high = mid
            self._prices[w] = Price(Times(round(mid * ratio), round(low * ratio), round(high * ratio)), old.bound)

    def measured(self, work: Work) -> bool:
        """Whether the measured job did this work too."""
        return of_work(work) in self._own


def calibrated_pricer(
    identified: Identified, graph: Graph, cluster: Cluster | None = None, altered: Graph | None = None
) -> CalibratedPricer:
    """The pricer of a measured job, whose joined graph is `graph`, for `cluster` (default: where it was measured).

    altered: the same graph with changed durations, which replace the measured ones.
    """
    base = Pricer(identified.job.cluster)
    layout = layout_of(identified.job)
    factor = np.ones(len(graph)) if altered is None else altered.duration / np.maximum(graph.duration, 1)
    own, classes = _ratios(identified, _transfer_durations(graph), factor, base, [layout.work(s) for s in range(len(layout.stages))])
    return CalibratedPricer(cluster or identified.job.cluster, own, classes, _host_ratio(identified, graph, factor, base))


def _ratios(
    identified: Identified, transfer_ns: Int64, factor: _Factors, base: Pricer, expected: list[list[Work]]
) -> tuple[dict[Signature, float], dict[Signature, float]]:
    """The ratio measured × factor / modelled, by signature and by class. transfer_ns: `_transfer_durations`."""
    measured: dict[Signature, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    modelled: dict[Signature, list[int]] = defaultdict(lambda: [0, 0])
    for rank, stage in zip(identified.work, identified.stage, strict=True):
        for m in rank:
            entry = measured[m.signature]
            entry[0] += int(transfer_ns[m.task])
            entry[1] += transfer_ns[m.task] * factor[m.task]
            entry[2] += 1
        for w, price in zip(expected[stage], base(expected[stage]), strict=True):
            known = modelled[of_work(w)]
            known[0] += price.times.best
            known[1] += 1
    own: dict[Signature, float] = {}
    sums: dict[Signature, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for signature, (time, changed, count) in measured.items():
        other = modelled.get(signature)
        if signature == OTHER or other is None or not other[0] or not time:
            continue
        model = other[0] / other[1]
        own[signature] = changed / count / model
        if signature[0] == "collective" and int(signature[3]) < _SMALL:
            continue
        for key in (_class(signature), signature[:1]):
            sums[key][0] += changed
            sums[key][1] += model * count
    return own, {key: time / model for key, (time, model) in sums.items() if model}


def _transfer_durations(graph: Graph) -> Int64:
    """Durations of the tasks, but for every joined collective the shortest that a member measured. The last rank to arrive does not
    wait, and its own clock measures the transfer, however much the clocks of the ranks differ."""
    duration = graph.duration.copy()
    if graph.measured_start is None or graph.measured_end is None or not len(graph.rendezvous_task):
        return duration
    tasks = graph.rendezvous_task
    length = (graph.measured_end - graph.measured_start)[tasks]
    sizes = np.diff(graph.rendezvous_offset)
    least = np.minimum.reduceat(length, graph.rendezvous_offset[:-1][sizes > 0])
    duration[tasks] = np.repeat(least, sizes[sizes > 0])
    return duration


def _class(signature: Signature) -> Signature:
    """The class of work that shares one ratio: its type, for attention with the direction, for collectives with the kind."""
    return signature[:2] if signature[0] in ("attention", "collective") else signature[:1]


def _host_ratio(identified: Identified, graph: Graph, factor: _Factors, base: Pricer) -> float:
    """The launch time of the ranks: measured × factor, divided by that of the framework's profile."""
    layout = layout_of(identified.job)
    expected = 0.0
    for stage in identified.stage:
        blocks = [layout.blocks[item.block] for item in layout.stages[stage] for _ in range(item.repeat)]
        expected += base.coefficients.host * sum(op.host for block in blocks for op in block.ops)
    launching = ~graph.on_device & np.isin(graph.kind, (Kind.LAUNCH, Kind.OPERATOR, Kind.RUNTIME))
    named = np.array([not name.endswith(": host") for name in graph.names] or [True])
    chosen = launching & named[graph.name]
    known = float(graph.duration[chosen].sum())
    return float((graph.duration * factor)[chosen].sum()) / expected if expected and known else 1.0
