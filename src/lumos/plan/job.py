"""A training job to predict: model, plan, framework and cluster together, and what its configuration leaves open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumos.cost.cluster import Cluster
    from lumos.diagnostics import Diagnostic
    from lumos.model import Model
    from lumos.plan.framework import Framework
    from lumos.plan.plan import Plan


class Unknown(NamedTuple):
    """A fact that the configuration leaves open. answers: the job by each answer other than the one assumed, by name.

    code: a stable word for scripts; question: what would settle the fact, in words for people. of_framework: whether the answers are
    habits of a framework, which go together: a fast one is fast in most of them.
    """

    code: str
    question: str
    answers: Mapping[str, PlannedJob]
    of_framework: bool = False


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """The subject of one prediction. assumed: which facts the configuration left open, and the values that were assumed; unknowns:
    those whose other answers would change the time."""

    model: Model
    plan: Plan
    framework: Framework
    cluster: Cluster
    assumed: tuple[Diagnostic, ...] = ()
    unknowns: tuple[Unknown, ...] = ()
