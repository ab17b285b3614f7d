"""From a measured job and a list of changes to the answer.

Structural changes are made on the identified plan, on a layout of the measured blocks, or on recorded passes. Changes of
durations then apply to the result.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from lumos.analyze.loop.steady import steady, typical_position
from lumos.analyze.loop.steps import members, step_times
from lumos.analyze.trust import Trust, check_sound
from lumos.analyze.trust import trust as trust_in
from lumos.cost.cluster import Accelerator, Cluster, load_cluster
from lumos.cost.from_trace import cluster_of
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError, UsageError
from lumos.graph.one_off import recurring
from lumos.segment.dimensions import Resize, Sizes, sizes
from lumos.segment.segment import Segmentation, segment
from lumos.segment.weights import weights
from lumos.simulate import simulate
from lumos.simulate.durations import scale
from lumos.trace.operations import is_operations
from lumos.units import count
from lumos.vocabulary import DType, Phase, Recompute
from lumos.whatif.answer import Answer, Changed, StepWork, answer, planned_answer, unchanged_tasks
from lumos.whatif.certainty.noise import measured_step, noise_unknown, spread, step_times_of
from lumos.whatif.certainty.possible import check_microbatches, check_size
from lumos.whatif.certainty.trusted import as_far_as_reached, in_a_loop, less_sure, together, up_to_base, widened, with_evidence
from lumos.whatif.certainty.unmeasured import loader_evidence
from lumos.whatif.durations import Durations, check_altered, meant_operators
from lumos.whatif.hardware import HOST_INTERVAL, HOST_UNKNOWN, host_work, network, on_cluster, on_host
from lumos.whatif.layout.activations import exchanged, stream_ratio
from lumos.whatif.layout.capture import capture, wants_graphs
from lumos.whatif.layout.change import layers, microbatches, recompute
from lumos.whatif.layout.exchange import NO_LINK, replicas
from lumos.whatif.layout.measured_layout import MeasuredLayout, measured_layout
from lumos.whatif.layout.place import assemble_pieces
from lumos.whatif.layout.replicated import replicate
from lumos.whatif.layout.resize import SIZE_KEYS, resize
from lumos.whatif.layout.tensor import tensor_parallel
from lumos.whatif.plan.identify import ENOUGH_AGREEMENT, Identification, Identified
from lumos.whatif.plan.passes import rearranged
from lumos.whatif.plan.planned import Planned, between, planned
from lumos.whatif.settings import check_settings, counts, needs_plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumos.graph.table import Graph
    from lumos.trace.table import Job


@dataclass(frozen=True, slots=True)
class Changes:
    """What to change. settings: of --set. base_cluster: where the trace was recorded, for traces that do not say. cluster:
    where the job is to run. network: factors on its links (`hardware.network`). repeat: compare what a loop of the step takes, also
    where the recording has one step only. host_factor: how much longer the CPU's work takes on `cluster`; None where nobody said.

    Raises UsageError for a setting that does not exist, a value that no job could take, or a host factor without a cluster.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    durations: Durations = field(default_factory=Durations)
    base_cluster: str | None = None
    cluster: str | None = None
    network: tuple[str, ...] = ()
    repeat: bool = False
    host_factor: float | None = None

    def __post_init__(self) -> None:
        check_settings(self.settings)
        if self.host_factor is not None and self.cluster is None:
            raise UsageError("--host-factor is of the host of --cluster; name one, or slow the measured host with --scale 'cpu:*=F'")
        if self.host_factor is not None and not 0 < self.host_factor < float("inf"):
            raise UsageError(f"--host-factor {self.host_factor:g}: a factor must be above 0")

    def moves_from(self, measured: Cluster) -> bool:
        """Whether the job is to run on another machine than it was measured on."""
        return self.cluster is not None and load_cluster(self.cluster) != measured

    @property
    def structural(self) -> bool:
        """Whether more than durations of named tasks change."""
        return bool(self.settings or self.cluster or self.network)


def answer_changes(
    job: Job, graph: Graph, changes: Changes, plan: Identification | None = None, *, trust: Trust | None = None, force: bool = False
) -> Answer:
    """The answer for one set of changes to `graph`, which was built from `job`.

    plan, trust: the identification of this job and how far it can be trusted, for callers that ask many what-ifs and need these only
    once. force: answer also where the evidence is unsound. Raises LumosError where it is and `force` is not given.
    """
    grounds = trust_in(graph) if trust is None else trust
    check_sound(grounds, "whatif", force=force)
    found = unchecked_answer(job, graph, changes, plan)
    if not changes.structural and not changes.repeat:
        grounds = with_evidence(grounds, in_a_loop(graph, found, lambda: unchecked_answer(job, graph, replace(changes, repeat=True), plan)))
    unseen = loader_evidence(job, graph, found.base.step_time_s, found.outcome.step_time_s)
    found = replace(found, diagnostics=(*found.diagnostics, *meant_operators(graph, job, changes.durations)))
    return widened(up_to_base(found) if unseen else found, with_evidence(together(grounds, found.trust), unseen))


def unchecked_answer(job: Job, graph: Graph, changes: Changes, plan: Identification | None = None) -> Answer:
    """The same without a look at the evidence."""
    if not changes.structural:
        altered = changes.durations.apply(graph, job)
        check_altered(graph, altered, job, changes.durations)
        return answer(graph, unchanged_tasks(graph, altered, changes.durations.described()), repeat=changes.repeat)
    if is_operations(job.traces[0]):
        return _passes(job, graph, changes)
    graphs = wants_graphs(changes.settings, graph)
    identified = _identified(job, graph, changes, plan or Identification(job, graph))
    if identified is not None and (needs_plan(changes.settings) or identified.agreement >= ENOUGH_AGREEMENT):
        counted = {"layers": identified.job.model.layers, "microbatches": identified.job.plan.microbatches}
        check_size(len(graph), counts(changes.settings), counted)
        return _planned(identified, job, graph, changes)
    _whole_pipeline(job, graph, changes.settings)
    segmentation = segment(recurring(graph), job)
    counted = {"layers": segmentation.layers, "microbatches": 1 + max(p.label.microbatch for p in segmentation.pieces)}
    check_size(len(graph), counts(changes.settings), counted)
    layout = changed_layout(measured_layout(segmentation), job, changes)
    placed = assemble_pieces(layout)
    modelled = np.isin(placed.source, np.array(sorted(layout.modelled), np.int64))
    if graphs:
        placed, launches = capture(placed, segmentation)
        modelled |= launches
        layout = replace(layout, changes=(*layout.changes, "cuda_graphs = on"))
    if _alone(job, graph) and counts(changes.settings).get("dp", 1) > 1:
        replicated = replicate(placed, layout, job.traces[0], counts(changes.settings)["dp"], _link(job, graph, changes))
        placed, layout = replicated.placed, replicated.layout
        modelled = np.append(modelled, np.ones(len(placed.source) - len(modelled), bool))
    altered = changes.durations.apply(placed.graph, job, (segmentation.graph, placed.source))
    factor = altered.duration / np.maximum(placed.graph.duration, 1)
    changed = Changed(
        graph=altered,
        owners=placed.owners,
        low=np.minimum(np.rint(placed.low * factor).astype(np.int64), altered.duration),
        high=np.maximum(np.rint(placed.high * factor).astype(np.int64), altered.duration),
        scaled=((layout.factor[placed.source] != 1) & (placed.source >= 0)) | (altered.duration != placed.graph.duration),
        modelled=modelled,
        changes=(*layout.changes, *changes.durations.described()),
        diagnostics=(*layout.diagnostics, *_plan_not_followed(identified)),
    )
    found = as_far_as_reached(answer(graph, changed, *_work(segmentation, job, changes), repeat=changes.repeat))
    if {"layers", "recompute"} & set(changes.settings):
        how = f"the recording shows {count(segmentation.layers, 'layer')}, by {segmentation.evidence.get('forward', 'nothing')}"
        found = less_sure(found, "layers-uncertain", how, segmentation.confidence)
    return _possible(found, changes, 1 + max(p.label.microbatch for p in segmentation.pieces))


def _passes(job: Job, graph: Graph, changes: Changes) -> Answer:
    """The answer for a recording of passes."""
    if changes.cluster or changes.network:
        raise LumosError(f"{job.traces[0].path} records passes, not what they consist of: --cluster and --network cannot change them")
    changed = rearranged(job, changes.settings)
    altered = changes.durations.apply(changed.graph, job)
    factor = altered.duration / np.maximum(changed.graph.duration, 1)
    return answer(
        graph,
        replace(
            changed,
            graph=altered,
            low=np.rint(changed.low * factor).astype(np.int64),
            high=np.rint(changed.high * factor).astype(np.int64),
            scaled=changed.scaled | (altered.duration != changed.graph.duration),
            changes=(*changed.changes, *changes.durations.described()),
        ),
        repeat=changes.repeat,
    )


def _whole_pipeline(job: Job, graph: Graph, settings: Mapping[str, str]) -> None:
    """Raise LumosError where layers, microbatches or tensor-parallel ranks are to change but traces of some pipeline stages are missing."""
    world = max((t.world_size or 0 for t in job.traces), default=0)
    facts = graph.collectives
    transfers = facts is not None and any(facts.kinds[k].is_transfer for k in set(facts.kind.tolist()))
    changed = [key for key in ("layers", "microbatches", "tp") if key in settings]
    if transfers and world > len(job.traces) and changed:
        raise LumosError(
            f"--set {changed[0]}: the traces are {len(job.traces)} of {world} ranks and pass activations to others, so they show"
            " only a part of the model; give at least one rank of every pipeline stage"
        )


def _plan_not_followed(identified: Identified | None) -> tuple[Diagnostic, ...]:
    """The diagnostic that a job is changed through its measured blocks although its plan was identified, and why."""
    if identified is None:
        return ()
    text = (
        f"the layout of the plan that the traces show accounts for {identified.agreement:.1%} of their device work,"
        f" less than {ENOUGH_AGREEMENT:.0%}:"
        " the change is made on the measured blocks, which do not model experts or exchanges inside layers; compare it with lumos predict"
    )
    return (Diagnostic("plan-not-followed", text),)


def _identified(job: Job, graph: Graph, changes: Changes, plan: Identification) -> Identified | None:
    """The job's identified plan. None where no setting needs it and the job has no collectives on devices or cannot be identified."""
    if needs_plan(changes.settings):
        if not has_device(graph):
            raise LumosError(
                "--set of a parallel plan needs a job on accelerators; jobs on CPUs can change dp, layers, sizes and microbatches"
            )
        return plan.on(recorded_cluster(job, graph, changes.base_cluster))
    if not has_device(graph) or graph.collectives is None or not len(graph.collectives.task):
        return None
    try:
        return plan.on(recorded_cluster(job, graph, changes.base_cluster))
    except LumosError:
        return None


def _planned(identified: Identified, job: Job, graph: Graph, changes: Changes) -> Answer:
    """The answer of a change that is made on the identified plan."""
    owners = members(graph)
    at = typical_position(owners)
    loop, step = steady(owners, at, repeat=changes.repeat or None), owners.job[at].name
    times = step_times_of(graph, owners)
    durations = changes.durations
    altered = durations._replace(slow=()).apply(graph, job)
    cluster = _target(identified.job.cluster, changes)

    def predicted(host: float) -> Planned:
        there = altered if host == 1 else scale(altered, host_work(graph), host)
        return planned(identified, graph, loop.step_time_ns * 1e-9, changes.settings, cluster, there, durations.slow)

    moves = changes.moves_from(identified.job.cluster)
    prediction = predicted((changes.host_factor if moves else None) or 1.0)
    unknown = moves and changes.host_factor is None
    if unknown:
        prediction = between(prediction, *(predicted(1 + by) for by in (-HOST_INTERVAL, HOST_INTERVAL)))
    found = planned_answer(
        prediction,
        step,
        loop.basis,
        (*(f"{k} = {v}" for k, v in changes.settings.items()), *_hardware_words(changes), *changes.durations.described()),
        spread(times, step_times(simulate(graph), owners)),
        measured_step(graph, times, step),
        (*graph.diagnostics, *noise_unknown(times), *loop.findings("the job"), *((HOST_UNKNOWN,) if unknown else ())),
    )
    found = less_sure(found, "plan-uncertain", "the plan accounts for a part of the heavy work of the recording", identified.agreement)
    return _possible(found, changes, identified.job.plan.microbatches)


def _possible(found: Answer, changes: Changes, microbatches: int) -> Answer:
    """The answer; LumosError where more microbatches, and nothing else, take longer than in proportion. microbatches: as measured."""
    if set(changes.settings) == {"microbatches"} and not (changes.cluster or changes.network or changes.durations != Durations()):
        steps = found.base.step_time_s, found.outcome.step_time_s
        check_microbatches(*steps, microbatches, counts(changes.settings)["microbatches"])
    return found


def _target(base: Cluster, changes: Changes) -> Cluster | None:
    """The cluster that the job is to run on; None where that does not change."""
    if changes.cluster is None and not changes.network:
        return None
    return network(load_cluster(changes.cluster) if changes.cluster else base, changes.network)


def _hardware_words(changes: Changes) -> tuple[str, ...]:
    cluster = (f"cluster = {changes.cluster}",) if changes.cluster else ()
    return (*cluster, *(f"network {word}" for word in changes.network))


def changed_layout(layout: MeasuredLayout, job: Job, changes: Changes) -> MeasuredLayout:
    """The layout with the settings applied: sizes first, then how often blocks run."""
    settings = changes.settings
    wanted = counts(settings)
    resized = {key: wanted[key] for key in SIZE_KEYS if key in wanted}
    needs_costs = bool(resized) or "microbatches" in wanted or "tp" in wanted
    accelerator = device_of(job, layout.segmentation.graph, changes.base_cluster) if needs_costs else None
    if resized:
        layout = resize(layout, job, accelerator, **resized)
        layout = exchanged(layout, job, _known_cluster(job, layout.segmentation.graph, changes), stream_ratio(job, resized), {})
    if "tp" in wanted:
        cluster = _known_cluster(job, layout.segmentation.graph, changes)
        layout = tensor_parallel(layout, job, accelerator, wanted["tp"], cluster)
    if "dp" in wanted and not _alone(job, layout.segmentation.graph):
        layout = replicas(layout, job, wanted["dp"], _fabric(job, layout.segmentation.graph, changes))
    if changes.cluster and not has_device(layout.segmentation.graph):
        raise LumosError(
            "--cluster: the job ran on CPUs, which does not show how long its operators take on accelerators; use lumos predict"
        )
    if changes.cluster or changes.network:
        old = recorded_cluster(job, layout.segmentation.graph, changes.base_cluster)
        layout = on_cluster(layout, job, old, _target(old, changes) or old, ", ".join(_hardware_words(changes)))
        if changes.moves_from(old):
            layout = on_host(layout, changes.host_factor)
    if "recompute" in settings:
        layout = recompute(layout, Recompute(settings["recompute"]))
    if "layers" in wanted:
        layout = layers(layout, job, wanted["layers"])
    if "microbatches" in wanted:
        layout = microbatches(layout, job, accelerator, wanted["microbatches"])
    return layout


def has_device(graph: Graph) -> bool:
    """Whether the job ran on devices."""
    return any(p.is_stream for p in graph.processors)


def device_of(job: Job, graph: Graph, base_cluster: str | None) -> Accelerator | None:
    """The accelerator that the trace ran on; None for a job on CPUs. LumosError where the trace does not say."""
    if not has_device(graph):
        return None
    if base_cluster is not None:
        return load_cluster(base_cluster).accelerator
    return cluster_of(job.traces[0], "--base-cluster").accelerator


def recorded_cluster(job: Job, graph: Graph, base_cluster: str | None) -> Cluster:
    """The cluster that the trace ran on, by --base-cluster or the device that its header names."""
    if base_cluster is not None:
        return load_cluster(base_cluster)
    if not has_device(graph):
        return load_cluster("host")
    return cluster_of(job.traces[0], "--base-cluster")


def _alone(job: Job, graph: Graph) -> bool:
    """Whether the job is one process that exchanges nothing."""
    return len(job.traces) == 1 and (job.traces[0].world_size or 1) == 1 and (graph.collectives is None or not len(graph.collectives.task))


def _link(job: Job, graph: Graph, changes: Changes) -> Cluster:
    """The cluster over whose links the replicas of a job of one process would exchange gradients. Raises LumosError where nothing says."""
    cluster = _fabric(job, graph, changes)
    if cluster is None:
        raise LumosError(NO_LINK)
    return cluster


def _known_cluster(job: Job, graph: Graph, changes: Changes) -> Cluster | None:
    """The cluster that the job ran on; None where neither its files nor --base-cluster say, and for processes on a CPU."""
    if changes.base_cluster is None and not has_device(graph):
        return None
    try:
        return recorded_cluster(job, graph, changes.base_cluster)
    except LumosError:
        return None


def _fabric(job: Job, graph: Graph, changes: Changes) -> Cluster | None:
    """The cluster whose links connect the replicas. None for a CPU job of one process without a stated cluster: it exchanged nothing
    whose time could be scaled."""
    if len(job.traces) > 1 or (job.traces[0].world_size or 1) > 1:
        return recorded_cluster(job, graph, changes.base_cluster)
    if not has_device(graph) and changes.base_cluster is None and changes.cluster is None:
        return None
    base = recorded_cluster(job, graph, changes.base_cluster)
    return _target(base, changes) or base


def _work(segmentation: Segmentation, job: Job, changes: Changes) -> tuple[StepWork, StepWork]:
    """The work of a step of the first rank, before and after the change; unknown where shapes or the backward pass are missing."""
    old = sizes(job.traces[0])
    if not old.micro_batch or not any(p.label.phase == Phase.BACKWARD for p in segmentation.pieces):
        return StepWork(), StepWork()
    settings = counts(changes.settings)
    new = old._replace(**{key: settings[key] for key in SIZE_KEYS if key in settings})
    measured_microbatches = 1 + max(p.label.microbatch for p in segmentation.pieces)
    accelerator = None
    if has_device(segmentation.graph):
        try:
            accelerator = device_of(job, segmentation.graph, changes.base_cluster)
        except LumosError:
            accelerator = None
    count = segmentation.layers
    peak = (
        max(accelerator.peak_flops.get(DType.BF16, 0.0), accelerator.peak_flops.get(DType.FP16, 0.0)) if accelerator is not None else None
    )

    def work_of(s: Sizes, layer_count: int, microbatch_count: int) -> StepWork:
        by_layer = weights(segmentation, 0, job.traces[0], Resize(old, s))
        inner, outer = sum(v for layer, v in by_layer.items() if layer >= 0), by_layer.get(-1, 0)
        tokens = s.micro_batch * s.seq * microbatch_count
        parameters = outer + (inner * layer_count / count if count else 0)
        attended = 6.0 * layer_count * s.seq * s.heads * s.head_dim  # 12 · layers · seq · width for a token, half of it as causal
        return StepWork(tokens, tokens * (6.0 * parameters + attended), peak)

    return work_of(old, count, measured_microbatches), work_of(
        new, settings.get("layers", count), settings.get("microbatches", measured_microbatches)
    )
