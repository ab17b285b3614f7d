"""How long work takes that was not measured: accelerators and networks as data, and small fitted models of their speed.

The names below are the functions behind `lumos cost`, with their arguments and results; the modules of this package are internal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.on_demand import on_demand

if TYPE_CHECKING:
    from lumos.cost.attention_model import attention
    from lumos.cost.cluster import Accelerator, Cluster, cluster_names, load_cluster
    from lumos.cost.collective_model import collective
    from lumos.cost.estimate import Estimate
    from lumos.cost.gemm_model import gemm

__all__ = ["Accelerator", "Cluster", "Estimate", "attention", "cluster_names", "collective", "gemm", "load_cluster"]

if not TYPE_CHECKING:  # a type checker would take it for an answer to every name
    __getattr__, __dir__ = on_demand(__name__, again=("load_cluster",))
