"""Prices that start from what a measured job took: measured × model(new) / model(old).

Work that the measured job did too is multiplied by measured / modelled of just that work; work it did not do by the ratio
of its class (multiplications, attention by direction, element-wise, collectives by kind). Host times likewise. So a plan
that only moves work about keeps its measured times, and one that changes it carries the job's own efficiency over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from lumos.blocks.block import Times
from lumos.blocks.price import Price, Pricer
from lumos.blocks.work import Contention, Work
from lumos.cost.cluster import Cluster
from lumos.graph.table import Graph, Kind
from lumos.predict.step_time import layout_of
from lumos.segment.signatures import OTHER, Signature, of_work
from lumos.trace.table import Int64
from lumos.whatif.identify import Identified

Factors = NDArray[np.float64]
#: Collectives of fewer bytes are latency alone, and say nothing of larger ones.
SMALL = 1 << 20


class CalibratedPricer(Pricer):
    """Prices on `cluster`, corrected by the ratios of a measured job. own: ratio by signature; by_class: for other work."""

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
            alike = self._by_class.get(_class(signature), self._by_class.get(signature[:1], 1.0))
            ratio = self._own.get(signature, alike)
            old = self._prices[w]
            mid, low, high = old.times
            if signature in self._own:  # measured: the model's interval no longer matters
                low = high = mid
            self._prices[w] = Price(Times(round(mid * ratio), round(low * ratio), round(high * ratio)), old.bound)

    def measured(self, work: Work) -> bool:
        """Whether the measured job did this work too."""
        return of_work(work) in self._own


def calibrate(found: Identified, graph: Graph, cluster: Cluster | None = None, altered: Graph | None = None) -> CalibratedPricer:
    """The pricer of a measured job (whose joined graph is `graph`), for `cluster` (default: where it was measured).

    altered: the same graph with changed durations, which are taken in place of the measured ones.
    """
    base = Pricer(found.job.cluster)
    layout = layout_of(found.job)
    factor = np.ones(len(graph)) if altered is None else altered.duration / np.maximum(graph.duration, 1)
    own, classes = _ratios(found, _transfers(graph), factor, base, [layout.work(s) for s in range(len(layout.stages))])
    return CalibratedPricer(cluster or found.job.cluster, own, classes, _host_ratio(found, graph, factor, base))


def _ratios(
    found: Identified, took: Int64, factor: Factors, base: Pricer, expected: list[list[Work]]
) -> tuple[dict[Signature, float], dict[Signature, float]]:
    """Measured (× factor) / modelled by signature and by class."""
    measured: dict[Signature, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    modelled: dict[Signature, list[int]] = defaultdict(lambda: [0, 0])
    for rank, stage in zip(found.work, found.stage, strict=True):
        for m in rank:
            entry = measured[m.signature]
            entry[0] += int(took[m.task])
            entry[1] += took[m.task] * factor[m.task]
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
        if signature[0] == "collective" and int(signature[3]) < SMALL:
            continue
        for key in (_class(signature), signature[:1]):
            sums[key][0] += changed
            sums[key][1] += model * count
    return own, {key: time / model for key, (time, model) in sums.items() if model}


def _transfers(graph: Graph) -> Int64:
    """Durations, but of joined collectives the least that a member measured: the last to arrive waits for no one, and its
    own clock measures it, whatever the clocks of ranks are apart."""
    took = graph.duration.copy()
    if graph.measured_start is None or graph.measured_end is None or not len(graph.rendezvous_task):
        return took
    tasks = graph.rendezvous_task
    length = (graph.measured_end - graph.measured_start)[tasks]
    sizes = np.diff(graph.rendezvous_offset)
    least = np.minimum.reduceat(length, graph.rendezvous_offset[:-1][sizes > 0])
    took[tasks] = np.repeat(least, sizes[sizes > 0])
    return took


def _class(signature: Signature) -> Signature:
    """What carries efficiency over: the kind of work, and of attention the direction, of collectives the kind."""
    return signature[:2] if signature[0] in ("attention", "collective") else signature[:1]


def _host_ratio(found: Identified, graph: Graph, factor: Factors, base: Pricer) -> float:
    """Launch time of the ranks, measured (× factor) / as the framework's profile has it."""
    layout = layout_of(found.job)
    expected = 0.0
    for stage in found.stage:
        blocks = [layout.blocks[item.block] for item in layout.stages[stage] for _ in range(item.repeat)]
        expected += base.coefficients.host * sum(op.host for block in blocks for op in block.ops)
    launching = ~graph.on_device & np.isin(graph.kind, (Kind.LAUNCH, Kind.OPERATOR, Kind.RUNTIME))
    named = np.array([not name.endswith(": host") for name in graph.names] or [True])
    chosen = launching & named[graph.name]
    known = float(graph.duration[chosen].sum())
    return float((graph.duration * factor)[chosen].sum()) / expected if expected and known else 1.0
