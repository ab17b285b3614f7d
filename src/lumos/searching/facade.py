"""`lumos.search`, `lumos.explain` and `lumos.predict`: the plans of a model or of a prediction's files, why one beats another, and the step
of a configuration (where it does not say how the job is spread, of the fastest plan that fits), with the words of the command line.

    lumos.predict(model="gpt3-175b", cluster="h100", gpus=512, global_batch=1536, seq=2048, tp=8, pp=8)
    lumos.search(model="gpt3-175b", cluster="h100", gpus=512, global_batch=1536, seq=2048, pp=(4, 8))
    lumos.search("predicted/", gpus=1024)
    lumos.explain({"tp": 8}, {"tp": 4, "pp": 2}, model="llama3-8b", cluster="h100", gpus=8, global_batch=64, seq=8192)
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, Unpack, cast, overload

from lumos.blocks.price import Pricer
from lumos.changes.predicted import predicted_job
from lumos.choices import as_mapping, as_number, check_choice
from lumos.cost.cluster import load_cluster
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError, UsageError
from lumos.plan.configuration import DEGREES, Settings, check_needed, job_from, read_settings
from lumos.plan.framework import DEFAULTS, switch_text
from lumos.plan.words import JobWords, PlanWords, with_words
from lumos.prediction.own_steps import at_level, level_of_tables
from lumos.prediction.predict import Prediction, predict_job
from lumos.result import Rows, Shown, plain
from lumos.searching.engine import engines
from lumos.searching.explain import Explanation, explain_predictions
from lumos.searching.search import Found, plan_keys, search_problem
from lumos.searching.settings import problem_of, settings_of, space_of, sweep_of, switched
from lumos.searching.space import Problem
from lumos.searching.words import SearchWords, SpaceWords
from lumos.trace.source import Source, as_job

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Swept(NamedTuple):
    """The result of a search with one value of the swept size, or on one of several clusters."""

    value: int | str
    found: Found


@overload
def search(job: Source | None = None, *, sweep: None = None, **words: Unpack[SearchWords]) -> Found: ...


@overload
def search(job: Source | None = None, *, sweep: str | Mapping[str, Sequence[int]], **words: Unpack[SearchWords]) -> Rows[Swept]: ...


def search(
    job: Source | None = None, *, sweep: str | Mapping[str, Sequence[int]] | None = None, **words: Unpack[SearchWords]
) -> Found | Rows[Swept]:
    """The plans of a model on a cluster, best first.

    job: what `lumos predict` wrote: its files, their folder, or a job from `lumos.read`. Without one, model, cluster, gpus, global_batch
    and seq are needed. words: see `SearchWords` and `SpaceWords`. sweep: one size with its values,
    {"gpus": (256, 512)} or "gpus=256..16384" (doubling); every value is searched and becomes a row. Raises UsageError where a word is
    unknown or wrong, LumosError for recordings, which do not say which plan they ran.
    """
    for word in words:
        check_choice(word, sorted(SearchWords.__optional_keys__), "a word of search")
    given = cast("dict[str, object]", dict(words))
    space = space_of({key: given[key] for key in SpaceWords.__optional_keys__ & given.keys()})
    problem = _problem(job, words)
    switches = as_mapping(words.get("switches", {}), "switches", "{'dropout': True}")
    problem = switched(problem, {key: switch_text(value) for key, value in switches.items()})
    problem = replace(problem, reserved_bytes=1e9 * as_number(words.get("reserve_gb", 0.0), "reserve_gb"))
    tokens, price = (as_number(words[word], word) if word in words else None for word in ("tokens", "price"))
    if (tokens is not None and tokens <= 0) or (price is not None and price < 0):
        raise UsageError(f"tokens ({tokens}) must be above 0, and price ({price}) at least 0")
    key, values = ("gpus", (problem.gpus,)) if sweep is None else sweep_of(sweep)

    with engines(words.get("engine", "local"), words.get("ray_address")) as engine_of:

        def run(p: Problem) -> Found:
            searched = search_problem(p, space, words.get("refine", 10), words.get("progress"), engine=engine_of(p))
            return replace(searched, tokens=tokens, price=price)

        rows: list[Swept] = []
        for value in values:
            rows.append(Swept(value, run(_with_size(problem, key, value))))
            if not rows[-1].found.complete:
                break
    return rows[0].found if sweep is None else Rows(rows)


def _with_size(problem: Problem, key: str, value: int) -> Problem:
    """The problem with another number of devices (gpus), sequences of a step (global_batch) or tokens of a sequence (seq)."""
    if key == "gpus":
        problem.cluster.check_size(value)
        return replace(problem, gpus=value)
    return replace(problem, global_batch=value) if key == "global_batch" else replace(problem, seq_len=value)


def side_by_side(clusters: Sequence[str], **words: Unpack[SearchWords]) -> Rows[Swept]:
    """The same search on each of several clusters."""
    if len(set(clusters)) < len(clusters):
        raise UsageError(f"--cluster names a cluster twice: {', '.join(clusters)}")
    on_each: list[SearchWords] = [{**words, "cluster": name} for name in clusters]
    return Rows(Swept(asked["cluster"], search(**asked)) for asked in on_each)


def _problem(job: Source | None, words: SearchWords) -> Problem:
    """The problem to search."""
    if job is None:
        sizes = words.get("gpus"), words.get("global_batch"), words.get("seq")
        named = words.get("precision", "bf16"), words.get("framework", "megatron-core")
        return problem_of(words.get("model"), words.get("cluster"), *sizes, *named)
    for word in ("model", "framework", "precision"):
        if word in words:
            raise UsageError(f"--{word} and traces exclude each other: the traces say which {word} ran; leave out --{word}")
    read = as_job(job)
    ran = predicted_job(read)
    if ran is None:
        raise LumosError(
            f"{read.traces[0].path}: a recording, which does not say what its model and plan are; lumos whatif PATH --grid tp=1,2,4"
            " --grid zero=0,3 asks the recording for each plan, and lumos search --model M --cluster C --gpus N predicts them"
        )
    plan = ran.plan
    cluster = load_cluster(words["cluster"]) if "cluster" in words else ran.cluster
    sizes = (words.get("gpus", plan.devices), words.get("global_batch", plan.global_batch), words.get("seq", plan.seq_len))
    problem = Problem(ran.model, ran.framework, cluster, *sizes, plan.precision)
    problem.cluster.check_size(problem.gpus)
    return problem


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Explained(Shown):
    """Two plans, predicted in coarse form, and the parts of both steps in seconds."""

    first: Prediction
    second: Prediction
    parts: Explanation

    def to_dict(self) -> dict[str, Any]:
        """The keys of `lumos explain --json`."""
        sides = zip("ab", (self.first, self.second), (self.parts.first, self.parts.second), strict=True)
        plans = {name: {**plan_keys(p.job.plan), **p.to_dict(), "parts_s": parts} for name, p, parts in sides}
        return {**plans, "difference_s": self.parts.difference, "against_faster": plain(self.parts.against)}

    def described(self) -> str:
        """Both steps, and the parts in which they differ most."""
        largest = ", ".join(f"{name} {seconds:+.3g} s" for name, seconds in list(self.parts.difference.items())[:3])
        return f"{self.first.time.time_s:.4g} s against {self.second.time.time_s:.4g} s a step: {largest}"


#: A plan: settings by name, "tp=8,pp=4", or a TOML file of settings.
PlanSource: TypeAlias = PlanWords | str | os.PathLike[str]


def explain(first: PlanSource, second: PlanSource, **job: Unpack[JobWords]) -> Explained:
    """Why one plan beats another: the difference of the two steps, part by part.

    job: what both plans share (model, cluster, gpus, global_batch, seq and settings of the plan); it overrides files, but not sizes that a
    plan states itself. Raises UsageError
    where a plan is incomplete, unknown or contradicts itself, or where the two are of different clusters.
    """
    jobs = [job_from(_with_shared(_settings(plan), job)) for plan in (first, second)]
    if jobs[0].cluster != jobs[1].cluster:
        raise UsageError(f"the plans are of two clusters ({jobs[0].cluster.name}, {jobs[1].cluster.name}); explain compares plans on one")
    pricer = Pricer(jobs[0].cluster)
    a, b = (predict_job(job, pricer, coarse=True) for job in jobs)
    return Explained(a, b, explain_predictions(a, b, pricer))


def _with_shared(plan: Settings, job: JobWords) -> Settings:
    """A plan's settings with those that both plans share. A size that the plan states is its own."""
    shared = {key: value for key, value in job.items() if key not in DEGREES or getattr(plan, key) is None}
    return with_words(plan, cast("JobWords", shared), "explain")


def _settings(plan: PlanSource) -> Settings:
    if isinstance(plan, (str, os.PathLike)):
        text = os.fspath(plan)
        return settings_of(text) if "=" in text else read_settings(text)
    words = as_mapping(plan, "a plan of explain", "{'tp': 8}")
    return with_words(Settings(), cast("JobWords", words), "explain")


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
    read = with_words(read_settings(os.fspath(file)) if file is not None else Settings(), settings, "predict")
    check_needed(read)
    prediction = _predicted(read, blocks)
    paths = [os.fspath(path) for path in tables]
    return at_level(prediction, level_of_tables(paths, prediction.job, read.switches)) if tables else prediction


def _predicted(read: Settings, blocks: bool | None) -> Prediction:
    """The step of a configuration, as the cost models have it."""
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
