"""Lumos: how long a distributed training step takes, why, and what it would take otherwise.

    job = lumos.read("traces/")                 # profiler files → columns
    graph = lumos.build(job)                    # columns → tasks and dependencies
    timeline = lumos.simulate(graph)            # when each task runs
    lumos.breakdown(timeline)                   # where the time goes
    lumos.whatif(job, scale={"*nccl*": 0.5})    # what another job would take
    lumos.predict(model="llama3-8b", cluster="h100", gpus=8, global_batch=64, seq=8192)

Functions have the names and words of the command line. `lumos.chakra`, `lumos.collect`, `lumos.cost` and `lumos.proxy` are modules of
functions. What is listed here and in the `__all__` of packages is public; everything else may change.

Everything here is re-exported from the part that defines it, and loaded when first used, so importing `lumos` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumos.on_demand import on_demand

if TYPE_CHECKING:
    from lumos import chakra, collect, cost, proxy
    from lumos.analyze.breakdown import StepBreakdown
    from lumos.analyze.compare import Comparison
    from lumos.analyze.contents import Contents
    from lumos.analyze.critical_path import CriticalPath
    from lumos.analyze.device_load import MemoryUse, Utilization, memory, queue_lengths, utilization
    from lumos.analyze.facade import compare, critical_path, inspect
    from lumos.analyze.ranks.stragglers import Stragglers, stragglers
    from lumos.analyze.replay import Probes, ReplayResult, probes, replay
    from lumos.analyze.tables import tensor_cores
    from lumos.analyze.trust import Trust, trust
    from lumos.analyze.waiting.slack import Slack, slack
    from lumos.changes.answer import Answer
    from lumos.changes.grid import Cell
    from lumos.cost.cluster import Accelerator, Cluster, load_cluster
    from lumos.cost.estimate import Estimate
    from lumos.cost.facade import Calibration, calibrate
    from lumos.diagnostics import Diagnostic
    from lumos.emulation.facade import Emulated, emulate
    from lumos.errors import GraphError, LumosError, TraceError, UsageError
    from lumos.findings.diagnose import diagnose
    from lumos.findings.finding import Diagnosis, Finding
    from lumos.graph.build import build
    from lumos.graph.table import Graph
    from lumos.model import Model, load_model, model_names
    from lumos.plan.framework import Framework
    from lumos.plan.plan import Plan
    from lumos.prediction.layout import Layout
    from lumos.prediction.predict import Prediction
    from lumos.prediction.validate import Validation, validate
    from lumos.reports.export.job import export as export
    from lumos.reports.facade import Written, report
    from lumos.result import Rows
    from lumos.scripted.facade import breakdown, whatif
    from lumos.searching.facade import Explained, Swept, explain, predict, search
    from lumos.searching.search import Found
    from lumos.segment.outline import outline
    from lumos.simulation import simulate
    from lumos.simulation.timeline import Timeline, measured
    from lumos.trace import read
    from lumos.trace.table import Job, Trace

    __version__: str

__all__ = [
    "Accelerator", "Answer", "Calibration", "Cell", "Cluster", "Comparison", "Contents", "CriticalPath", "Diagnosis", "Diagnostic",
    "Emulated", "Estimate", "Explained", "Finding", "Found", "Framework", "Graph", "GraphError", "Job", "Layout", "LumosError", "MemoryUse",
    "Model", "Plan", "Prediction", "Probes", "ReplayResult", "Rows", "Slack", "StepBreakdown", "Stragglers", "Swept", "Timeline", "Trace",
    "TraceError", "Trust", "UsageError", "Utilization", "Validation", "Written",
]
__all__ += [
    "breakdown", "build", "calibrate", "chakra", "collect", "compare", "cost", "critical_path", "diagnose", "emulate", "explain", "export",
    "inspect", "load_cluster", "load_model", "measured", "memory", "model_names", "outline", "predict", "probes", "proxy", "queue_lengths",
    "read", "replay", "report", "search", "simulate", "slack", "stragglers", "tensor_cores", "trust", "utilization", "validate", "whatif",
]

if not TYPE_CHECKING:  # a type checker would take it for an answer to every name

    _load, __dir__ = on_demand(__name__)

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            return version("lumos-trace")
        return _load(name)
