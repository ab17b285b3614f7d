"""Times of many plans at once: the pipeline's recurrences over columns of plans, then the end of the step.

Plans whose passes come in the same order are timed together, wave by wave (`order`). Of long steps only as many
microbatches are timed as the pipeline needs to reach its steady state; the rest is added at the pace of its last round. What
it leaves out against the full simulation: queues on the transfers' streams, a host that is late for single passes only
(a host that is the limit throughout counts), and the remainder of the last gradient bucket.
"""

from __future__ import annotations

import numpy as np

from lumos.layout.coefficients import StepCoefficients
from lumos.layout.pipeline import Pass
from lumos.layout.plan import SCHEDULES
from lumos.search.memory import chunk_layers, structures
from lumos.search.order import FINAL, FINAL_WEIGHT, KINDS, Order, order_of, place_of
from lumos.search.prices import Columns, Floats, Ints
from lumos.search.space import Plans

#: Plans timed together: their ends of a wave stay in the cache.
TOGETHER = 256


def step_times(plans: Plans, columns: Columns, coefficients: StepCoefficients) -> Floats:
    """Seconds of every plan's step, float64[n]."""
    out = np.zeros(len(plans))
    blocking = not plans.problem.framework.p2p_overlap
    for structure, rows in structures(plans):
        order = order_of(*structure, blocking)
        for at in range(0, len(rows), TOGETHER):
            some = rows[at : at + TOGETHER]
            out[some] = _step(order, plans.take(some), columns.take(some), coefficients)
    nodes = np.maximum(1.0, plans.problem.gpus / plans.problem.cluster.node.devices)
    return np.asarray(out * 1e-9 * (1 + coefficients.jitter * np.log2(nodes)))


def _step(order: Order, plans: Plans, columns: Columns, coefficients: StepCoefficients) -> Floats:
    work = Work(order, plans, columns, SCHEDULES[int(plans["schedule"][0])])
    begin = 1000 * plans.problem.framework.step_us * coefficients.step
    ends = _sweep(order, work, columns.transfer, begin)
    pace = np.zeros(len(plans))
    for a, b in order.steady:
        pace += (ends[b] - ends[a]) / order.span
    beyond = (plans.microbatches - order.microbatches).astype(float) * pace
    return _finish(order, plans, columns, work, ends, beyond, begin)


class Work:
    """Length of every distinct pass of the plans, and what surrounds the passes.

    length: float[KINDS · places, plans], row = kind · places + place; `gathered`: when the parameters of a chunk are there.
    """

    def __init__(self, order: Order, plans: Plans, columns: Columns, name: str) -> None:
        self.name = name
        self.dense, self.mixture = chunk_layers(plans, 0)  # [stages, chunks held]
        self.places = order.stages * order.chunks
        stages, held = self.dense.shape
        self.layers = np.zeros((self.places, 2), np.int64)
        for s in range(stages):
            for c in range(held):
                self.layers[place_of(name, s, c, stages)] = self.dense[s, c], self.mixture[s, c]
        self.shared = plans["zero"] == 3
        self.length, self.host = _lengths(self, plans, columns)
        self.gathered = _gathered(self, order, plans, columns)


def _lengths(work: Work, plans: Plans, c: Columns) -> tuple[Floats, Floats]:
    framework = plans.problem.framework
    data = (plans["dp"] * plans["cp"] > 1)[:, None]
    zero = plans["zero"][:, None]
    each = (zero >= 2) & framework.reduce_each
    slowed = np.where(data, c.slowdown[:, :2], 0.0)
    final = c.backward + (slowed if framework.dp_overlap else np.where(each, slowed, 0.0))
    within = c.backward + np.where(each, slowed, 0.0)
    forward = c.forward
    if np.any(work.shared):
        sharded = work.shared[:, None] & data
        slow_gather = c.slowdown[:, 2:]
        forward = np.where(sharded, np.maximum(c.forward + slow_gather, c.gather), forward)
        backward = np.maximum(c.backward + slowed + slow_gather, c.gather + c.reduction)
        within, final = (np.where(sharded, backward, x) for x in (within, final))
    by_kind = {
        Pass.FORWARD: forward, Pass.BACKWARD: within, Pass.INPUT: c.inputs, Pass.WEIGHT: c.weights,
        FINAL: final, FINAL_WEIGHT: c.weights + (final - c.backward),
    }  # fmt: skip
    host_by_kind = {
        Pass.FORWARD: c.forward_host, Pass.BACKWARD: c.backward_host, Pass.INPUT: c.inputs_host, Pass.WEIGHT: c.weights_host,
        FINAL: c.backward_host, FINAL_WEIGHT: c.weights_host,
    }  # fmt: skip
    length = np.zeros((KINDS, work.places, len(plans)))
    host = np.zeros_like(length)
    for kind, per_layer in by_kind.items():
        length[kind] = work.layers @ per_layer.T
        host[kind] = work.layers @ host_by_kind[kind].T
    for kind, column in ((Pass.FORWARD, 0), (Pass.BACKWARD, 1), (Pass.INPUT, 1), (FINAL, 1)):
        length[kind, 0] += c.embedding[:, column]
        length[kind, -1] += c.head[:, column]
        host[kind, 0] += c.ends_host[:, 0] / 2
        host[kind, -1] += c.ends_host[:, 1] / 2
    return length.reshape(KINDS * work.places, -1), host.reshape(KINDS * work.places, -1)


def _gathered(work: Work, order: Order, plans: Plans, c: Columns) -> Floats | None:
    """When the first pass of a chunk may end at the earliest: its last layer's parameters gathered, and that layer run."""
    framework = plans.problem.framework
    sharded = (plans["zero"] >= 1) & (plans["zero"] <= 2) & (plans["dp"] * plans["cp"] > 1)
    if not framework.gather_overlap or not np.any(sharded):
        return None
    ready = np.zeros((work.places, len(plans)))
    for s in range(order.stages):
        lane = np.zeros(len(plans))
        for chunk in range(order.chunks):
            place = place_of("", s, chunk, order.stages)
            lane = lane + work.layers[place] @ c.gather.T
            ready[place] = np.where(sharded, lane + c.forward[:, 0], 0.0)
    return ready


def _sweep(order: Order, work: Work, transfer: Floats, begin: float) -> Floats:
    """End of every pass, float[passes + 1, plans]; the last row stands for passes that do not exist."""
    ends = np.full((len(order) + 1, len(transfer)), begin)
    row = order.kind * work.places + order.place
    for wave in order.waves:
        start = ends[wave.before] + wave.pays * transfer
        np.maximum(start, ends[wave.sender] + np.where(wave.sender == len(order), 0.0, 1.0)[:, None] * transfer, out=start)
        np.maximum(start, ends[wave.taker] + np.where(wave.taker == len(order), 0.0, 1.0)[:, None] * transfer, out=start)
        start += work.length[row[wave.begin : wave.end]]
        if work.gathered is not None:
            for i, place in wave.firsts:
                np.maximum(start[i], begin + work.gathered[place], out=start[i])
        ends[wave.begin : wave.end] = start
    return ends


def _finish(order: Order, plans: Plans, c: Columns, work: Work, ends: Floats, beyond: Floats, begin: float) -> Floats:
    """The end of the step: exchanges of gradients beside and after the last passes, optimizer, gathers."""
    framework = plans.problem.framework
    data = plans["dp"] * plans["cp"] > 1
    microbatches = plans.microbatches
    stages = order.stages
    heads = (0, stages - 1) if work.name == "dualpipe" else (stages - 1,)
    per_pass = np.bincount(order.kind * work.places + order.place, minlength=KINDS * work.places) / order.microbatches
    launches = 1000 * framework.transfer_us
    finished = []
    hosts = begin + _host_totals(work, stages, per_pass, microbatches)
    if stages > 1:
        hosts = hosts + 2 * order.chunks * microbatches * launches
    for stage in range(stages):
        tail = ends[order.last[stage]]
        lane = np.full(len(plans), begin)
        if framework.dp_overlap or np.any(work.shared):
            lane = _exchanged(order, c, work, ends, stage, lane)
        if (framework.dp_overlap or np.any(work.shared)) and stage in heads and not plans.problem.model.tied:
            lane = np.maximum(lane, tail) + c.outer_reduction[:, 1]
        done = np.maximum(tail, np.where(data, lane, 0.0)) + beyond
        kind = _kind_of(stage, stages)
        late = np.where(data & ~work.shared, c.final_reduction[:, kind], 0.0)
        finished.append(np.maximum(done + late, hosts[stage]))
    if stages > 1 and plans.problem.model.tied:
        together = np.maximum(finished[0], finished[-1]) + c.tied
        finished[0] = finished[-1] = together
    out = np.zeros(len(plans))
    for stage, end in enumerate(finished):
        kind = _kind_of(stage, stages)
        out = np.maximum(out, end + c.optimizer[:, kind] + c.final_gather[:, kind])
    return out


def _kind_of(stage: int, stages: int) -> int:
    return 0 if stage == 0 else 2 if stage == stages - 1 else 1


def _host_totals(work: Work, stages: int, per_pass: Floats, microbatches: Ints) -> Floats:
    """Host time of every stage's launches, float[stages, plans]."""
    each = (work.host * per_pass[:, None]).reshape(KINDS, -1, stages, work.host.shape[1]).sum(axis=(0, 1))
    return np.asarray(each * microbatches)


def _exchanged(order: Order, c: Columns, work: Work, ends: Floats, stage: int, lane: Floats) -> Floats:
    """When the gradients that are exchanged beside the last backward passes have been."""
    finals = sorted(int(i) for i in order.finals[stage] if i >= 0)
    for i in finals:
        place = int(order.place[i])
        dense, mixture = work.layers[place]
        layers = int(dense + mixture)
        if not layers:
            continue
        kind = int(mixture > dense)
        reduction, backward = c.reduction[:, kind], (c.backward if order.kind[i] == FINAL else c.weights)[:, kind]
        start = ends[i] - layers * backward
        size = np.minimum(c.bucket[:, 0], layers)
        lane = np.maximum(np.maximum(lane, start + size * backward) + layers * reduction, ends[i] + reduction * np.minimum(size, layers))
        if place == 0:
            lane = np.maximum(lane, ends[i]) + c.outer_reduction[:, 0]
    return lane
