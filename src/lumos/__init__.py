"""Lumos: how long a distributed training step takes, why, and what it would take otherwise.

    job = lumos.read("traces/")            # profiler files → columns
    graph = lumos.build(job)               # columns → tasks and dependencies
    timeline = lumos.simulate(graph)       # when each task runs
    lumos.breakdown(timeline)              # where the time goes

Everything here is re-exported from the part that defines it, and loaded when first used, so importing `lumos` costs
nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lumos.analyze.breakdown import breakdown
    from lumos.analyze.compare import compare
    from lumos.analyze.critical_path import critical_paths
    from lumos.analyze.probes import probes
    from lumos.analyze.replay import replay
    from lumos.analyze.slack import slack
    from lumos.analyze.stragglers import stragglers
    from lumos.diagnostics import Diagnostic
    from lumos.errors import GraphError, LumosError, TraceError, UsageError
    from lumos.graph.build import build
    from lumos.graph.table import Graph
    from lumos.simulate import simulate
    from lumos.simulate.timeline import Timeline, measured
    from lumos.trace import read
    from lumos.trace.table import Job, Trace

__all__ = [
    "Diagnostic",
    "Graph",
    "GraphError",
    "Job",
    "LumosError",
    "Timeline",
    "Trace",
    "TraceError",
    "UsageError",
    "breakdown",
    "build",
    "compare",
    "critical_paths",
    "measured",
    "probes",
    "read",
    "replay",
    "simulate",
    "slack",
    "stragglers",
]

#: Where each public name is defined.
_HOMES = {
    "Diagnostic": "lumos.diagnostics",
    "Graph": "lumos.graph.table",
    "GraphError": "lumos.errors",
    "Job": "lumos.trace.table",
    "LumosError": "lumos.errors",
    "Timeline": "lumos.simulate.timeline",
    "Trace": "lumos.trace.table",
    "TraceError": "lumos.errors",
    "UsageError": "lumos.errors",
    "breakdown": "lumos.analyze.breakdown",
    "build": "lumos.graph.build",
    "compare": "lumos.analyze.compare",
    "critical_paths": "lumos.analyze.critical_path",
    "measured": "lumos.simulate.timeline",
    "probes": "lumos.analyze.probes",
    "read": "lumos.trace",
    "replay": "lumos.analyze.replay",
    "simulate": "lumos.simulate",
    "slack": "lumos.analyze.slack",
    "stragglers": "lumos.analyze.stragglers",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("lumos-trace")
    if name not in _HOMES:
        raise AttributeError(f"module 'lumos' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


class _Facade(ModuleType):
    """Keeps a function of the façade where a subpackage has its name (`lumos.simulate`).

    Importing a subpackage binds it to its parent; `from lumos.simulate import …` does not need that binding.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Facade
