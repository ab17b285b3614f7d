"""Measure how similar a synthetic set is to another one, and which of its names and how much of its structure it has."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.chakra.build import in_program_order
from lumos.chakra.synthesis.sample import SIZE_SHIFT
from lumos.trace.chakra.schema import NodeType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.chakra.workload import Workload
    from lumos.trace.table import Int64


#: How many consecutive nodes count as a piece of structure: more than a launch and its kernel, less than a layer.
STRUCTURE = 16


@dataclass(frozen=True, slots=True)
class Likeness:
    """How a sample compares with its source.

    names: how many names of the source recur in the sample. structure: the share of the sample's runs of STRUCTURE nodes (type, CPU or
    device, distances of dependencies) that the source has too; 1 where the whole structure is the source's. ks: the largest distance of
    the cumulative distributions of durations (whole microseconds) by class of node, of sizes of communication (to within SIZE_SHIFT) and
    of dependencies per node.
    """

    names: int
    structure: float
    ks: dict[str, float]


def likeness(source: Workload, sample: Workload) -> Likeness:
    """Compare a sample with its source."""
    source, sample = in_program_order(source), in_program_order(sample)
    known, drawn = structure_runs(source), structure_runs(sample)
    names = {name for name in _used(source) if name} & _used(sample)
    return Likeness(len(names), len(drawn & known) / max(len(drawn), 1), distances(source, sample))


def structure_runs(workload: Workload) -> set[tuple[object, ...]]:
    """The distinct runs of STRUCTURE nodes of every rank, each node as its type, its place and how far back its dependencies are."""
    bounds, deps = workload.dep_offset.tolist(), workload.dep.tolist()
    places = zip(workload.type.tolist(), workload.on_cpu.tolist(), strict=True)
    nodes = [(*where, *(i - d for d in deps[bounds[i] : bounds[i + 1]])) for i, where in enumerate(places)]
    out: set[tuple[object, ...]] = set()
    for low, high in pairwise(workload.rank_offset.tolist()):
        out.update(tuple(nodes[i : i + STRUCTURE]) for i in range(low, high - STRUCTURE + 1))
    return out


def _used(workload: Workload) -> set[str]:
    return {workload.names[i] for i in np.unique(workload.name)}


def _us(duration: Int64) -> Int64:
    rounded: Int64 = (duration + 500) // 1000
    return rounded


def distances(source: Workload, sample: Workload, tolerance: float = 0.0) -> dict[str, float]:
    """The distances of the distributions of two workloads, as `Likeness.ks`; neither need be the source of the other.

    tolerance: durations that differ by this share at most count as equal. Where an operator always takes the same time, as in a predicted
    set, the distance without it is the share of all operators whose times are not hit exactly.
    """
    out = {}
    for (name, mask), other in zip(_classes(source).items(), _classes(sample).values(), strict=True):
        if mask.any() and other.any():
            out[name] = kolmogorov_smirnov(_us(source.duration[mask]), _us(sample.duration[other]), tolerance)
    if len(source.communication) and len(sample.communication):
        out["size"] = kolmogorov_smirnov(source.communication.size, sample.communication.size, SIZE_SHIFT)
    out["dependencies"] = kolmogorov_smirnov(np.diff(source.dep_offset), np.diff(sample.dep_offset))
    return out


def _classes(workload: Workload) -> dict[str, NDArray[np.bool_]]:
    """The nodes of each class."""
    compute = workload.type == NodeType.COMP
    return {"host": compute & workload.on_cpu, "compute": compute & ~workload.on_cpu, "communication": ~compute}


def kolmogorov_smirnov(a: Int64, b: Int64, tolerance: float = 0.0) -> float:
    """The largest distance between the cumulative distributions of two samples.

    tolerance: values of `b` that differ from those of `a` by this share of them at most count as equal (as in Lévy's distance).
    """
    one, two = np.sort(a), np.sort(b)
    above, under = 1 + tolerance * (1 + 1e-9), 1 - tolerance * (1 + 1e-9)  # a value that differs by the tolerance itself is within it

    def below(values: Int64, at: NDArray[Any]) -> Any:
        return np.searchsorted(values, at, side="right") / len(values)

    excess = (below(one, one) - below(two, one * above), below(two, two) - below(one, two / under))
    return float(max(each.max() for each in excess).clip(0.0))
