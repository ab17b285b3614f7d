"""Which tasks count as work of a rank: computing, or communicating."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.table import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lumos.analyze.loop.steps import Members


def working(owners: Members) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Masks over tasks: computing, communicating. On ranks without device work the CPU's operators compute."""
    graph = owners.graph
    communicates = graph.kind == Kind.COLLECTIVE
    has_device = np.zeros(len(graph.ranks), bool)
    has_device[owners.rank[owners.on_device]] = True
    on_cpu = (graph.kind == Kind.OPERATOR) & ~has_device[owners.rank]
    return (owners.on_device & ~communicates) | on_cpu, communicates
