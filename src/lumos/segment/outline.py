"""The outline of a segmented step: embedding, 48 × layer, head, …, with the tasks and the time of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.graph.build import build
from lumos.segment.segment import segment
from lumos.trace.source import as_job

if TYPE_CHECKING:
    from lumos.graph.table import Graph
    from lumos.segment.segment import Segmentation
    from lumos.trace.source import Source


class OutlineRow(NamedTuple):
    """Consecutive pieces of one kind. repeats: how many. tasks, cpu_ns, device_ns: the mean over these pieces."""

    phase: str
    microbatch: int
    block: str
    repeats: int
    tasks: int
    cpu_ns: int
    device_ns: int


class Outline(NamedTuple):
    """The outline of one step of one rank. layers, confidence and evidence are those of the whole job's segmentation."""

    rank: int
    step: int
    layers: int
    confidence: float
    evidence: dict[str, str]
    rows: tuple[OutlineRow, ...]


def outline(job: Source, *, graph: Graph | None = None) -> Outline:
    """The middle step of the first rank, cut into layers, phases and microbatches. graph: the job's graph, to save building it again.
    Raises GraphError where the job has none."""
    read = as_job(job)
    return outline_of(segment(build(read) if graph is None else graph, read))


def outline_of(segmentation: Segmentation) -> Outline:
    """The outline of a job that has been segmented."""
    graph = segmentation.graph
    on_device = graph.on_device
    size = len(segmentation.pieces)
    tasks = np.bincount(segmentation.piece, minlength=size)
    device = np.bincount(segmentation.piece, np.where(on_device, graph.duration, 0), minlength=size)
    cpu = np.bincount(segmentation.piece, np.where(on_device, 0, graph.duration), minlength=size)
    of_rank = [i for i, p in enumerate(segmentation.pieces) if p.rank == 0]
    steps = sorted({segmentation.pieces[i].step for i in of_rank if segmentation.pieces[i].step >= 0})
    step = steps[len(steps) // 2] if steps else -1
    chosen = [i for i in of_rank if segmentation.pieces[i].step == step] or of_rank
    groups: list[list[int]] = []
    for i in chosen:
        if groups and _kind(segmentation, groups[-1][0]) == _kind(segmentation, i):
            groups[-1].append(i)
        else:
            groups.append([i])
    rows = []
    for group in groups:
        label, n = segmentation.pieces[group[0]].label, len(group)
        means = (round(float(column[group].sum()) / n) for column in (tasks, cpu, device))
        rows.append(OutlineRow(label.phase.word, label.microbatch, "layer" if label.layer >= 0 else label.part, n, *means))
    return Outline(graph.ranks[0], step, segmentation.layers, segmentation.confidence, segmentation.evidence, tuple(rows))


def _kind(segmentation: Segmentation, piece: int) -> tuple[int, int, str]:
    label = segmentation.pieces[piece].label
    return label.phase, label.microbatch, "layer" if label.layer >= 0 else label.part
