"""What a changed job exchanges and accumulates: collectives of other groups, gradients added up.

A measured collective of known peers lasts its transfer; under another group it lasts transfer · model(new) / model(old),
so that the fabric's own efficiency carries over. Where peers were not recorded, waiting and transfer are one: the change
of the modelled transfer is added. Collectives of a single process move nothing: the whole transfer is the model's, over
the link that the user states.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lumos.analyze.steps import members
from lumos.cost.cluster import Accelerator, Cluster
from lumos.cost.collective import collective
from lumos.cost.memory_bound import moved
from lumos.cost.operators import elements
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError, UsageError
from lumos.graph.table import Collectives, Kind
from lumos.segment.dimensions import Operator, Resize, Shapes, sizes
from lumos.segment.weights import weights
from lumos.trace.table import ABSENT, Int32, Int64, Job, Trace
from lumos.vocabulary import CollectiveKind, Phase
from lumos.whatif.measured_layout import MeasuredLayout

#: Bytes of one accumulated gradient: gradients have the dtype of their weights, fp32 or 16 bit; fp32 is assumed.
GRADIENT_BYTES = 4
#: A gradient is read twice and written once when another is added to it.
PASSES = 3
#: Elements from which an in-place operator shows the rate of a CPU's memory.
LARGE = 16_384


def accumulation_ns(layout: MeasuredLayout, position: int, trace: Trace, accelerator: Accelerator | None) -> dict[int, int]:
    """Time of adding one microbatch's gradients to those there, by layer (-1: outside the layers), ns."""
    held = weights(layout.segmentation, position, trace, Resize(sizes(trace), sizes(trace)))
    if accelerator is not None:
        return {layer: int(moved(PASSES * GRADIENT_BYTES * n, accelerator, "pointwise").time) for layer, n in held.items()}
    per_element = _add_rate(trace)
    return {layer: round(per_element * n) for layer, n in held.items()}


def _add_rate(trace: Trace) -> float:
    """ns per element of a CPU's in-place operators on two large tensors: the optimizer's own."""
    shapes = Shapes(trace)
    size = np.array([_in_place(o) for o in shapes.operators] or [0], np.int64)
    rows = shapes.rows()
    elements_of = size[shapes.of_row[rows]]
    large = elements_of >= LARGE
    return float(np.median(trace.duration[rows[large]] / elements_of[large])) if large.any() else 0.0


def _in_place(o: Operator) -> int:
    """Elements that an in-place operator works on; 0 for others."""
    works = o.name.endswith("_") and o.name != "aten::copy_" and any(o.shapes)
    return elements(o.shapes[0]) if works else 0


def replicas(layout: MeasuredLayout, job: Job, count: int, cluster: Cluster | None) -> MeasuredLayout:
    """`count` data-parallel replicas instead of those measured; the new ones do as the measured ones.

    Collectives of the whole job are taken as the data-parallel ones. A job of one process shows when gradients are
    exchanged and how many bytes, but not what that costs: `cluster` says what links the processes, None that nobody
    said. LumosError then, and where the trace does not show which collectives exchange gradients.
    """
    graph = layout.segmentation.graph
    if count < 1:
        raise UsageError(f"--set dp={count}: must be at least 1")
    worlds = {t.world_size for t in job.traces if t.world_size}
    world = worlds.pop() if len(worlds) == 1 else len(job.traces)
    facts = graph.collectives
    if facts is None or not len(facts.task):
        raise LumosError(
            "--set dp: the trace has no collectives, so it does not show when gradients are exchanged; record under DistributedDataParallel"
        )
    chosen = _exchanges(layout, facts, world)
    if not len(chosen):
        raise LumosError(f"--set dp: no collective of all {world} ranks with a known size in the trace")
    if count == world:
        return replace(layout, changes=(*layout.changes, f"dp = {count} (as measured)"))
    if cluster is None:
        raise LumosError(
            "--set dp: the trace is of one process, whose collectives move nothing, so it cannot tell what an exchange costs;"
            " say what links the processes with --base-cluster FILE.toml, a cluster file with the node's link_bytes_per_s and"
            " link_latency_s (docs/whatif.md), or record two processes"
        )
    columns = layout.factor.copy(), layout.low.copy(), layout.high.copy()
    notes: dict[str, Diagnostic] = {}
    modelled = set(layout.modelled)
    unknown = np.zeros(len(graph), bool)
    unknown[graph.waiting_unknown] = True
    for i in chosen.tolist():
        task, kind, nbytes = int(facts.task[i]), facts.kinds[facts.kind[i]], int(facts.nbytes[i])
        whole = kind.buffer_bytes(nbytes, world)  # what is exchanged stays; of a gathered whole the ranks then hold other parts
        after = collective(kind, count, whole, cluster)
        for d in after.diagnostics:
            notes[d.code] = d
        duration = max(int(graph.duration[task]), 1)
        times = int(after.time), int(after.low), int(after.high)
        before = int(collective(kind, world, whole, cluster).time) if world > 1 else 0
        if before and not unknown[task]:
            ratios = [t / before for t in times]
        else:  # what the transfer does not explain is waiting, and stays
            modelled.add(task)
            ratios = [max(duration - before + t, t) / duration for t in times]
            if world > 1:
                text = "collectives without their peers: what the model of their transfer does not explain is kept as waiting"
                notes["waiting-kept"] = Diagnostic("waiting-kept", text)
        for column, ratio in zip(columns, ratios, strict=True):
            column[task] *= ratio
    change = f"dp = {count} (measured: {world})"
    return replace(
        layout,
        factor=columns[0],
        low=columns[1],
        high=columns[2],
        modelled=frozenset(modelled),
        awaited=(*layout.awaited, *_waits(layout, facts.task[chosen])),
        changes=(*layout.changes, change),
        diagnostics=(*layout.diagnostics, *notes.values()),
    )


def _exchanges(layout: MeasuredLayout, facts: Collectives, world: int) -> Int64:
    """Indices of the collectives over all ranks in a step's passes, of known kind and bytes."""
    found = layout.segmentation
    phase = np.array([p.label.phase for p in found.pieces], np.uint8)[found.piece]
    size = facts.size if facts.size is not None else np.full(len(facts.task), ABSENT, np.int32)
    size = np.where(size == ABSENT, world, size)
    known = np.array([kind is not CollectiveKind.UNKNOWN for kind in facts.kinds], bool)[facts.kind]
    exchanging = np.isin(phase[facts.task], (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER))
    return np.flatnonzero((size == world) & known & exchanging & (facts.nbytes > 0))


def _waits(layout: MeasuredLayout, tasks: Int32) -> tuple[tuple[int, int], ...]:
    """(collective, task that must not begin before it ends) for exchanges that a CPU thread carries out beside the
    backward pass (gloo), where they were too quick when measured to show it: the next exchange of the rank, since they
    share one link, and the first task of the update that began after the exchange ended, since that awaits it.
    """
    found, graph = layout.segmentation, layout.segmentation.graph
    owners = members(graph)
    start, end = graph.measured_start, graph.measured_end
    if start is None or end is None:
        return ()
    phase = np.array([p.label.phase for p in found.pieces], np.uint8)[found.piece]
    rank = np.array([graph.ranks.index(p.rank) for p in graph.processors], np.int64)[graph.processor]
    host = tasks[~owners.on_device[tasks] & (phase[tasks] == Phase.BACKWARD)]
    updating = np.flatnonzero((phase == Phase.OPTIMIZER) & ~owners.on_device & (graph.kind != Kind.COLLECTIVE))
    updating = updating[np.argsort(start[updating], kind="stable")]
    host = host[np.lexsort((start[host], owners.step[host], rank[host]))]
    follows = (np.diff(rank[host]) == 0) & (np.diff(owners.step[host]) == 0)
    out = list(zip(host[:-1][follows].tolist(), host[1:][follows].tolist(), strict=True))
    for task in host.tolist():
        later = updating[np.searchsorted(start[updating], end[task], "left") :]
        same = np.flatnonzero((rank[later] == rank[task]) & (owners.step[later] == owners.step[task]))
        if len(same):
            out.append((task, int(later[same[0]])))
    return tuple(out)
