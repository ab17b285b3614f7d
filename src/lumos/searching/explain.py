"""Why one plan beats another, whether it does as far as is known, and what would tell the two apart.

Two plans are equal if the 80 % intervals of their steps overlap: published runs do not show that predictions order such plans
(validation/results/ranking-published.md). The cost models price the same kind of work in both, so an error in one kind moves both steps,
each by its own amount. For every part of the step there is an error that would make both steps equal. The part for which that error is
the smallest, measured by how far its cost is known, is the one to measure.

The parts add up to the step; they are means over the pipeline stages. The time inside blocks is split into compute by kind of work,
recomputation (to save memory), and the communication that does not overlap with compute, by process group. The time between blocks, in
which the compute stream is idle, is split into data-parallel communication, the time before the first pass and after the last (filling
and draining the pipeline), and the time between passes (transfers, and waiting for them).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.blocks.block import Block, collapse
from lumos.blocks.layer import LayerWork
from lumos.blocks.share import Share
from lumos.blocks.work import Collective, RankStream
from lumos.intervals import Union, either, union, within
from lumos.prediction.predict import UNPROVED_SCHEDULES, Prediction, work_class
from lumos.result import Shown
from lumos.vocabulary import Recompute

if TYPE_CHECKING:
    from lumos.blocks.price import Pricer
    from lumos.plan.job import PlannedJob
    from lumos.prediction.step_time import PredictedStep

#: A kind of work whose cost would have to differ by more than so many times its interval decides nothing.
_FAR = 4.0


class Against(NamedTuple):
    """How a plan stands against a faster one.

    difference_s: how much longer its step is. equal: whether the 80 % intervals of the two steps overlap. decides: the part of the step
    that would have to cost otherwise than modelled for the two to be equal, and by what share (`tie`: +0.2 is a fifth more); None where no
    credible error of one part would do it. measure: what to measure to know, in words.
    """

    difference_s: float
    equal: bool
    decides: str | None
    tie: float | None
    measure: str | None


class Timed(NamedTuple):
    """A plan with its step and the parts of the step."""

    job: PlannedJob
    time: PredictedStep
    parts: StepParts


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Shown):
    """The parts of two steps, in seconds; the parts of each add up to its step. against: the slower one against the faster one."""

    first: dict[str, float]
    second: dict[str, float]
    against: Against

    @property
    def difference(self) -> dict[str, float]:
        """The parts of the second step minus those of the first, the largest difference first."""
        return _difference(self.first, self.second)


def explain_predictions(first: Prediction, second: Prediction, pricer: Pricer) -> Explanation:
    """The parts of two predictions in coarse form on one cluster."""
    a, b = (Timed(p.job, p.time, parts_of(p, pricer)) for p in (first, second))
    fast, slow = sorted((a, b), key=lambda timed: timed.time.time_s)
    return Explanation(a.parts.seconds, b.parts.seconds, against(slow, fast))


def against(slow: Timed, fast: Timed) -> Against:
    """How the slower of two plans stands against the faster one."""
    longer = slow.time.time_s - fast.time.time_s
    equal = slow.time.low_s <= fast.time.high_s
    schedules = [t.job.plan.schedule for t in (slow, fast) if t.job.plan.schedule in UNPROVED_SCHEDULES]
    if len(schedules) == 1:
        return Against(longer, equal, f"the {schedules[0]} schedule", None, f"a step of any job with the {schedules[0]} schedule")
    deciding = _deciding(slow, fast, longer)
    if deciding is None:
        return Against(longer, equal, None, None, None)
    part, share = deciding
    larger = max((slow, fast), key=lambda timed: timed.parts.seconds.get(part, 0.0))
    return Against(longer, equal, part, share, _measurement(part, larger.job))


def _deciding(slow: Timed, fast: Timed, longer: float) -> tuple[str, float] | None:
    """The part whose cost decides between two plans, and the share by which it would have to differ for a tie."""
    best, least = None, _FAR
    for part, difference in _difference(fast.parts.seconds, slow.parts.seconds).items():
        spread = max(_spread(part, timed.parts) for timed in (slow, fast))
        share = -longer / difference if difference else 0.0
        if difference and spread and share > -1 and abs(share) / spread < least:
            best, least = (part, share), abs(share) / spread
    return best


def _spread(part: str, parts: StepParts) -> float:
    """How far the cost of a part is known; of waiting, as far as that of the whole step."""
    if part in parts.spread:
        return parts.spread[part]
    known = {name: time for name, time in parts.seconds.items() if name in parts.spread}
    return sum(parts.spread[name] * time for name, time in known.items()) / (sum(known.values()) or 1.0)


def _difference(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    keys = dict.fromkeys([*first, *second])
    differences = {key: second.get(key, 0.0) - first.get(key, 0.0) for key in keys}
    return dict(sorted(differences.items(), key=lambda item: -abs(item[1])))


def _measurement(part: str, job: PlannedJob) -> str:
    """What to measure to know the cost of a part of a job's step."""
    plan, model = job.plan, job.model
    tokens = plan.micro_batch * plan.seq_len // plan.cp
    activations = f"{2 * tokens * model.hidden / 1e6:.0f} MB"
    if part in (WAITING, FILL):
        return f"one step of both plans with their {plan.pp} pipeline stages; fewer layers will do"
    if part == DATA:
        return f"a reduce-scatter of {model.parameters / (plan.tp * plan.pp) * 4 / plan.vpp / 1e9:.2g} GB over {plan.dp * plan.cp} devices"
    if part == "tensor-parallel communication":
        kind = "an all-gather and a reduce-scatter" if plan.sequence_parallel else "an all-reduce"
        return f"{kind} of {activations} over {plan.tp} devices of a node"
    if part == "context-parallel communication":
        return f"the exchange of keys and values of {tokens:,} tokens over {plan.cp} devices"
    if part == "expert-parallel communication":
        return f"an all-to-all of {activations} over {plan.ep} devices"
    what = "multiplications" if part == RECOMPUTED else part
    return f"{what} of one layer with tensor parallel {plan.tp} and {tokens:,} tokens on one node"


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
    return StepParts({name: time * factor for name, time in total.most_common() if time}, _spread_of_kinds(p, pricer, runs))


def _spread_of_kinds(p: Prediction, pricer: Pricer, runs: Counter[int]) -> dict[str, float]:
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
