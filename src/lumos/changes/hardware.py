"""The same job on other hardware or another network: measured × model(new) / model(old), kernel by kernel.

Kernels of operators with shapes, and collectives, are scaled by the ratio of their cost models. Kernels without shapes are scaled
by what bounds their class: multiplications, convolutions and attention by peak arithmetic in the type that their name states, else in the
one in which the job multiplies, the rest by memory bandwidth. A small multiplication is bound by memory, too, which only shapes would show:
its interval reaches from the one ratio to the other. What
the new machine's host does to the CPU's work is for the user to say; unless he does, it is unknown within HOST_INTERVAL.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from lumos.analyze.flops import counted_operators
from lumos.analyze.task_class import bound_by_arithmetic
from lumos.changes.durations import number
from lumos.changes.layout.operator_tasks import operator_tasks
from lumos.changes.layout.precision import at_lower_rate, computing
from lumos.changes.layout.prices import Ratio, TaskPrices, around, exactly
from lumos.changes.layout.regroup import recorded_exchange, regrouping
from lumos.changes.layout.rescale import model_ratio
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError, UsageError
from lumos.graph.table import Kind
from lumos.operators.kernel_formats import in_tf32, rounds_to_tf32, type_by_name
from lumos.trace.table import ABSENT, Int64, Job, Trace
from lumos.vocabulary import CollectiveKind, DType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.cost.cluster import Accelerator, Cluster
    from lumos.graph.table import Graph
    from lumos.operators.shaped import ShapedOperator
    from lumos.simulation.durations import Mask

    Floats = float | np.ndarray

#: Half-width of the 80 % interval of a kernel that is scaled only by the ratio of two datasheets, as a fraction.
DATASHEET_INTERVAL = 0.3
#: Half-width of the 80 % interval of the CPU's work on another machine whose host nobody described, as a fraction: an assumption, about
#: the spread between the hosts of one generation.
HOST_INTERVAL = 0.15
#: What is said where that interval is used.
HOST_UNKNOWN = Diagnostic(
    "host-unknown",
    f"how fast the host of the new cluster is was not said: its CPU's work is taken as measured, ±{HOST_INTERVAL:.0%}, and the interval"
    " is as wide as that makes it; --host-factor F says how much longer (above 1) or shorter it takes",
)


def network(cluster: Cluster, words: Iterable[str]) -> Cluster:
    """The cluster with its links and NICs changed. words: bandwidth=x2, latency=x0.5 (comma-separated or repeated).

    Raises UsageError for a malformed word, LumosError where the cluster states no latency that could change.
    """
    factors: dict[str, float] = {}
    for word in (w for text in words for w in text.split(",")):
        key, equals, value = word.partition("=")
        if not equals or key.strip() not in ("bandwidth", "latency"):
            raise UsageError(f"--network {word!r}: write bandwidth=x2 or latency=x0.5")
        factor = number(value, f"--network {word!r}")
        if factors.setdefault(key.strip(), factor) != factor:
            raise UsageError(f"--network {key.strip()}: given twice, as x{factors[key.strip()]:g} and as x{factor:g}; give it once")
    bandwidth, latency = factors.get("bandwidth", 1.0), factors.get("latency", 1.0)
    if not bandwidth:
        raise UsageError("--network bandwidth: a factor must be more than 0")
    node, fabric = cluster.node, cluster.fabric
    if latency != 1 and node.link_latency_s is None and fabric.latency_s is None:
        raise LumosError(
            f"--network latency: the description of {cluster.name} states no latency to change; give a cluster file with"
            " node.link_latency_s or fabric.latency_s (--base-cluster FILE.toml)"
        )
    return msgspec.structs.replace(
        cluster,
        node=msgspec.structs.replace(
            node,
            link_bytes_per_s=_times(node.link_bytes_per_s, bandwidth),
            nic_bytes_per_s=_times(node.nic_bytes_per_s, bandwidth),
            link_latency_s=_times(node.link_latency_s, latency),
        ),
        fabric=msgspec.structs.replace(fabric, latency_s=_times(fabric.latency_s, latency)),
    )


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def on_cluster(layout: MeasuredLayout, job: Job, old: Cluster, new: Cluster, described: str) -> MeasuredLayout:
    """The layout with its device work on `new` instead of `old`. described: the change, for the answer."""
    prices = layout.prices.copy()
    if new.accelerator != old.accelerator:
        _kernels(layout, job, old.accelerator, new.accelerator, prices)
    notes = _collectives(layout, job, old, new, prices)
    return replace(
        layout,
        prices=prices,
        changes=(*layout.changes, described),
        diagnostics=(*layout.diagnostics, *notes),
    )


def check_links_matter(before: MeasuredLayout, after: MeasuredLayout) -> None:
    """Raise LumosError where other links gave no exchange another time. before, after: the layout without them and with them."""
    if not np.array_equal(before.prices.best, after.prices.best):
        return
    facts = before.segmentation.graph.collectives
    what = (
        "the recording has no exchange between ranks"
        if facts is None or not len(facts.task)
        else "no exchange of the recording takes another time, as none crosses what changes; lumos inspect says what they are"
    )
    raise LumosError(f"{after.changes[-1]}: nothing changes, since {what}")


def on_host(layout: MeasuredLayout, factor: float | None) -> MeasuredLayout:
    """The layout with the CPU's work on another host. factor: how much longer it takes; None where that is not known."""
    work = host_work(layout.segmentation.graph)
    prices = layout.prices.copy()
    prices.multiply(work, exactly(factor) if factor is not None else Ratio(1.0, 1 - HOST_INTERVAL, 1 + HOST_INTERVAL))
    said = () if factor is None else (f"host factor = {factor:g}",)
    notes = (HOST_UNKNOWN,) if factor is None else ()
    return replace(
        layout,
        prices=prices,
        changes=(*layout.changes, *said),
        diagnostics=(*layout.diagnostics, *notes),
    )


def host_work(graph: Graph) -> Mask:
    """The CPU's own work, bool[n]: all that threads do, but for transfers."""
    work: Mask = ~graph.on_device & (graph.kind != Kind.COLLECTIVE)
    return work


def _kernels(layout: MeasuredLayout, job: Job, old: Accelerator, new: Accelerator, prices: TaskPrices) -> None:
    segmentation, graph = layout.segmentation, layout.segmentation.graph
    owners = segmentation.owners
    done = np.zeros(len(graph), bool)
    of_tf32 = graph.named(rounds_to_tf32)
    for position, trace in enumerate(job.traces):
        for o, tasks, _ in operator_tasks(segmentation, position, trace).by_operator():
            for rounded in (False, True):
                same = tasks[of_tf32[tasks] == rounded]
                change = _change(o, old, new, rounded=rounded) if len(same) else None
                if change is not None:
                    prices.multiply(same, change)
                    done[same] = True
    rest = owners.on_device & ~done & (graph.kind != Kind.COLLECTIVE)
    arithmetic = rest & bound_by_arithmetic(graph)
    memory = float(old.require("memory_bytes_per_s")) / float(new.require("memory_bytes_per_s"))
    prices.multiply(rest & ~arithmetic, around(memory, DATASHEET_INTERVAL))
    usual = computing(layout, job)
    for name in np.unique(graph.name[arithmetic]).tolist():
        rates = _by_rate(type_by_name(graph.names[name]) or usual, old, new)
        within = min(*rates, memory) / (1 + DATASHEET_INTERVAL), max(*rates, memory) * (1 + DATASHEET_INTERVAL)
        tasks = arithmetic & (graph.name == name)
        prices.multiply(tasks, Ratio(sqrt(rates[0] * rates[1]), *within))
    for position, trace in enumerate(job.traces):
        work = operator_tasks(segmentation, position, trace)
        multiply = arithmetic[work.tasks]
        _convolutions(layout, trace, work.tasks[multiply], work.rows[multiply], usual, old, prices)


def _convolutions(
    layout: MeasuredLayout,
    trace: Trace,
    tasks: Int64,
    rows: Int64,
    usual: DType | None,
    old: Accelerator,
    prices: TaskPrices,
) -> None:
    """Let the convolutions of a rank keep a part only of what they took beyond their arithmetic, where the rate falls (`at_lower_rate`), in
    place. tasks: kernels that multiply; rows: the operator of each. usual: the type in which the job multiplies."""
    graph, flops = layout.segmentation.graph, counted_operators(trace)
    order = np.argsort(rows, kind="stable")
    for same in np.split(order, np.flatnonzero(np.diff(rows[order])) + 1):
        row = int(rows[same[0]]) if len(same) else -1
        if "conv" not in trace.strings[trace.name[row]] or row not in flops:
            continue
        kernels = tasks[same]
        dtype = type_by_name(graph.names[graph.name[kernels[np.argmax(graph.duration[kernels])]]]) or usual
        if dtype not in old.peak_flops:
            continue
        measured_ns, by = float(graph.duration[kernels].sum()), prices.best[kernels] / layout.prices.best[kernels]
        longer = float((graph.duration[kernels] * by).sum()) / measured_ns if measured_ns else 1.0
        kept = at_lower_rate(Ratio(longer, longer, longer), 1e9 * flops[row][1] / float(old.peak_flops[dtype]), measured_ns)
        prices.multiply(kernels, Ratio(kept.best / longer, 1.0, 1.0))


def _change(o: ShapedOperator, old: Accelerator, new: Accelerator, *, rounded: bool) -> Ratio | None:
    """How much longer an operator takes on the new accelerator; None where no model covers it. rounded: whether its kernel multiplies fp32
    in tf32, which it does where the accelerator can."""
    before, after = (in_tf32(o) if rounded and single(device) is DType.TF32 else o for device in (old, new))
    return model_ratio(before, after, old, new)


def single(accelerator: Accelerator) -> DType:
    """The type in which an accelerator multiplies fp32 where tf32 is allowed: tf32, or fp32 on one that does not have it."""
    return DType.TF32 if DType.TF32 in accelerator.peak_flops else DType.FP32


def _by_rate(dtype: DType | None, old: Accelerator, new: Accelerator) -> tuple[float, float]:
    """How much longer arithmetic in a type takes on the new accelerator, by the peak rates: at least and at most. Where the type is not
    known, or one of the two lacks it, it may be any that both have."""
    if dtype is DType.TF32:
        ratios = [old.peak_flops[single(old)] / new.peak_flops[single(new)]]
    else:
        shared = [d for d in (DType.BF16, DType.FP16, DType.FP32) if d in old.peak_flops and d in new.peak_flops]
        ratios = [old.peak_flops[d] / new.peak_flops[d] for d in ([dtype] if dtype in shared else shared)] or [1.0]
    return min(ratios), max(ratios)


def _collectives(layout: MeasuredLayout, job: Job, old: Cluster, new: Cluster, prices: TaskPrices) -> list[Diagnostic]:
    graph = layout.segmentation.graph
    facts = graph.collectives
    if facts is None:
        return []
    world = max((t.world_size or 0 for t in job.traces), default=0) or len(job.traces)
    left_out, regrouped = 0, regrouping(old, new)
    for i in range(len(facts.task)):
        task, kind, nbytes = int(facts.task[i]), facts.kinds[facts.kind[i]], int(facts.nbytes[i])
        size = world if facts.size is None or facts.size[i] == ABSENT else int(facts.size[i])
        if kind.is_transfer:
            size = 2
        if size == 1:  # the rank is alone in its group, so nothing moves
            continue
        if kind is CollectiveKind.UNKNOWN or nbytes <= 0:
            left_out += 1
            continue
        exchange = recorded_exchange(facts, i, size)
        ratio = regrouped(exchange, exchange)
        if ratio.best != 1:
            prices.multiply(task, ratio)
    if not left_out:
        return []
    text = f"{left_out} collectives of unknown kind, size or group keep their measured time"
    return [Diagnostic("collectives-kept", text)]
