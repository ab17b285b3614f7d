"""The division of gradients by the number of microbatches, with which a pipeline's schedule ends its passes.

PyTorch's schedules (torch.distributed.pipelining, `scale_grads`) divide every gradient on the device after the last backward pass. A loop
over microbatches without a schedule divides the loss instead, which is one number. Which of the two a script of one stage does, the
recording of a pipeline does not show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.changes.layout.prices import Ratio, TaskPrices
from lumos.changes.layout.rescale import operator_rows
from lumos.segment.dimensions import shapes_of
from lumos.segment.weights import gradients
from lumos.vocabulary import Phase

if TYPE_CHECKING:

    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.trace.table import Int64, Job, Trace

#: The operators that divide a tensor, or a list of them, in place.
_DIVIDES = ("aten::div_", "aten::_foreach_div_")


def divisions(layout: MeasuredLayout, job: Job) -> Int64:
    """The kernels that divide gradients behind the passes of a step, on all ranks, as tasks; none where the trace has no shapes."""
    found = [_of_rank(layout, position, trace) for position, trace in enumerate(job.traces)]
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _of_rank(layout: MeasuredLayout, position: int, trace: Trace) -> Int64:
    segmentation, shapes = layout.segmentation, shapes_of(trace)
    known = {gradient.shape for gradient in gradients(segmentation, position, trace)}
    divides = np.array([o.name in _DIVIDES and bool(o.shapes) and o.shapes[0] in known for o in shapes.operators] or [False], bool)
    behind = np.array([piece.label.phase == Phase.OPTIMIZER for piece in segmentation.pieces], bool)
    tasks, rows = operator_rows(segmentation, position, trace)
    number = shapes.of_row[rows]
    out: Int64 = tasks[(number >= 0) & divides[number] & behind[segmentation.piece[tasks]]]
    return out


def without_divisions(prices: TaskPrices, tasks: Int64) -> TaskPrices:
    """The prices of all tasks with the divisions left out, and at the high end kept."""
    out = prices.copy()
    out.multiply(tasks, Ratio(0.0, 0.0, 1.0))
    return out
