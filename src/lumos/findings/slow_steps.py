"""Work that takes longer in some steps than in the others: a compilation, a checkpoint, a stall, a device that throttles.

Equal work of a rank is compared over its steps. The worth is what the mean step is shorter by where all of it takes the time that it takes
in the usual step. In a longer run such steps may come more or less often.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.loop.steps import is_operation_level
from lumos.analyze.ranks.equal_work import Like, durations_like
from lumos.analyze.task_class import working
from lumos.findings.finding import FindingCode, where_words
from lumos.graph.table import Kind
from lumos.trace.table import unique
from lumos.units import count, duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumos.findings.case import Case, Priced

#: In so many steps, work that grows from each to the next is a trend.
FEWEST_RISING = 5
#: Parts of the names of ranges and operators in which a compiler works.
_COMPILES = ("dynamo", "inductor", "torch.compile", "compile_fx", "aot_")


def _slowing(case: Case) -> Iterator[Priced]:
    """The finding that the kernels of a step take longer from each step to the next: in n steps one in n! orders does by chance."""
    owners, graph = case.owners, case.graph
    computes = working(owners)[0] & owners.on_device
    kernels = [tasks[computes[tasks]] for tasks in map(owners.of_job, range(len(owners.job)))]
    alike = [i for i, of_step in enumerate(kernels) if len(of_step) == len(kernels[case.at])]
    work = [float(graph.duration[kernels[i]].sum()) for i in alike]
    if len(work) < FEWEST_RISING or not all(one < other for one, other in pairwise(work)):
        return
    usual = float(np.mean([graph.duration[kernels[i]].sum() for i in owners.counted]))
    price = case.ask({"scale": {"device:*": round(work[0] / usual, 3)}})
    if price is None:
        return
    first, last = (case.times.job[i].name for i in (alike[0], alike[-1]))
    yield case.finding(
        FindingCode.SLOWING,
        "the devices slow down from step to step",
        case.at_longest(computes & case.counted),
        price,
        evidence=f"the kernels of {last} take {work[-1] / work[0]:.2f} times as long as those of {first}, more in each step than before",
        fix="look for throttling (nvidia-smi -q -d PERFORMANCE), or inputs that grow",
    )


def slow_step_findings(case: Case, told: Sequence[Priced]) -> Iterator[Priced]:
    """The findings that the devices slow down, and that some steps are longer than the others, but for what loading data takes longer.
    told: what is found already, of which the latter must not be another name."""
    if len(case.owners.counted) < 3:
        return
    yield from _slowing(case)
    lengths = [case.times.job[i].length_ns for i in case.owners.counted]
    if not case.matters(sum(lengths) / len(lengths) - min(lengths)):
        return  # no step is so much longer than the shortest that the mean tells
    sides = ("*",) if is_operation_level(case.graph) or not case.has_device else ("cpu:*", "device:*")
    priced = [price for side in sides if (price := case.ask({"scale": {side: "steps"}})) is not None]
    price = max(priced, key=lambda worth: worth.worth_s, default=None)
    if price is None or price.is_told_by(told):
        return
    (side,) = price.words["scale"]
    graph, owners = case.graph, case.owners
    excess = np.where(case.counted, graph.duration - durations_like(graph, case.job, Like.STEPS), 0)
    if not side.startswith("*"):
        excess[graph.on_device != side.startswith("device")] = 0
    at_rendezvous = graph.kind == Kind.COLLECTIVE
    of_step = {i: int(excess[owners.of_job(i)].sum()) for i in owners.counted}
    worst = max(of_step, key=lambda i: of_step[i])
    much = [i for i in of_step if 2 * of_step[i] > of_step[worst]]
    tasks = owners.of_job(worst)
    total = np.bincount(graph.name[tasks], np.maximum(excess[tasks], 0), len(graph.names))
    own = tasks[graph.name[tasks] == int(total.argmax())]
    task = int(own[np.argmax(excess[own])])
    if case.loading[task]:
        return
    step = case.times.job[worst]
    ranks = graph.ranks if at_rendezvous[task] else (graph.ranks[int(owners.rank[task])],)
    where = case.place(task, step, ranks)
    names = {str(graph.names[i]).lower() for i in unique(graph.name[tasks]).tolist()}
    compiled = any(part in name for part in _COMPILES for name in names)
    others = f" and {count(len(much) - 1, 'other step')}" if len(much) > 1 else ""
    yield case.finding(
        FindingCode.SLOW_STEPS,
        f"{step.name}{others} took longer than the usual step, mostly {where_words(where.task)}",
        where,
        price,
        evidence=(
            f"{duration(step.length_ns)}, the median step {duration(case.times.job[case.at].length_ns)};"
            f" this task {duration(int(excess[task]))} more than usual"
        ),
        fix=(
            "it compiles: keep shapes constant, and look at TORCH_LOGS=recompiles"
            if compiled
            else "look for new shapes, a checkpoint, logging, gc or throttling"
        ),
    )
