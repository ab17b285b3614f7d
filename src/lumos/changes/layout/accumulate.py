"""The accumulation of gradients over microbatches: what a backward pass adds to the gradients of those before it.

Autograd adds each gradient with one operator, which reads two tensors of its size and writes one. The gradients are those that it
gathers in the recording, with their sizes and types (`segment.rank`). On a device each addition is a kernel, whose time is that of the
memory it moves, and an operator on the CPU, which takes what an operator with one kernel usually takes there. On a CPU the addition reads
and writes at the rate of the operators that work in place on large tensors (mostly the optimizer's).
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from lumos.changes.layout.measured_layout import Extra
from lumos.changes.layout.placed import Launching
from lumos.cost.memory_bound_model import moved
from lumos.graph.places import innermost
from lumos.graph.table import Kind
from lumos.operators.calls import GATHERS
from lumos.operators.shaped import elements
from lumos.operators.table import own_name
from lumos.segment.program import shapes_of
from lumos.segment.rank import Gradient, recordings_of
from lumos.trace.table import Category, unique
from lumos.vocabulary import Phase

if TYPE_CHECKING:
    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.cost.cluster import Accelerator
    from lumos.operators.shaped import ShapedOperator
    from lumos.segment.rank import RankRecording
    from lumos.trace.table import Job, Trace

#: Bytes of a value of a gradient where the trace does not show its type.
GRADIENT_BYTES = 4
#: A gradient is read twice and written once when another is added to it.
PASSES = 3
#: An in-place operator on at least this many elements shows the rate of a CPU's memory.
LARGE = 16_384


def accumulation(
    rank: RankRecording, accelerator: Accelerator | None, passes: int = PASSES, after: RankRecording | None = None
) -> dict[int, Extra]:
    """What adding the gradients of one microbatch to those of the earlier ones takes, by layer (-1: outside the layers). passes: how often
    each is read or written; a copy does so twice. after: the rank with the shapes that the changed job has; None for the recorded ones."""
    total: dict[int, Extra] = defaultdict(Extra)
    operator = max(operator_ns(rank) - _stored_ns(rank), 0.0) if accelerator is not None else 0.0
    rate = _access_rate(rank.trace) if accelerator is None else 0.0
    for gradient in _gathered(after or rank):
        n = elements(gradient.shape)
        if accelerator is None:
            total[gradient.layer] += Extra(cpu=round(rate * n * passes))
        else:
            time = int(moved(passes * gradient.width * n, accelerator, "pointwise").time)
            total[gradient.layer] += Extra(round(operator), time)
    return dict(total)


def shows_gradients(layout: MeasuredLayout, job: Job) -> bool:
    """Whether the traces show any gradients, or weights, whose accumulation takes time."""
    return any(map(_gathered, recordings_of(layout.segmentation, job)))


def accumulation_ns(layout: MeasuredLayout) -> int:
    """What the accumulations of a step take in all, on CPU and device one after the other, beyond those that were recorded in
    proportion: the most over ranks and steps, ns. Where a microbatch that adds its gradients is repeated, that is how much longer it takes
    than the recorded ones in the mean."""
    duration = layout.prices.ns
    cost = np.bincount(layout.segmentation.piece, duration, minlength=len(layout.pieces))
    passes = [p.label.phase in (Phase.FORWARD, Phase.BACKWARD) for p in layout.pieces]
    total: dict[tuple[int, int], float] = defaultdict(float)
    runs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank, items in enumerate(layout.ranks):
        for item in items:
            step = rank, layout.pieces[item.piece].step
            total[step] += sum(item.extra)
            if passes[item.piece] and item.thread_of < 0:
                runs[step].append(item.piece)
    for step, pieces in runs.items():
        recorded = sorted(set(pieces))
        total[step] += max(0.0, cost[pieces].sum() - len(pieces) / len(recorded) * cost[recorded].sum())
    return round(max(total.values(), default=0.0))


def _gathered(rank: RankRecording) -> tuple[Gradient, ...]:
    """The gradients of a rank; those of a layer as one where the trace does not show them one by one."""
    return rank.gradients or tuple(Gradient(layer, (n,), GRADIENT_BYTES, -1) for layer, n in rank.weights().items())


#: What calling a collective takes the CPU of a job that calls none, in times of an operator that launches one kernel: 7, 8 and 13 in the
#: three public traces of data-parallel training, as medians.
EXCHANGE_CALLS = 8
#: The operators and ranges that call a collective.
_CALLING = re.compile("c10d::|record_param_comms|nccl:")


def launching(rank: RankRecording) -> Launching:
    """What launching work takes the CPU of a rank: calling an exchange as the recorded exchanges do, as the median."""
    own, trace, owners = operator_ns(rank), rank.trace, rank.segmentation.owners
    graph, tasks = owners.graph, rank.tasks
    tasks = tasks[~graph.on_device[tasks] & (graph.event[tasks] >= 0)]
    calling = np.flatnonzero(trace.named(_CALLING.match) & trace.is_any(Category.OPERATOR, Category.ANNOTATION))
    inside = innermost(trace, calling, graph.event[tasks].astype(np.int64))
    launches = np.isin(tasks, owners.launch[np.flatnonzero(graph.kind == Kind.COLLECTIVE)]) & (inside >= 0)
    if not launches.any():
        return Launching(own, EXCHANGE_CALLS * own)
    took = np.bincount(inside[inside >= 0], graph.duration[tasks[inside >= 0]])
    return Launching(own, float(np.median(took[unique(inside[launches])])))


def operator_ns(rank: RankRecording) -> float:
    """What an operator with one kernel takes on the CPU, with its launch call: the median, ns; 0 where the trace has none."""
    owners, work = rank.segmentation.owners, rank.work
    graph, tasks = owners.graph, rank.tasks
    unique, first, count = np.unique(work.rows, return_index=True, return_counts=True)
    single = first[count == 1]
    if not len(single):
        return 0.0
    own = tasks[graph.kind[tasks] == Kind.OPERATOR]
    of_row = np.bincount(graph.event[own], graph.duration[own], minlength=len(rank.trace))
    return float(np.median(of_row[unique[count == 1]] + graph.duration[owners.launch[work.tasks[single]]]))


def _stored_ns(rank: RankRecording) -> float:
    """What the CPU of a rank takes to keep a gradient that is the first of its weight, which an addition does not: it is detached, in the
    row that gathers it. The mean, ns; 0 where the trace does not show it."""
    graph, trace, tasks = rank.segmentation.graph, rank.trace, rank.tasks
    tasks = tasks[graph.named(lambda name: own_name(name) == "detach")[tasks] & (graph.event[tasks] >= 0)]
    gathering = innermost(trace, np.flatnonzero(trace.named(lambda name: name == GATHERS)), graph.event[tasks].astype(np.int64))
    return float(graph.duration[tasks[gathering >= 0]].sum()) / max(len(unique(gathering[gathering >= 0])), 1)


def _access_rate(trace: Trace) -> float:
    """ns for which a CPU reads or writes an element of a large tensor, in place (mostly in the optimizer); 0 where the trace has none.

    The sum of the times over that of the elements, as the step is a sum: where other programs held some of the calls up, they will hold
    up as large a share of those that are added.
    """
    shapes = shapes_of(trace)
    works = [_in_place(o) for o in shapes.operators] or [(0, 0)]
    size, accessed = np.array(works, np.int64).T
    rows = shapes.rows
    of_row = shapes.of_row[rows]
    large = size[of_row] >= LARGE
    return float(trace.duration[rows[large]].sum() / accessed[of_row[large]].sum()) if large.any() else 0.0


def _in_place(o: ShapedOperator) -> tuple[int, int]:
    """Elements on which an in-place operator works, and elements that it reads or writes to do so; 0 for other operators."""
    works = o.name.endswith("_") and o.name != "aten::copy_" and any(o.shapes)
    size = elements(o.shapes[0]) if works else 0
    return size, size * (1 + o.shapes.count(o.shapes[0])) if works else 0
