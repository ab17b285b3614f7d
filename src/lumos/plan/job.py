"""A training job to predict: model, plan, framework and cluster together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lumos.cost.cluster import Cluster
    from lumos.diagnostics import Diagnostic
    from lumos.model import Model
    from lumos.plan.framework import Framework
    from lumos.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """The subject of one prediction. assumed: which facts the configuration left open, and the values that were assumed."""

    model: Model
    plan: Plan
    framework: Framework
    cluster: Cluster
    assumed: tuple[Diagnostic, ...] = ()
