"""A training job to predict: model, plan, framework and cluster together, and what its configuration leaves open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from lumos.cost.cluster import Cluster
from lumos.errors import LumosError, UsageError
from lumos.model import Model
from lumos.plan.framework import Framework
from lumos.plan.plan import Plan, check_plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumos.diagnostics import Diagnostic


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


#: The parts of a job that files of a prediction carry.
_PARTS: Mapping[str, type[Any]] = {"model": Model, "plan": Plan, "framework": Framework, "cluster": Cluster}


def facts_of(job: PlannedJob) -> dict[str, object]:
    """The job as JSON has it, for the files of its prediction: which it is, not what was left open."""
    return {part: msgspec.to_builtins(getattr(job, part)) for part in _PARTS}


def job_from_facts(facts: Mapping[str, object], path: str) -> PlannedJob:
    """The reverse of `facts_of`, from a file at `path`. Raises LumosError where `facts_of` cannot have written it."""
    try:
        job = PlannedJob(**{part: msgspec.convert(facts.get(part), kind) for part, kind in _PARTS.items()})
        check_plan(job.plan, job.model)
        job.cluster.check_size(job.plan.devices)
    except (msgspec.ValidationError, UsageError, LumosError) as error:
        text = f"{path}: what it says of the job that was predicted is no job ({error}); write it again with lumos predict --kineto"
        raise LumosError(text) from error
    return job
