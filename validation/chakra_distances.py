"""How far the distributions of two Chakra sets are apart, such as of a synthetic set and its source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.chakra.synthesis.sample import SIZE_SHIFT
from lumos.trace.chakra.schema import NodeType

if TYPE_CHECKING:
    from lumos.chakra.workload import Workload
    from lumos.trace.table import Int64


def distances(source: Workload, sample: Workload, tolerance: float = 0.0) -> dict[str, float]:
    """The largest distance of the cumulative distributions of two workloads, neither of which need be the source of the other: of durations
    (whole microseconds) by class of node, of sizes of communication (to within SIZE_SHIFT) and of dependencies a node.

    tolerance: durations that differ by this share at most count as equal. Where an operator always takes the same time, as in a predicted
    set, the distance without it is the share of all operators whose times are not hit exactly.
    """
    one, other = ({name: (w.duration[mask] + 500) // 1000 for name, mask in _classes(w).items() if mask.any()} for w in (source, sample))
    out = {name: kolmogorov_smirnov(one[name], other[name], tolerance) for name in one if name in other}
    if len(source.communication) and len(sample.communication):
        out["size"] = kolmogorov_smirnov(source.communication.size, sample.communication.size, SIZE_SHIFT)
    out["dependencies"] = kolmogorov_smirnov(np.diff(source.dep_offset), np.diff(sample.dep_offset))
    return out


def _classes(workload: Workload) -> dict[str, Int64]:
    """Which nodes are of each class."""
    compute = workload.type == NodeType.COMP
    return {"host": compute & workload.on_cpu, "compute": compute & ~workload.on_cpu, "communication": ~compute}


def kolmogorov_smirnov(a: Int64, b: Int64, tolerance: float = 0.0) -> float:
    """The largest distance between the cumulative distributions of two samples.

    tolerance: values of `b` that differ from those of `a` by this share of them at most count as equal (as in Lévy's distance).
    """
    one, two = np.sort(a), np.sort(b)
    above, under = 1 + tolerance * (1 + 1e-9), 1 - tolerance * (1 + 1e-9)  # a value that differs by the tolerance itself is within it
    low = np.searchsorted(one, one, side="right") / len(one) - np.searchsorted(two, one * above, side="right") / len(two)
    high = np.searchsorted(two, two, side="right") / len(two) - np.searchsorted(one, two / under, side="right") / len(one)
    return float(max(low.max(), high.max(), 0.0))
