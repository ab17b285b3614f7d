"""Put the nodes of a workload in the order of the program: what the CPU did, each piece of device work behind its launch.

By start, a kernel may stand hundreds of nodes behind its launch, because the CPU runs ahead. A part of the program that is
repeated or left out, such as a layer, would then take the launches of other kernels with it. In program order a layer is one
stretch of nodes, alike in all layers. It respects dependencies and keeps the order on every stream and thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.chakra.build import permuted
from lumos.trace.table import ABSENT

if TYPE_CHECKING:
    from lumos.chakra.workload import Workload


def in_program_order(workload: Workload) -> Workload:
    """The workload with the nodes of every rank in program order: CPU work as it stands, other nodes behind the last that they wait for."""
    place: list[int] = []
    bounds, deps = workload.dep_offset.tolist(), workload.dep.tolist()
    for node, on_cpu in enumerate(workload.on_cpu.tolist()):
        before = max((place[d] for d in deps[bounds[node] : bounds[node + 1]]), default=ABSENT)
        place.append(node if on_cpu else before)
    order = np.lexsort((np.arange(len(place)), np.array(place, np.int64), workload.rank_of()))
    return permuted(workload, order)
