"""The outline of a segmented step: embedding, 48 × layer, head, …, with what each takes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lumos.segment.segment import Segmentation


class OutlineRow(NamedTuple):
    """Consecutive pieces of one kind. repeats: how many; tasks, cpu_ns, device_ns: of one of them, on average."""

    phase: str
    microbatch: int
    block: str
    repeats: int
    tasks: int
    cpu_ns: int
    device_ns: int


class Outline(NamedTuple):
    """One step of one rank. layers, confidence and evidence: of the whole job's segmentation."""

    rank: int
    step: int
    layers: int
    confidence: float
    evidence: dict[str, str]
    rows: tuple[OutlineRow, ...]


def outline(found: Segmentation, rank: int = 0) -> Outline:
    """The outline of the middle step of the rank at position `rank`."""
    graph = found.graph
    on_device = graph.on_device
    size = len(found.pieces)
    tasks = np.bincount(found.piece, minlength=size)
    device = np.bincount(found.piece, np.where(on_device, graph.duration, 0), minlength=size)
    cpu = np.bincount(found.piece, np.where(on_device, 0, graph.duration), minlength=size)
    mine = [i for i, p in enumerate(found.pieces) if p.rank == rank]
    steps = sorted({found.pieces[i].step for i in mine if found.pieces[i].step >= 0})
    step = steps[len(steps) // 2] if steps else -1
    chosen = [i for i in mine if found.pieces[i].step == step] or mine
    groups: list[list[int]] = []
    for i in chosen:
        if groups and _kind(found, groups[-1][0]) == _kind(found, i):
            groups[-1].append(i)
        else:
            groups.append([i])
    rows = []
    for group in groups:
        label, n = found.pieces[group[0]].label, len(group)
        means = (round(float(column[group].sum()) / n) for column in (tasks, cpu, device))
        rows.append(OutlineRow(label.phase.word, label.microbatch, "layer" if label.layer >= 0 else label.part, n, *means))
    return Outline(graph.ranks[rank], step, found.layers, found.confidence, found.evidence, tuple(rows))


def _kind(found: Segmentation, piece: int) -> tuple[int, int, str]:
    label = found.pieces[piece].label
    return label.phase, label.microbatch, "layer" if label.layer >= 0 else label.part
