"""Recomputation in a measured layout: the forward passes of layers that run again before their backward passes.

PyTorch's checkpoints (`torch.utils.checkpoint`, not reentrant) end a repeated pass when everything is there again that autograd has kept of
the first one. A multiplication keeps what it multiplies, so where only additions and exchanges follow the last one of a layer, neither it
nor these run again. Frameworks of their own (Megatron-LM), and reentrant checkpoints, repeat all of it: the interval reaches to that.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from lumos.changes.settings import SETTINGS, Way
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.graph.table import Kind
from lumos.operators.shaped import convolution_work, product
from lumos.operators.table import OperatorKind, kind_of, own_name
from lumos.segment.rank import recordings_of
from lumos.vocabulary import Phase, Recompute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lumos.changes.layout.measured_layout import Instance, MeasuredLayout
    from lumos.segment.rank import RankRecording
    from lumos.segment.segment import Label
    from lumos.trace.table import Job

#: Of what these do autograd keeps no tensor.
_KEEPING_NOTHING = (OperatorKind.VIEW, OperatorKind.COPY, OperatorKind.EXCHANGE)
_ADDITIONS = ("add", "sub")
#: What is said where a checkpoint would end before the layer does.
_ENDS_EARLY = Diagnostic(
    "recompute-assumed",
    "recompute = full: assumed are checkpoints of PyTorch that are not reentrant, which run a layer again up to its last multiplication;"
    " reentrant ones, and those of Megatron-LM, run all of it again, and the interval reaches to that",
)


def recompute(layout: MeasuredLayout, job: Job, wanted: str, once: frozenset[int] = frozenset()) -> MeasuredLayout:
    """The layout with or without recomputation. once: tasks of the forward passes that are not repeated (`sharding.gathers_once`).

    "full": every layer's forward pass runs again before its backward pass, on the thread of the backward pass. "none": a measured
    recomputation is left out. Raises LumosError where the trace has no backward pass or no layers, or where no layer has its forward
    and its backward pass in one step.
    """
    SETTINGS["recompute"].check_for(Way.BLOCKS, wanted)
    segmentation = layout.segmentation
    if not segmentation.layers or not any(p.label.phase == Phase.BACKWARD for p in segmentation.pieces):
        raise LumosError("--set recompute: needs layers and a backward pass in the trace (see lumos inspect --blocks)")
    recomputes = any(layout.pieces[i.piece].label.phase == Phase.RECOMPUTE or i.thread_of >= 0 for items in layout.ranks for i in items)
    if recomputes is (wanted == Recompute.FULL):
        return replace(layout, changes=(*layout.changes, f"recompute = {wanted} (as measured)"))
    if wanted == Recompute.NONE:
        ranks = tuple(
            tuple(i for i in items if layout.pieces[i.piece].label.phase != Phase.RECOMPUTE and i.thread_of < 0) for items in layout.ranks
        )
        return replace(layout, ranks=ranks, changes=(*layout.changes, "recompute = none"))
    ranks = tuple(_recomputed(layout, items) for items in layout.ranks)
    if ranks == layout.ranks:
        raise LumosError("--set recompute: no layer's backward pass has its forward pass in the same step (lumos inspect --blocks)")
    spared = frozenset(task for rank in recordings_of(segmentation, job) for task in _spared(rank)) - once
    notes = (_ENDS_EARLY,) if spared else ()
    return replace(
        layout,
        ranks=ranks,
        once=once,
        spared=spared,
        open=layout.open | spared,
        changes=(*layout.changes, "recompute = full"),
        diagnostics=(*layout.diagnostics, *notes),
    )


def _recomputed(layout: MeasuredLayout, items: tuple[Instance, ...]) -> tuple[Instance, ...]:
    """The instances with the forward pieces of every layer inserted again before its backward pieces."""
    forward: dict[tuple[int, int, int], list[Instance]] = {}
    for item in items:
        piece = layout.pieces[item.piece]
        if piece.label.phase == Phase.FORWARD and piece.label.layer >= 0:
            known = forward.setdefault((piece.step, piece.label.microbatch, piece.label.layer), [])
            if item.piece not in {i.piece for i in known}:
                known.append(item)
    out: list[Instance] = []
    previous: tuple[Label, int] | None = None
    for item in items:
        piece = layout.pieces[item.piece]
        label = piece.label
        if label.phase == Phase.BACKWARD and label.layer >= 0:
            key = (piece.step, label.microbatch, label.layer)
            if previous is None or previous[0] != label or previous[1] == item.piece:
                out += [replace(i, thread_of=item.piece, inner=True) for i in forward.get(key, ())]
        previous = (label, item.piece)
        out.append(item)
    return tuple(out)


def _spared(rank: RankRecording) -> Iterator[int]:
    """The tasks of a rank's forward passes that a checkpoint of PyTorch would not repeat: of every layer the last multiplication and what
    follows it, where autograd keeps nothing of that."""
    segmentation, shapes, trace, mine = rank.segmentation, rank.shapes, rank.trace, rank.tasks
    graph, labels = segmentation.graph, rank.labels
    rows, unit = rank.units.row, segmentation.unit[mine]
    works = set(unit[graph.kind[mine] == (Kind.KERNEL if graph.on_device.any() else Kind.OPERATOR)].tolist())
    ends = np.zeros(len(rows), bool)
    for label, group in groupby(range(len(rows)), key=labels.__getitem__):
        of_layer = list(group) if label.phase == Phase.FORWARD and label.layer >= 0 else []
        for i in reversed(of_layer):
            o, name = shapes[int(rows[i])], trace.strings[trace.name[rows[i]]]
            if o is not None and (product(o) is not None or convolution_work(o)):
                ends[i : of_layer[-1] + 1] = True
                break
            if i in works and kind_of(name) not in _KEEPING_NOTHING and own_name(name) not in _ADDITIONS:
                break
    yield from mine[ends[unit]].tolist()
