"""A search that starts from a measured job: its model, framework and sizes, and prices calibrated by its device work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.analyze.loop.steps import members
from lumos.changes.machine import recorded_cluster
from lumos.changes.plan.calibrated import calibrated_pricer
from lumos.changes.plan.identify import ENOUGH_AGREEMENT, identify
from lumos.errors import LumosError
from lumos.searching.space import Problem

if TYPE_CHECKING:
    from lumos.blocks.price import Pricer
    from lumos.graph.table import Graph
    from lumos.trace.table import Job


def problem_of_traces(job: Job, graph: Graph, base_cluster: str | None = None) -> tuple[Problem, Pricer]:
    """The problem of the traced job, whose joined graph is `graph`, and prices calibrated by it.

    Raises LumosError where no plan can be identified that accounts for the traced work.
    """
    identified = identify(job, graph, members(graph), recorded_cluster(job, graph, base_cluster))
    if identified.agreement < ENOUGH_AGREEMENT:
        raise LumosError(
            f"the layout of the plan that the trace shows accounts for {identified.agreement:.0%} of its device work; pricing other"
            f" plans from it takes at least {ENOUGH_AGREEMENT:.0%}; name --model and --cluster to search without a trace"
        )
    ran = identified.job
    plan = ran.plan
    problem = Problem(ran.model, ran.framework, ran.cluster, plan.devices, plan.global_batch, plan.seq_len, plan.precision, ran.assumed)
    return problem, calibrated_pricer(identified, graph)
