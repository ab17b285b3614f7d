"""Measure what a synthetic set reveals about its source, and how similar it is.

Four consecutive durations identify a place in a trace, so no such run of the source, in nanoseconds, may recur in the
sample. The membership test asks more: how often a window of the sample is nearer to the source at the same place than to
a permutation of the source, in which each operator's durations are shuffled among its nodes. Chance gives 0.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.chakra.synthesis.model import RUN_LENGTH, symbols_of
from lumos.chakra.synthesis.program_order import in_program_order
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

    names, runs: how many names and runs of durations of the source recur in the sample. membership: the membership test,
    0.5 by chance, None where the structure was changed. baseline: the same test of a second permutation instead of the sample.
    rounded_runs: the share of the sample's runs that the source has too once both are rounded to whole microseconds; some
    recur by chance, because short operators have few values. rounded_baseline: the same share for a permutation of the
    source. structure: the share of the sample's runs of STRUCTURE nodes (type, CPU or device, distances of dependencies) that
    the source has too; 1 where the whole structure is the source's. ks: the largest distance of the cumulative distributions of
    durations (whole microseconds) by class of node, of sizes of communication (to within SIZE_SHIFT) and of dependencies per
    node.
    """

    names: int
    runs: int
    rounded_runs: float
    rounded_baseline: float
    membership: float | None
    baseline: float | None
    structure: float
    ks: dict[str, float]


def likeness(source: Workload, sample: Workload, seed: int = 0) -> Likeness:
    """Compare a sample with its source."""
    source, sample = in_program_order(source), in_program_order(sample)
    rng = np.random.default_rng(seed)
    common_names = {n for n in _used(source) if n} & {n for n in _used(sample) if n}
    membership = baseline = None
    permuted, other = _permuted(source, rng), _permuted(source, rng)
    if np.array_equal(source.rank_offset, sample.rank_offset):
        truth = source.duration
        membership = _nearer(sample.duration, truth, permuted)
        baseline = _nearer(other, truth, permuted)
    source_runs, sample_runs = _runs(source, source.duration), _runs(sample, sample.duration)
    rounded, chance = _runs(source, _us(source.duration)), _runs(source, _us(permuted))
    drawn = _runs(sample, _us(sample.duration))
    return Likeness(
        names=len(common_names),
        runs=len(source_runs & sample_runs),
        rounded_runs=len(drawn & rounded) / max(len(drawn), 1),
        rounded_baseline=len(chance & rounded) / max(len(chance), 1),
        membership=membership,
        baseline=baseline,
        structure=_shared_structure(source, sample),
        ks=distances(source, sample),
    )


def _shared_structure(source: Workload, sample: Workload) -> float:
    """The share of the sample's runs of nodes whose structure the source has too."""
    known, drawn = structure_runs(source), structure_runs(sample)
    return len(drawn & known) / max(len(drawn), 1)


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


def _runs(workload: Workload, duration: Int64) -> set[tuple[int, ...]]:
    """The runs of consecutive durations of every rank, except those that are all zeros."""
    out: set[tuple[int, ...]] = set()
    for low, high in zip(workload.rank_offset[:-1].tolist(), workload.rank_offset[1:].tolist(), strict=True):
        d = duration[low:high].tolist()
        out.update(zip(d, d[1:], d[2:], d[3:], strict=False))
    return {run for run in out if any(run)}


def _permuted(source: Workload, rng: np.random.Generator) -> Int64:
    """The durations of the source, those of each symbol shuffled among its nodes."""
    symbol = symbols_of(source)
    out = source.duration.copy()
    order = np.argsort(symbol, kind="stable")
    for nodes in np.split(order, np.flatnonzero(np.diff(symbol[order])) + 1):
        out[nodes] = source.duration[rng.permutation(nodes)]
    return out


def _nearer(candidate: Int64, truth: Int64, permuted: Int64) -> float:
    """The share of windows in which the candidate is nearer to the truth than to the permutation; ties do not count."""

    def distance(other: Int64) -> NDArray[np.float64]:
        difference = np.abs(np.log1p(candidate) - np.log1p(other))
        return np.convolve(difference, np.ones(RUN_LENGTH), "valid")

    one, two = distance(truth), distance(permuted)
    decided = one != two
    return float((one < two)[decided].mean()) if decided.any() else 0.5


def distances(source: Workload, sample: Workload, tolerance: float = 0.0) -> dict[str, float]:
    """The distances of the distributions of two workloads, as `Likeness.ks`; neither need be the source of the other.

    tolerance: durations that differ by this share at most count as equal. Where an operator always takes the same time, as in a predicted
    set, the distance without it is the share of all operators whose times are not hit exactly.
    """
    out = {}
    for name, mask in (("host", _class(source, "host")), ("compute", _class(source, "compute")), ("communication", _class(source, "comm"))):
        other = _class(sample, {"communication": "comm"}.get(name, name))
        if mask.any() and other.any():
            out[name] = kolmogorov_smirnov(_us(source.duration[mask]), _us(sample.duration[other]), tolerance)
    if len(source.communication) and len(sample.communication):
        out["size"] = kolmogorov_smirnov(source.communication.size, sample.communication.size, SIZE_SHIFT)
    out["dependencies"] = kolmogorov_smirnov(np.diff(source.dep_offset), np.diff(sample.dep_offset))
    return out


def _class(workload: Workload, name: str) -> NDArray[np.bool_]:
    compute = workload.type == NodeType.COMP
    mask: NDArray[np.bool_] = {"comm": ~compute, "host": compute & workload.on_cpu}.get(name, compute & ~workload.on_cpu)
    return mask


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
