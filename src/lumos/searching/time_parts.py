"""The step as parts that add up to it, which tell why one plan beats another.

The parts are means over the pipeline stages. The time inside blocks is split into compute by kind of work, recomputation (to save
memory), and the communication that does not overlap with compute, by process group. The time between blocks, in which the compute
stream is idle, is split into data-parallel communication, the time before the first pass and after the last (filling and draining
the pipeline), and the time between passes (transfers, and waiting for them).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.blocks.block import Block, collapse
from lumos.blocks.layer import LayerWork
from lumos.blocks.share import Share
from lumos.blocks.work import Collective, RankStream
from lumos.intervals import Union, either, union, within
from lumos.prediction.predict import Prediction, work_class
from lumos.vocabulary import Recompute

if TYPE_CHECKING:
    from lumos.blocks.price import Pricer

RECOMPUTED = "recomputation (memory)"
FILL = "pipeline fill and drain"
WAITING = "waiting between passes"
DATA = "data-parallel communication"


class StepParts(NamedTuple):
    """The parts of a step, and how far the cost models know them.

    seconds: by part, the largest first; they add up to the step. spread: by part, half the width of the 80 % interval as a share of the
    part's time. Waiting has none of its own: it follows from the others.
    """

    seconds: dict[str, float]
    spread: dict[str, float]


def parts_of(p: Prediction, pricer: Pricer) -> StepParts:
    """The parts of a coarse prediction."""
    total, runs = Counter[str](), Counter[int]()
    layout = p.layout
    for items in layout.stages:
        for item in items:
            runs[item.block] += item.repeat
    for number, repeat in runs.items():
        for name, time in _inside(layout.blocks[number], p, pricer).items():
            total[name] += time * repeat
    total.update(_between(p))
    factor = 1e-9 / len(layout.stages)
    return StepParts({name: time * factor for name, time in total.most_common() if time}, _spread(p, pricer, runs))


def _spread(p: Prediction, pricer: Pricer, runs: Counter[int]) -> dict[str, float]:
    """How far the time of each kind of work is known, as `StepParts.spread`. runs: how often each block runs."""
    time, width = Counter[str](), defaultdict[str, float](float)
    for number, repeat in runs.items():
        ops = p.layout.blocks[number].ops
        for op, price in zip(ops, pricer([op.work for op in ops]), strict=True):
            name = work_class(op.work, op.lane)
            time[name] += price.times.best * repeat
            width[name] += (price.times.high - price.times.low) / 2 * repeat
    known = {name: width[name] / time[name] for name in time if time[name]}
    return known | {RECOMPUTED: known.get("multiplications", 0.0)}


def _inside(block: Block, p: Prediction, pricer: Pricer) -> Counter[str]:
    """StepParts of one run of a block on the compute stream, ns."""
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
    parts[WAITING] += collapsed.device.best - parts.total()  # rounding
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
    begin, end = int(p.timeline.start.min()), int(p.timeline.end.max())
    streams = {(q.rank, q.stream - 1): i for i, q in enumerate(p.timeline.graph.processors) if q.is_stream}
    out = Counter[str]()
    for stage in range(len(p.layout.stages)):
        busy = _busy(p, streams.get((stage, int(RankStream.COMPUTE))))
        communicating = either(*(_busy(p, streams.get((stage, int(lane)))) for lane in (RankStream.DATA, RankStream.GATHER)))
        idle_from, idle_until = np.append(begin, busy.end), np.append(busy.start, end)
        data = within(communicating, idle_from, idle_until)
        first, *others = (idle_until - idle_from - data).tolist()
        out[DATA] += int(data.sum())
        out[FILL] += first + sum(others[-1:])
        out[WAITING] += sum(others[:-1])
    return out


def _busy(p: Prediction, processor: int | None) -> Union:
    """When a processor runs tasks."""
    which = p.timeline.graph.processor == (-1 if processor is None else processor)
    return union(p.timeline.start[which], p.timeline.end[which])
