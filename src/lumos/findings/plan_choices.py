"""What the plan of a job costs: the bubble of a pipeline, and work that is done twice to save memory.

A pipeline bubble is what ranks wait in sends and receives for other stages. Interleaving v chunks of layers on each stage divides the
bubble by v (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021, section 2.2). The
worth given is that of v = 2: by `lumos whatif --set vpp=2` where the recording can be rearranged, otherwise half of the bubble, without
what stages of unequal work cause. Recomputed passes are priced by `lumos whatif --set recompute=none`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from lumos.changes.changes import Changes
from lumos.changes.whatif import unchecked_answer
from lumos.errors import LumosError
from lumos.findings.finding import FindingCode
from lumos.findings.rebuilt import saved_by
from lumos.graph.table import Kind
from lumos.units import duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.findings.case import Case, Priced

#: Operators that only a backward pass with activation checkpointing has.
_CHECKPOINTS = re.compile(r"Checkpoint\w*Backward|checkpoint_without_reentrant|CheckpointFunction")


def plan_findings(case: Case, uneven_ns: float) -> Iterator[Priced]:
    """The bubble of the pipeline, and recomputed passes. uneven_ns: what of the step is due to stages of unequal work, which is no part of
    the bubble."""
    yield from _bubble(case, uneven_ns)
    yield from _recomputed(case)


def _interleaved_ns(case: Case) -> float | None:
    """What two chunks a stage save by `lumos whatif`, ns; None where the recording cannot be rearranged."""
    try:
        found = unchecked_answer(case.job, case.graph, Changes({"vpp": "2"}), case.cut)
    except LumosError:
        return None
    return 1e9 * (found.base.step_time_s - found.outcome.step_time_s)


def _bubble(case: Case, uneven_ns: float) -> Iterator[Priced]:
    facts = case.graph.collectives
    bubble = case.mean_part_ns("pipeline_bubble")
    if facts is None or not case.matters(bubble):
        return
    interleaved = _interleaved_ns(case)
    worth = max(bubble - uneven_ns, 0.0) / 2 if interleaved is None else interleaved
    if not case.matters(worth):
        return
    transfers = facts.task[[facts.kinds[i].is_transfer for i in facts.kind.tolist()]].astype(np.int64)
    if not len(transfers):
        return
    worst = max(case.parts, key=lambda part: part.parts.pipeline_bubble_ns)
    yield case.finding(
        FindingCode.PIPELINE_BUBBLE,
        "the stages of the pipeline wait for one another",
        case.at_longest(transfers, case.truth.end - case.truth.start),
        worth,
        evidence=(
            f"a rank waits {duration(bubble)} a step for other stages, the mean over ranks; rank {worst.rank}"
            f" {duration(worst.parts.pipeline_bubble_ns)} in {worst.name}"
        ),
        fix="run more microbatches a step, or interleave layers (two chunks a stage halve the bubble)",
        command="breakdown" if interleaved is None else "whatif --set vpp=2",
        range_ns=(0.0, bubble) if interleaved is None else None,
    )


def _recomputed(case: Case) -> Iterator[Priced]:
    graph = case.graph
    marks = [i for i, name in enumerate(graph.names) if _CHECKPOINTS.search(str(name))]
    if not marks:
        return
    try:
        saved = saved_by(case, {"recompute": "none"})
    except LumosError:
        return
    worth = saved.worth
    if not case.matters(worth):
        return
    tasks = (graph.kind == Kind.OPERATOR) & (graph.name[:, None] == marks).any(axis=1)
    yield case.finding(
        FindingCode.RECOMPUTED,
        "the backward pass computes activations again",
        case.at_longest(tasks if tasks.any() else case.counted),
        worth,
        evidence=f"keeping the activations makes the step {duration(worth)} shorter and needs more memory",
        fix="where memory allows, checkpoint fewer layers or only the attention, or free memory by sharding states further (ZeRO)",
        command="whatif --set recompute=none",
    )
