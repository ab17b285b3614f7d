"""Why one plan beats another: the step as parts that add up to it, and the difference of two steps part by part.

The parts are means over the pipeline stages. The time inside blocks is split into compute by kind of work, recomputation (to save
memory), and the communication that does not overlap with compute, by process group. The time between blocks, in which the compute
stream is idle, is split into data-parallel communication, the time before the first pass and after the last (filling and draining
the pipeline), and the time between passes (transfers, and waiting for them).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lumos.blocks.block import Block, collapse
from lumos.blocks.layer import LayerWork
from lumos.blocks.share import Share
from lumos.blocks.work import Collective, RankStream
from lumos.predict.predict import Prediction, work_class
from lumos.predict.step_time import slowest
from lumos.result import Shown
from lumos.vocabulary import Recompute

if TYPE_CHECKING:
    from lumos.blocks.price import Pricer

RECOMPUTED = "recomputation (memory)"
FILL = "pipeline fill and drain"
_WAITING = "waiting between passes"
_DATA = "data-parallel communication"


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Shown):
    """The parts of two steps, in seconds; the parts of each add up to its step."""

    first: dict[str, float]
    second: dict[str, float]

    @property
    def difference(self) -> dict[str, float]:
        """The parts of the second step minus those of the first, the largest difference first."""
        keys = dict.fromkeys([*self.first, *self.second])
        differences = {key: self.second.get(key, 0.0) - self.first.get(key, 0.0) for key in keys}
        return dict(sorted(differences.items(), key=lambda item: -abs(item[1])))


def explain_predictions(first: Prediction, second: Prediction, pricer: Pricer) -> Explanation:
    """The parts of two predictions in coarse form on one cluster."""
    return Explanation(time_by_part(first, pricer), time_by_part(second, pricer))


def time_by_part(p: Prediction, pricer: Pricer) -> dict[str, float]:
    """The parts of a coarse prediction, in seconds."""
    total = Counter[str]()
    known: dict[int, Counter[str]] = {}
    layout = p.layout
    for items in layout.stages:
        for item in items:
            if item.block not in known:
                known[item.block] = _inside(layout.blocks[item.block], p, pricer)
            for name, time in known[item.block].items():
                total[name] += time * item.repeat
    total.update(_between(p))
    factor = slowest(p.job, pricer.coefficients) * 1e-9 / len(layout.stages)
    return {name: time * factor for name, time in total.most_common() if time}


def _inside(block: Block, p: Prediction, pricer: Pricer) -> Counter[str]:
    """Parts of one run of a block on the compute stream, ns."""
    parts = Counter[str]()
    if not any(op.lane is RankStream.COMPUTE for op in block.ops):
        return parts
    times = [price.times for price in pricer([op.work for op in block.ops])]
    repeated = _repeated_ops(block, p)
    collapsed = collapse(block, times)
    communication = Counter[str]()
    for i, (op, time) in enumerate(zip(block.ops, times, strict=True)):
        if isinstance(op.work, Collective):
            communication[work_class(op.work, op.lane)] += time.best
        elif i >= repeated:
            parts[work_class(op.work, op.lane)] += time.best
        else:
            parts[RECOMPUTED] += time.best
    for name, length in communication.items():
        parts[name] += round(collapsed.exposed * length / max(1, communication.total()))
    parts[_WAITING] += collapsed.device.best - parts.total()  # rounding
    return parts


def _repeated_ops(block: Block, p: Prediction) -> int:
    """How many operations at the beginning of a block repeat the forward pass."""
    plan = p.job.plan
    if plan.recompute is not Recompute.FULL or not block.name.startswith(("layer backward", "layer input")):
        return 0
    share = Share(p.job.model, plan, p.job.framework, p.job.cluster.node.devices)
    work = LayerWork(share)
    for mixture in (False, True):
        if mixture and p.job.model.experts is None:
            continue
        forward = work.forward(mixture).ops
        if block.ops[: len(forward)] == forward:
            return len(forward)
    return 0


def _between(p: Prediction) -> Counter[str]:
    """Idle time of the compute streams by part, summed over the stages, ns."""
    timeline, graph = p.timeline, p.timeline.graph
    begin, end = int(timeline.start.min()), int(timeline.end.max())
    streams = {(q.rank, q.stream - 1): i for i, q in enumerate(graph.processors) if q.is_stream}
    out = Counter[str]()
    for stage in range(len(p.layout.stages)):
        spans = _spans(p, streams.get((stage, int(RankStream.COMPUTE))))
        if not len(spans):
            out[FILL] += end - begin
            continue
        idle = _gaps(spans, begin, end)
        data = [_spans(p, streams.get((stage, int(lane)))) for lane in (RankStream.DATA, RankStream.GATHER)]
        communicating = np.concatenate(data)
        out[_DATA] += sum(_overlap(gap, communicating) for gap in idle)
        for gap in idle:
            outer = gap[0] == begin or gap[1] == end or gap[1] == spans[0, 0]
            out[FILL if outer else _WAITING] += gap[1] - gap[0] - _overlap(gap, communicating)
    return out


def _spans(p: Prediction, processor: int | None) -> np.ndarray:
    """Start and end of the tasks of a processor, in order: int64[n, 2]."""
    if processor is None:
        return np.zeros((0, 2), np.int64)
    t = p.timeline
    which = np.flatnonzero(t.graph.processor == processor)
    spans = np.stack([t.start[which], t.end[which]], axis=1)
    return np.asarray(spans[np.argsort(spans[:, 0], kind="stable")])


def _gaps(spans: np.ndarray, begin: int, end: int) -> list[tuple[int, int]]:
    starts = [*spans[:, 0].tolist(), end]
    ends = [begin, *np.maximum.accumulate(spans[:, 1]).tolist()]
    return [(a, b) for a, b in zip(ends, starts, strict=True) if b > a]


def _overlap(gap: tuple[int, int], spans: np.ndarray) -> int:
    """How much of the gap the spans cover, ns. Time that several spans cover is counted once."""
    if not len(spans):
        return 0
    inside = spans[(spans[:, 1] > gap[0]) & (spans[:, 0] < gap[1])]
    covered, edge = 0, gap[0]
    for start, stop in sorted(map(tuple, inside.tolist())):
        low, high = max(start, edge), min(stop, gap[1])
        if high > low:
            covered += high - low
            edge = high
    return covered
