"""How long work takes that was not measured: accelerators and networks as data, and small fitted models of their speed.

The names below are the functions behind `lumos cost`, with their arguments and results; the modules of this package are internal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.reexport import reexport

if TYPE_CHECKING:
    from lumos.cost.attention import attention
    from lumos.cost.cluster import Accelerator, Cluster, cluster_names, load_cluster
    from lumos.cost.collective import collective
    from lumos.cost.estimate import Estimate
    from lumos.cost.gemm import gemm
    from lumos.cost.memory_bound import memory_bound

__all__ = ["Accelerator", "Cluster", "Estimate", "attention", "cluster_names", "collective", "gemm", "load_cluster", "memory_bound"]

reexport(
    __name__,
    {
        "lumos.cost.attention": ("attention",),
        "lumos": ("load_cluster",),
        "lumos.cost.cluster": ("Accelerator", "Cluster", "cluster_names"),
        "lumos.cost.collective": ("collective",),
        "lumos.cost.estimate": ("Estimate",),
        "lumos.cost.gemm": ("gemm",),
        "lumos.cost.memory_bound": ("memory_bound",),
    },
)
