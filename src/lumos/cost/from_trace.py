"""Calibration on a trace: for each class of operator, how much longer its work took than the model says.

The result is a book of coefficients: the sets that the accelerator already has, each with the median of measured / modelled over
the trace's operators of that class, and the spread of that ratio as its interval. A prediction with this book therefore starts
from the efficiency in the trace and models only the change of shapes. The classes are matrix multiplications by dtype, flash
attention, and memory-bound kernels by kind. Collectives are left out, because their durations in the trace of one rank include
waiting; those of a whole job are compared with the model (`modelled_collectives`).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from lumos.cost.attention_model import KERNELS, attention
from lumos.cost.cluster import Accelerator, Cluster, cluster_names, load_cluster
from lumos.cost.coefficients import Book, Coefficients, find
from lumos.cost.collective_model import collective
from lumos.cost.fitting.fit import INTERVAL_SHARE
from lumos.cost.gemm_model import gemm
from lumos.cost.memory_bound_model import moved
from lumos.cost.operators import OperatorTime, operator_times
from lumos.cost.traffic import traffic
from lumos.errors import LumosError, UnknownDeviceError
from lumos.operators.shaped import AttentionSizes, ShapedOperator, attention_of, factors, product
from lumos.operators.table import only_calls
from lumos.vocabulary import AttentionKernel, Direction, DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.analyze.collectives import CollectiveRow
    from lumos.cost.estimate import Estimate, Float64
    from lumos.trace.table import Job, Trace

#: Memories that differ by less than this share are the same: devices report from 1 % less to 8 % more than their makers' round figures.
SAME_MEMORY = 0.1


class ClassRatio(NamedTuple):
    """One class of operator in a trace. ratio: measured / modelled, the median weighted by time. low, high: its 80 % interval."""

    model: str
    variant: str
    operators: int
    shapes: int
    measured_ns: int
    ratio: float
    low: float
    high: float


def accelerator_of(trace: Trace) -> Accelerator:
    """The accelerator that the trace's header names. Raises LumosError where it names none, or one that Lumos does not know."""
    return cluster_of(trace, "--on").accelerator


def cluster_of(trace: Trace, option: str) -> Cluster:
    """The cluster with the device that the trace's header describes, by its name or, where that says nothing, by its memory and SMs.

    Raises UnknownDeviceError where none fits, or several different devices do: the user is to name a cluster with `option`.
    """
    device = next(iter(trace.devices), {})
    name, cores, memory = str(device.get("name") or ""), device.get("numSms"), device.get("totalGlobalMem")
    try:
        named = load_cluster(name) if name and "/" not in name and not name.endswith(".toml") else None
    except LumosError:
        named = None
    if named is not None and _like(named.accelerator, cores, memory):
        return named
    described = [c for c in map(load_cluster, cluster_names()) if c.accelerator.cores and c.accelerator.memory_bytes]
    fitting = [c for c in described if cores and memory and _like(c.accelerator, cores, memory)]
    if fitting and not name and len({c.accelerator.name for c in fitting}) == 1:
        return fitting[0]
    if not device:
        raise UnknownDeviceError(
            f"{trace.path}: the header names no device; which was it? {option} CLUSTER says so (lumos clusters lists them)"
        )
    size = f", {cores} SMs and {memory / 1e9:.0f} GB" if isinstance(cores, int) and isinstance(memory, int) else ""
    like = f" (like {', '.join(dict.fromkeys(c.accelerator.name for c in fitting))}?)" if fitting else ""
    raise UnknownDeviceError(
        f"{trace.path}: the device {repr(name) if name else 'without a name'}{size} is none that Lumos knows{like}; which is it most like?"
        f" {option} CLUSTER says so (lumos clusters lists them), also as a .toml file"
    )


def _like(accelerator: Accelerator, cores: object, memory: object) -> bool:
    """Whether an accelerator has so many SMs and about so much memory (bytes), as far as both are known."""
    alike = not (isinstance(cores, int) and accelerator.cores) or cores == accelerator.cores
    if isinstance(memory, int) and memory > 0 and accelerator.memory_bytes:
        alike &= abs(memory / accelerator.memory_bytes - 1) < SAME_MEMORY
    return alike


def class_ratios(trace: Trace, accelerator: Accelerator) -> tuple[ClassRatio, ...]:
    """Ratio and interval of every class of operator of the trace, most time first.

    Raises LumosError where the trace has no operator with shapes that a model covers.
    """
    calls: dict[tuple[str, str], list[tuple[str, int, float]]] = defaultdict(list)
    for operator in operator_times(trace):
        modelled = _modelled(operator, accelerator)
        if modelled is not None and modelled[2].time > 0 and operator.work_ns > 0:
            calls[modelled[:2]].append((str(operator.shapes), operator.work_ns, operator.work_ns / int(modelled[2].time)))
    if not calls:
        raise LumosError(f"{trace.path}: no operator with shapes that a model covers; record with record_shapes=True")
    return tuple(sorted((_ratio(key, rows) for key, rows in calls.items()), key=lambda r: -r.measured_ns))


def calibrated(ratios: Sequence[ClassRatio], accelerator: Accelerator) -> Book:
    """The accelerator's sets for the classes of a trace, each with the ratio and interval of that."""
    out: dict[str, dict[str, dict[str, Coefficients]]] = {}
    for c in ratios:
        variants = {"attention": (AttentionKernel.FLASH, *KERNELS), "gemm": (c.variant, DType.BF16)}.get(c.model, (c.variant,))
        base, _ = find(c.model, accelerator, variants)
        change: dict[str, Any] = {"ratio": c.ratio * base.ratio, "interval": (c.low / c.ratio, c.high / c.ratio), "rows": c.operators}
        own = msgspec.structs.replace(base, held_out_rows=0, median_error=None, p90_error=None, **change)
        out.setdefault(c.model, {}).setdefault(accelerator.name, {})[c.variant] = own
    return out


def middle_of(ratios: Float64, weights: Float64) -> tuple[float, float, float]:
    """The low end of the 80 % interval of ratios, their median, and the high end, all weighted."""
    order = np.argsort(ratios)
    share = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    tail = (1 - INTERVAL_SHARE) / 2
    low, middle, high = np.interp([tail, 0.5, 1 - tail], share, ratios[order]).tolist()
    return low, middle, high


def _ratio(key: tuple[str, str], calls: list[tuple[str, int, float]]) -> ClassRatio:
    ratios, weights = np.array([c[2] for c in calls]), np.array([float(c[1]) for c in calls])
    low, middle, high = middle_of(ratios, weights)
    return ClassRatio(*key, len(calls), len({c[0] for c in calls}), int(weights.sum()), middle, low, high)


def _modelled(o: OperatorTime, accelerator: Accelerator) -> tuple[str, str, Estimate] | None:
    """Model, variant and estimate of an operator; None where no model covers it or the device lacks its dtype."""
    shaped = ShapedOperator(o.name, o.shapes, o.dtypes)
    if only_calls(o.name):
        return None
    if (sizes := product(shaped)) is not None:
        pair = factors(shaped)
        dtype = _dtype(o.dtypes[pair.first] if pair is not None else "", accelerator)
        m, n, k, batch = sizes
        return None if dtype is None else ("gemm", dtype, gemm(m, n, k, accelerator, dtype, batch=batch, cast=False))
    if (attended := attention_of(o.name, o.shapes)) is not None:
        return _attention(o, attended, accelerator)
    moves = traffic(o)
    return None if moves is None else ("memory_bound", moves[0], moved(moves[1], accelerator, moves[0]))


def _attention(o: OperatorTime, a: AttentionSizes, accelerator: Accelerator) -> tuple[str, str, Estimate] | None:
    direction = Direction.BACKWARD if "backward" in o.name else Direction.FORWARD
    dtype = _dtype(o.dtypes[0], accelerator)
    if dtype is None or "efficient" in o.name:  # its kernels are others than those of the fitted sets
        return None
    batch, heads, kv_heads, queries, keys, width, _ = a
    cost = attention(batch, queries, heads, width, accelerator, dtype, kv_heads=kv_heads, kv_len=keys, causal=o.causal, direction=direction)
    return "attention", AttentionKernel.FLASH, cost


def _dtype(name: str, accelerator: Accelerator) -> str | None:
    dtype = DType.parse(name)
    return dtype.arithmetic if dtype is not None and dtype.arithmetic in accelerator.peak_flops else None


class Modelled(NamedTuple):
    """The modelled transfer of one row, with its 80 % interval."""

    transfer_ns: float
    low_ns: float
    high_ns: float


def modelled_collectives(rows: Sequence[CollectiveRow], job: Job) -> tuple[list[Modelled | None], str]:
    """The modelled transfer of each row, and the name of the cluster that the model used.

    None for a row whose bytes or ranks are unknown, or whose kind has no model. Where the job's accelerator is unknown, all rows
    are None and the reason takes the place of the cluster's name.
    """
    try:
        cluster = load_cluster(accelerator_of(job.traces[0]).name)
    except LumosError as error:
        return [None] * len(rows), f"{error}"
    return [_modelled_row(row, cluster) for row in rows], cluster.name


def _modelled_row(row: CollectiveRow, cluster: Cluster) -> Modelled | None:
    if row.size_bytes is None or row.ranks is None:
        return None
    try:
        transfer = collective(row.kind, row.ranks, row.size_bytes, cluster)
    except LumosError:  # a kind without a model, or ranks or links that the cluster does not describe
        return None
    return Modelled(*(float(ns) for ns in (transfer.time, transfer.low, transfer.high)))
