"""`lumos.predict`: the step of a configuration; where it does not say how the job is spread, of the fastest plan that fits.

    lumos.predict(model="gpt3-175b", cluster="h100", gpus=512, global_batch=1536, seq=2048, tp=8, pp=8)
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.plan.configuration import DEGREES, Settings, check_needed, job_from, read_settings
from lumos.plan.framework import DEFAULTS
from lumos.plan.words import JobWords, with_words
from lumos.prediction.own_steps import at_level, level_of_tables
from lumos.prediction.predict import Prediction, predict_job
from lumos.searching.search import Found, plan_keys, search_problem
from lumos.searching.settings import problem_of, space_of, switched

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Settings of a plan that no search chooses: with one of them the sizes that are left open are 1.
_UNSEARCHED = ("shard", "lora_rank", "document", "first_layers", "last_layers")
#: How many of the fastest plans are simulated in full.
_REFINED = 3


def predict(
    file: str | os.PathLike[str] | None = None,
    *,
    blocks: bool | None = None,
    measured: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    **settings: Unpack[JobWords],
) -> Prediction:
    """The step of a configuration: how long, how much memory, what bounds it. No trace is needed.

    file: a TOML file of settings; those given here win over it. settings: see `JobWords`; model, cluster, gpus, global_batch and seq are
    needed. Where none of tp, pp, vpp, cp, ep, dp and micro_batch is given, the fastest plan that fits and keeps the other settings is
    predicted (diagnostic `chosen-plan`). blocks: simulate runs of blocks (True) or every kernel (False); None for every kernel of jobs
    that are small enough. measured: tables of steps that were measured on one's own devices, with the columns of `lumos.validate`; they
    calibrate the level of the answer and its interval (`lumos.prediction.own_steps`). Raises UsageError where settings are incomplete,
    unknown or contradict each other, LumosError where a file cannot be read, or where a plan is to be chosen and none fits.
    """
    tables = [measured] if isinstance(measured, str | os.PathLike) else list(measured)
    prediction = _predicted(file, blocks, settings)
    return at_level(prediction, level_of_tables([os.fspath(path) for path in tables], prediction.job)) if tables else prediction


def _predicted(file: str | os.PathLike[str] | None, blocks: bool | None, settings: JobWords) -> Prediction:
    """The step of a configuration, as the cost models have it."""
    read = with_words(read_settings(os.fspath(file)) if file is not None else Settings(), settings, "predict")
    check_needed(read)
    open_sizes = all(getattr(read, key) is None for key in DEGREES)
    unsearched = any(getattr(read, key) for key in _UNSEARCHED) or read.recompute_layers != -1 or read.switches.keys() & set(DEFAULTS)
    if not open_sizes or unsearched:
        return predict_job(job_from(read), coarse=blocks)
    searched = _search(read)
    job = searched.best[0].job
    fit = searched.plans - searched.infeasible
    words = " ".join(f"{key} {value}" for key, value in plan_keys(job.plan).items() if value not in (1, False) or key in ("tp", "dp"))
    chosen = f"no sizes were given, so this is the fastest of {fit:,} plans that fit: {words}; --tp, --pp, … set them"
    note = Diagnostic("chosen-plan", chosen)
    return predict_job(replace(job, assumed=(note, *job.assumed)), searched.pricer, blocks)


def _search(s: Settings) -> Found:
    """The plans of settings without sizes. Raises LumosError where none fits."""
    problem = switched(problem_of(s.model, s.cluster, s.gpus, s.global_batch, s.seq, s.precision, s.framework), s.switches)
    given = {key: getattr(s, key) for key in ("recompute", "schedule", "sequence_parallel", "zero")}
    space = space_of({key: value for key, value in given.items() if value is not None})
    searched = search_problem(problem, space, refine=_REFINED)
    if not searched.best:
        least = "" if searched.least_bytes is None else f"; the one that needs least takes {searched.least_bytes / 1e9:.1f} GB"
        memory = f"{(problem.capacity or 0) / 1e9:.1f} GB of {problem.cluster.name}"
        raise LumosError(
            f"none of {searched.plans:,} plans of {problem.model.name} on {problem.gpus} devices fits the {memory}{least}; give more "
            "devices (--gpus), shorter sequences, or other settings"
        )
    return searched
