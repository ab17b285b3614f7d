"""What the plan of a job costs: the bubble of a pipeline, and work that is done twice to save memory.

A pipeline bubble is what ranks wait in sends and receives for other stages. Interleaving v chunks of layers on each stage divides the
bubble by v (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021, section 2.2). The
worth given is that of v = 2, where the recording can be rearranged.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from lumos.findings.finding import FindingCode
from lumos.graph.table import Kind
from lumos.units import duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.findings.case import Case, Priced

#: Operators that only a backward pass with activation checkpointing has.
_CHECKPOINTS = re.compile(r"Checkpoint\w*Backward|checkpoint_without_reentrant|CheckpointFunction")


def plan_findings(case: Case) -> Iterator[Priced]:
    """The bubble of the pipeline, and recomputed passes."""
    yield from _bubble(case)
    yield from _recomputed(case)


def _bubble(case: Case) -> Iterator[Priced]:
    facts = case.graph.collectives
    bubble = case.mean_part_ns("pipeline_bubble")
    if facts is None or not case.matters(bubble):
        return
    price = case.ask({"vpp": 2})
    if price is None:
        return
    transfers = facts.task[[facts.kinds[i].is_transfer for i in facts.kind.tolist()]].astype(np.int64)
    if not len(transfers):
        return
    worst = max(case.parts, key=lambda part: part.parts.pipeline_bubble_ns)
    yield case.finding(
        FindingCode.PIPELINE_BUBBLE,
        "the stages of the pipeline wait for one another",
        case.at_longest(transfers, case.truth.end - case.truth.start),
        price,
        evidence=f"ranks wait {duration(bubble)} a step, rank {worst.rank} {duration(worst.parts.pipeline_bubble_ns)} in {worst.name}",
        fix="more microbatches a step, or two chunks of layers a stage (half the bubble)",
    )


def _recomputed(case: Case) -> Iterator[Priced]:
    graph = case.graph
    marks = [i for i, name in enumerate(graph.names) if _CHECKPOINTS.search(str(name))]
    if not marks:
        return
    price = case.ask({"recompute": "none"})
    if price is None:
        return
    tasks = (graph.kind == Kind.OPERATOR) & (graph.name[:, None] == marks).any(axis=1)
    yield case.finding(
        FindingCode.RECOMPUTED,
        "the backward pass computes activations again",
        case.at_longest(tasks if tasks.any() else case.counted),
        price,
        evidence="keeping the activations saves that, and needs more memory",
        fix="checkpoint fewer layers, or free memory by sharding states further (ZeRO)",
    )
