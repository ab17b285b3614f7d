"""A search that starts from a measured job: its model, framework and sizes, and prices calibrated by its blocks."""

from __future__ import annotations

from lumos.analyze.steps import members
from lumos.blocks.price import Pricer
from lumos.errors import LumosError
from lumos.graph.table import Graph
from lumos.search.space import Problem
from lumos.trace.table import Job
from lumos.whatif.calibrated import calibrate
from lumos.whatif.identify import ENOUGH, identify
from lumos.whatif.whatif import cluster_of


def problem_of_traces(job: Job, graph: Graph, base_cluster: str | None = None) -> tuple[Problem, Pricer]:
    """The problem that the traces `job` (joined in `graph`) ran, and prices with their measured blocks.

    LumosError where the traces do not show a plan that accounts for their work.
    """
    found = identify(job, graph, members(graph), cluster_of(job, graph, base_cluster))
    if found.agreement < ENOUGH:
        raise LumosError(
            f"the layout of the plan that the trace shows accounts for {found.agreement:.0%} of its device work, too little ({ENOUGH:.0%})"
            " to price other plans by; name --model and --cluster to search without a trace"
        )
    ran = found.job
    plan = ran.plan
    problem = Problem(ran.model, ran.framework, ran.cluster, plan.devices, plan.global_batch, plan.seq_len, plan.precision, ran.assumed)
    return problem, calibrate(found, graph)
