"""What exchanges and copies that a recording does not have would take, from those that it has.

The models of collectives and of memory know devices and links of a kind, not those of this job. Where the recorded ranks exchange in
groups of as many ranks, by how much longer or shorter they take than the model says is a property of their links, and holds for other
kinds of collectives too. So it does for groups of other sizes that lie within one node, or not, as well: there it costs little where the
links are as modelled (from 3 to 5 % as medians over the public tables of nccl-tests, which run alone), and in a step the work beside them
makes all of them slower; the interval reaches to the model's own. Exchanges without their peers show nothing, since their times are waiting
as well. In the same way the recorded kernels that pass over memory show its rate.
"""

from __future__ import annotations

from collections import defaultdict
from math import log
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.changes.layout.measured_layout import GroupExchange
from lumos.changes.layout.placed import AddedTimes, roughly, times_of
from lumos.changes.layout.regroup import modelled_exchange, recorded_exchange
from lumos.cost.collective_model import FITTED_KINDS, laid
from lumos.cost.from_trace import middle_of
from lumos.cost.memory_bound_model import POINTWISE, STRIDED, moved
from lumos.cost.traffic import traffic
from lumos.segment.rank import recordings_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lumos.changes.layout.regroup import Links
    from lumos.cost.cluster import Accelerator, Cluster
    from lumos.graph.table import Graph
    from lumos.operators.shaped import ShapedOperator
    from lumos.segment.rank import RankRecording
    from lumos.segment.segment import Segmentation
    from lumos.trace.table import Job
    from lumos.vocabulary import CollectiveKind

#: In the public tables of nccl-tests on one node (of 19 groups on 7 machines, with four kinds of collectives each, from 1 MB), how much
#: longer than modelled one kind takes is within a factor of 1 + CARRIES of how much longer another takes, in 80 % of the pairs whose bytes
#: differ by a factor of NEAR at most. Smaller exchanges are latency, those farther apart are known no better than by the model, and the
#: tables have no broadcasts.
CARRIES, NEAR = 0.125, 4.0
#: Bytes from which an exchange, or a kernel, shows a rate and not only latency.
_LEAST_BYTES = 1_000_000


class Rates(NamedTuple):
    """The device and the links on which a job runs. links: by the ranks of a group, and how far they are apart, the buffers that the
    recording exchanges, bytes, and by how much longer than modelled that takes. memory: by how much longer than modelled kernels take that
    pass over memory, and the ends of its 80 % interval; None where none is recorded. stated: somebody said which links they are."""

    accelerator: Accelerator
    cluster: Cluster
    links: Mapping[tuple[int, int], tuple[tuple[int, float], ...]]
    memory: tuple[float, float, float] | None
    stated: bool

    def exchange(self, kind: CollectiveKind, ranks: int, nbytes: int, apart: int = 1) -> AddedTimes:
        """What a collective of `ranks` ranks takes that are so far apart. nbytes: the larger of one rank's input and output."""
        modelled = times_of(modelled_exchange(GroupExchange(kind, ranks, nbytes, apart), self.cluster))
        if nbytes < _LEAST_BYTES or kind not in FITTED_KINDS:
            return modelled
        same = self._nearest(self.links.get((ranks, apart), ()), nbytes)
        if same is not None:
            best = modelled.best * same
            return AddedTimes(round(best), round(best / (1 + CARRIES)), round(best * (1 + CARRIES)))
        within = self._within_node(ranks, apart)
        groups = [sizes for group, sizes in self.links.items() if self._within_node(*group) == within]
        alike = self._nearest([size for sizes in groups for size in sizes], nbytes)
        if alike is None:
            return unrecorded(modelled, stated=self.stated)
        best, low, high = (round(ns * alike) for ns in modelled)
        return AddedTimes(best, min(low, modelled.low), max(high, modelled.high))

    def _within_node(self, ranks: int, apart: int) -> bool:
        return laid(ranks, apart, self.cluster.node.devices).per_node == ranks

    @staticmethod
    def _nearest(known: Iterable[tuple[int, float]], nbytes: int) -> float | None:
        """The ratio of the recorded buffer of the most similar size; None where none is within a factor of NEAR."""
        size, ratio = min(known, key=lambda of_size: abs(log(of_size[0] / nbytes)), default=(0, 0.0))
        return ratio if size and abs(log(size / nbytes)) <= log(NEAR) else None

    def copy(self, nbytes: int) -> AddedTimes:
        """What a kernel takes that reads so many bytes and writes them elsewhere."""
        return self.passing(2 * nbytes)

    def passing(self, nbytes: int) -> AddedTimes:
        """What kernels take that read and write so many bytes together."""
        modelled = times_of(moved(nbytes, self.accelerator, POINTWISE))
        if self.memory is None:
            return modelled
        return AddedTimes(*(round(modelled.best * ratio) for ratio in self.memory))


def unrecorded(modelled: AddedTimes, *, stated: bool) -> AddedTimes:
    """What an exchange takes of which no recorded one tells: as modelled where somebody stated the links; over those that are usual for the
    device it is known to a factor only."""
    return modelled if stated else roughly(modelled.best)


def rates_of(segmentation: Segmentation, job: Job, links: Links, *, stated: bool) -> Rates:
    """The rates of a job that runs as recorded, but with the devices and links after a change; those of its memory from the first rank."""
    before, after = links
    memory = _memory(recordings_of(segmentation, job)[0], before.accelerator)
    return Rates(after.accelerator, after, _links(segmentation.graph, before), memory, stated)


def _links(graph: Graph, cluster: Cluster) -> dict[tuple[int, int], tuple[tuple[int, float], ...]]:
    """The buffers that groups of ranks exchange, and by how much longer that takes than modelled over the links of a cluster."""
    facts = graph.collectives
    if facts is None or facts.size is None:
        return {}
    known = (facts.size > 1) & (facts.nbytes > 0) & facts.of_kind(*FITTED_KINDS) & ~np.isin(facts.task, graph.waiting_unknown)
    took: dict[GroupExchange, list[float]] = defaultdict(list)
    for row in np.flatnonzero(known).tolist():
        took[recorded_exchange(facts, row)].append(float(graph.duration[facts.task[row]]))
    ratios_of: dict[tuple[int, int], list[tuple[int, float]]] = defaultdict(list)
    for exchange, times in took.items():
        if exchange.nbytes >= _LEAST_BYTES:
            ratio = float(np.median(times)) / max(int(modelled_exchange(exchange, cluster).time), 1)
            ratios_of[exchange.ranks, exchange.stride].append((round(exchange.nbytes), ratio))
    return {place: tuple(sorted(ratios)) for place, ratios in ratios_of.items()}


def _memory(rank: RankRecording, accelerator: Accelerator) -> tuple[float, float, float] | None:
    """By how much longer than modelled the recorded kernels take that pass over memory in order; its interval holds also those that do not
    (`STRIDED`), since a copy may be either."""
    ratios: dict[str, tuple[list[float], list[float]]] = {POINTWISE: ([], []), STRIDED: ([], [])}
    for o, tasks, rows in rank.work.by_operator():
        known = _passing(o, accelerator)
        if known is not None:
            took = np.bincount(np.unique(rows, return_inverse=True)[1], rank.segmentation.graph.duration[tasks])
            ratios[known[0]][0].extend((took[took > 0] / known[1]).tolist())
            ratios[known[0]][1].extend(took[took > 0].tolist())
    if not ratios[POINTWISE][0]:
        return None
    low, best, high = middle_of(*map(np.array, ratios[POINTWISE]))
    if ratios[STRIDED][0]:
        other = middle_of(*map(np.array, ratios[STRIDED]))
        low, high = min(low, other[0]), max(high, other[2])
    return best, low, high


def _passing(o: ShapedOperator, accelerator: Accelerator) -> tuple[str, int] | None:
    """The class of an operator that only passes over memory, and its modelled time, ns; None for others and for small ones."""
    rule = traffic(o)
    if rule is None or rule[0] not in (POINTWISE, STRIDED) or rule[1] < _LEAST_BYTES:
        return None
    return rule[0], max(int(moved(rule[1], accelerator, rule[0]).time), 1)
