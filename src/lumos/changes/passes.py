"""Recordings of whole passes under another pipeline: the recorded passes, rearranged.

Such a recording shows the forward and backward passes of every stage and microbatch, but not what they consist of. So only the
pipeline can change: its stages, chunks of a stage, microbatches and schedule. The model is assumed to be cut evenly: the passes
of a chunk that is a part of a recorded one take that part of the recorded time, and those of a chunk that covers several take
their sum. An unchanged pass keeps its time. Every transfer between two chunks takes the time that the replay of the recording
gives to a transfer; its 80 % interval reaches from 0 to twice that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.loop.steps import members
from lumos.changes.answer import Changed
from lumos.changes.settings import SETTINGS, Way, counts, keys_for
from lumos.errors import LumosError, UsageError
from lumos.graph.operations.graph import rearranged_graph
from lumos.graph.operations.table import BACKWARD, FORWARD, Operations, recorded
from lumos.graph.table import Kind
from lumos.plan.schedules import Pass, schedule
from lumos.vocabulary import Schedule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumos.trace.table import Job


def rearranged(job: Job, settings: Mapping[str, str]) -> Changed:
    """The job under another pipeline. Raises LumosError where the recording does not support the change, UsageError for a value
    that no pipeline can have."""
    valid = keys_for(Way.PASSES)
    other = [key for key in settings if key not in valid]
    if other:
        changeable = "durations" if _besides(recorded(job)) else f"{', '.join(valid)} and durations"
        raise LumosError(
            f"--set {other[0]}: {job.traces[0].path} records passes, not what they consist of, so that only {changeable} can change"
        )
    graph = rearranged_graph(job, lambda ops: _arranged(ops, settings))
    owners = members(graph)  # decided by the new start times of the passes, which are removed next
    graph = replace(graph, measured_start=None, measured_end=None, steps=())
    added = (graph.kind == Kind.COLLECTIVE) & (graph.event < 0)
    low, high = graph.duration.copy(), graph.duration.copy()
    low[added], high[added] = 0, 2 * graph.duration[added]
    cut = any(key in settings for key in ("pp", "vpp"))
    words = tuple(f"{key} = {value}" for key, value in settings.items())
    return Changed(graph, owners, low, high, (graph.kind == Kind.OPERATOR) & cut, added, words, graph.diagnostics)


def _arranged(ops: Operations, settings: Mapping[str, str]) -> Operations:
    """The passes in the order of the new schedule, one after the other from the start of the rank's first one."""
    _check(ops)
    measured = 1 + int(ops.microbatch.max())
    wanted = counts(settings)
    stages, chunks, count = wanted.get("pp", ops.plan.stages), wanted.get("vpp", ops.plan.chunks), wanted.get("microbatches", measured)
    usual = Schedule.INTERLEAVED if chunks > 1 else Schedule.ONE_F_ONE_B
    name = Schedule(settings.get("schedule", usual))
    _check_plan(ops, stages, chunks, count, name)
    parts = _parts(ops.plan.stages * ops.plan.chunks, stages * chunks)
    passes: list[tuple[int, ...]] = []
    for step in range(len(ops.steps)):
        at, begins = _recorded_passes(ops, step, measured)
        pass_ns = (ops.end - ops.start)[at]
        for stage in range(stages):
            clock = begins[min(stage, len(begins) - 1)]
            for action in schedule(name, stage, stages, count, chunks):
                key = int(action.step is Pass.BACKWARD), action.microbatch * measured // count
                of_chunk = parts[action.chunk * stages + stage]
                length = round(float(of_chunk @ pass_ns[key]))
                own = int(at[key][of_chunk.argmax()])
                passes.append((own, stage, step, clock, clock + length, stage, action.microbatch, action.chunk))
                clock += length
    keys = ("rank", "step", "start", "end", "stage", "microbatch", "chunk")
    source, *columns = np.array(sorted(passes, key=lambda of_pass: of_pass[1]), np.int64).T
    ops = replace(ops, ranks=tuple(range(stages)), plan=ops.plan._replace(stages=stages, chunks=chunks))
    return ops.picked(source, **dict(zip(keys, columns, strict=True)))


def _recorded_passes(ops: Operations, step: int, microbatches: int) -> tuple[np.ndarray, list[int]]:
    """The passes of one step, [direction, microbatch, position among all chunks in forward order], and when the first of each stage began,
    ns. Raises LumosError where a pass was not recorded."""
    of_step = np.flatnonzero(ops.step == step)
    at = np.full((2, microbatches, ops.plan.stages * ops.plan.chunks), -1)
    at[ops.is_named(BACKWARD)[of_step].astype(np.int64), ops.microbatch[of_step], ops.position()[of_step]] = of_step
    if (at < 0).any():
        raise LumosError(f"step {ops.steps[step]} of the recording lacks passes, so its pipeline cannot be rearranged")
    return at, [int(ops.start[of_step][ops.stage[of_step] == s].min()) for s in range(ops.plan.stages)]


def _parts(old: int, new: int) -> np.ndarray:
    """Which part of each recorded chunk of the model each new chunk covers, float64[new, old]."""
    edges_old, edges_new = np.arange(old + 1) / old, np.arange(new + 1) / new
    covered = np.minimum(edges_new[1:, None], edges_old[None, 1:]) - np.maximum(edges_new[:-1, None], edges_old[None, :-1])
    parts: np.ndarray = np.maximum(covered, 0.0) * old
    return parts


def _besides(ops: Operations) -> list[str]:
    """The operations of a recording that are no passes."""
    return [name for name in ops.names if name not in (FORWARD, BACKWARD)]


def _check(ops: Operations) -> None:
    """Raise LumosError where the recording has more than the passes of one replica."""
    others = _besides(ops)
    if others:
        raise LumosError(
            f"the recording has {', '.join(others[:3])} besides its passes, and does not show where they belong in another pipeline; only"
            " recordings of passes alone (pp_vis) can be rearranged"
        )
    if (ops.dp != 0).any():
        raise LumosError("the recording is of several replicas; give the files of one")


def _check_plan(ops: Operations, stages: int, chunks: int, count: int, name: Schedule) -> None:
    """Raise UsageError where no pipeline has these values, LumosError where the recording does not show what they take."""
    SETTINGS["schedule"].check_for(Way.PASSES, name)
    if (chunks > 1) != (name is Schedule.INTERLEAVED):
        text = "several chunks need the interleaved schedule, and it needs several"
        raise UsageError(f"schedule {name} cannot be used with vpp={chunks}: {text}")
    if chunks > 1 and (stages < 2 or count % stages):
        raise UsageError(f"vpp={chunks} needs several stages, and microbatches ({count}) that are a multiple of them ({stages})")
    if ops.plan.stages == 1 and stages > 1:
        raise LumosError("--set pp: a recording of one stage shows no transfer, so more stages cannot be timed")
