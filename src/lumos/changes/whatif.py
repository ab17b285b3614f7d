"""From a measured job and a list of changes to the answer.

Structural changes are made on a layout of the measured blocks, or on recorded passes; a prediction is made anew. Changes of
durations then apply to the result.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.loop.bounds import LINEAR, size_bounds
from lumos.analyze.loop.steady import Steady, steady
from lumos.analyze.loop.steps import members
from lumos.analyze.task_class import bound_by_arithmetic
from lumos.analyze.trust import Trust, check_sound, together, with_evidence
from lumos.analyze.trust import trust as trust_in
from lumos.changes.answer import Answer, Changed, answer, base_of, loop_ratio, unchanged_tasks
from lumos.changes.certainty import trusted
from lumos.changes.certainty.possible import above_peak_rate, check_size, schedulable, sides_left_out
from lumos.changes.certainty.probe import probe, probe_of_base
from lumos.changes.certainty.unmeasured import asks_for_events, inferred_event_waits, loader_unseen, on_other_hosts
from lumos.changes.durations import Durations, MadeFrom, check_altered, matching, meant_operators
from lumos.changes.layout.accumulate import accumulation_ns, launching
from lumos.changes.layout.capture import capture, wants_graphs
from lumos.changes.layout.change import recorded_layers
from lumos.changes.layout.measured_layout import MeasuredLayout, measured_layout
from lumos.changes.layout.pipeline.recut import PIPELINE_KEYS, as_recorded_cut
from lumos.changes.layout.place import assemble_pieces
from lumos.changes.layout.placed import add_work
from lumos.changes.layout.reshaped import reshaped
from lumos.changes.layout.resize import READ_TWICE, SIZE_KEYS, sizes_of_rank
from lumos.changes.machine import has_device, other_device
from lumos.changes.memory import with_memory, work
from lumos.changes.passes import rearranged
from lumos.changes.predicted import predicted_anew, predicted_job, setting_of
from lumos.changes.settings import check_blocks, counts
from lumos.changes.stated import absolute, by_steps_of_time, check_layers, named_by_setting, of_blocks, with_stated_sizes
from lumos.changes.structure import changed_layout
from lumos.errors import LumosError, UnknownDeviceError
from lumos.graph.joined.one_job import EMULATED
from lumos.graph.loaders import AWAITS_BATCH
from lumos.graph.table import Evidence, Kind
from lumos.segment.rank import recordings_of
from lumos.segment.segment import Cut
from lumos.segment.sizes import Resized, sizes
from lumos.simulation import simulate
from lumos.simulation.durations import with_durations
from lumos.stages import stage
from lumos.trace.operations import is_operations
from lumos.units import count
from lumos.vocabulary import Grade

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.changes.changes import Changes
    from lumos.changes.layout.placed import Launching, Placed
    from lumos.graph.table import Graph
    from lumos.trace.table import Job, Trace


#: What is said where a graph was given, of which nobody knows that it is what the rows of the job give.
_NOT_PROBED = Evidence(
    "not-probed", "a graph was given, so the answer was not asked again of the recording without single rows", Grade.SOUND
)

#: A device for asking whether a change is possible on any.
_ANY = "h100"


@stage("answering the what-if")
def answer_changes(
    job: Job,
    graph: Graph,
    changes: Changes,
    cut: Cut | None = None,
    *,
    trust: Trust | None = None,
    force: bool = False,
    probed: bool = True,
    step_only: bool = False,
) -> Answer:
    """The answer for one set of changes to `graph`, which was built from `job`.

    cut, trust: this job cut into layers, and how far it can be trusted, for callers that ask many what-ifs and need these only once.
    force: answer also where the evidence is unsound. probed: whether to ask the same of the job without a few rows, which cannot be done
    where the graph is not what the job's rows give. step_only: leave out critical paths, work and memory, for callers that want the step,
    its interval and its grade. Raises LumosError where it is and `force` is not given.
    """
    grounds = with_evidence(trust_in(graph) if trust is None else trust, other_device(job, graph, changes.base_cluster))
    check_sound(grounds, "whatif", force=force)
    answered = unchecked_answer(job, graph, changes, cut, step_only=step_only)
    if not changes.repeat:
        grounds = with_evidence(grounds, trusted.in_a_loop(graph, answered, lambda: _in_loop(job, graph, changes, cut, answered)))
    notes = (*answered.diagnostics, *meant_operators(graph, job, changes.durations))
    unknown = {*SIZE_KEYS, "tp", "cp", "ep", "precision"} & set(changes.settings)  # of these the new shapes are
    answered = replace(answered, diagnostics=notes, recorded=answered.recorded or (None if unknown else job))
    answered, hidden = _behind_waits(job, graph, changes, answered)
    answered, unseen = _by_batches(job, answered)
    if job.origin is not None and job.origin.what.startswith(EMULATED.what) and answered.altered and isinstance(answered.job, Steady):
        answered = trusted.reaching(answered, *on_other_hosts(base_of(graph, changes.repeat).figures.loop, answered.job))
    asked_again = _probed(job, graph, changes, answered) if probed else (_NOT_PROBED,)
    grounds = with_evidence(together(grounds, answered.trust), (*unseen, *hidden, *asked_again))
    answered = trusted.no_better_than(trusted.widened(answered, grounds), job.origin)
    check_sound(answered.trust, "whatif", force=force)
    return answered


def _in_loop(job: Job, graph: Graph, changes: Changes, cut: Cut | None, answered: Answer) -> float:
    """The step of a loop of the changed job, as a multiple of that of the base's. answered: without a loop."""
    if not changes.structural and isinstance(answered.job, Steady):
        return loop_ratio(graph, answered.job.loop.graph)
    looped = unchecked_answer(job, graph, replace(changes, repeat=True), cut, step_only=True)
    return looped.outcome.step_time_s / looped.base.step_time_s if looped.base.step_time_s else 1.0


def _behind_waits(job: Job, graph: Graph, changes: Changes, answered: Answer) -> tuple[Answer, tuple[Evidence, ...]]:
    """The answer without calls that wait for the device, and the finding that calls behind them may come to wait, or for less than was
    inferred while they never had to: the step lies anywhere up to the recorded one, and down to that without any of them."""
    durations = changes.durations
    if changes.structural or not any((matching(graph, job, glob) & (graph.kind == Kind.RETURN)).any() for glob in durations.drops):
        return answered, ()
    steps = [answered.base.step_time_s] if asks_for_events(graph) else []
    if events := inferred_event_waits(graph, job):
        without = replace(changes, durations=durations.beside(Durations(drops=events)))
        steps.append(unchecked_answer(job, graph, without, step_only=True).outcome.step_time_s)
    message = "what is left out waited for the device, so that the recording does not show what calls after it then wait for"
    return trusted.read_otherwise(answered, "waits-behind", message, *steps)


def _by_batches(job: Job, answered: Answer) -> tuple[Answer, tuple[Evidence, ...]]:
    """The answer, which keeps waits for batches of other processes, and the finding that these may never have waited for the loop: then it
    takes no less than it took, and than with batches that are always ready. Where they always were, a faster step may have to wait."""
    if not answered.altered or not isinstance(answered.job, Steady):
        return answered, ()
    graph, base_s = answered.job.loop.graph, answered.base.step_time_s
    waits = graph.named(AWAITS_BATCH.__eq__)
    if not waits.any():
        message = loader_unseen(job, base_s, answered.outcome.step_time_s)
        return trusted.read_otherwise(answered, "loader-unseen", message, base_s) if message else (answered, ())
    ready = replace(answered.job, timeline=simulate(with_durations(graph, np.where(waits, 0, graph.duration))))
    message = "the loop waits for batches of processes that are not recorded, which may have worked all the time, or waited for it as well"
    return trusted.read_otherwise(answered, "batches-awaited", message, max(1e-9 * ready.step_time_ns, base_s))


def _probed(job: Job, graph: Graph, changes: Changes, answered: Answer) -> tuple[Evidence, ...]:
    """How far the answer depends on single rows of the recording (`certainty.probe`)."""
    if changes.structural:
        again = answered.job.loop.graph if isinstance(answered.job, Steady) else None
        return probe_of_base(job, owners := members(graph), steady(owners), again)
    base, outcome = answered.base.step_time_s, answered.outcome
    if not base or not answered.altered or changes.repeat:
        return ()
    half = (outcome.step_time_high_s - outcome.step_time_low_s) / 2 / base
    owners, figures, *_ = base_of(graph, False)
    its_base = owners, figures.loop
    return probe(job, its_base, outcome.step_time_s / base, half, lambda probed_job, its: changes.durations.apply(its, probed_job))


def unchecked_answer(job: Job, graph: Graph, changes: Changes, cut: Cut | None = None, *, step_only: bool = False) -> Answer:
    """The same without a look at the evidence. Where the change needs to know a device that is not known, but is refused whatever that is,
    the error is the refusal and not the question for the device."""
    ran = predicted_job(job) if changes.structural else None
    if ran is not None:
        return predicted_anew(ran, job, graph, absolute(changes, partial(setting_of, ran)))
    changes = named_by_setting(job, changes)
    stated = with_stated_sizes(job, changes)
    cut = Cut(stated, graph) if cut is None or stated is not job else cut
    done = by_steps_of_time(stated, lambda: cut.segmentation, changes)
    try:
        answered = _changed_job(stated, graph, done, cut, step_only=step_only)
    except UnknownDeviceError:
        _changed_job(stated, graph, replace(done, base_cluster=_ANY), cut)
        raise
    if done is changes:
        return answered
    return replace(answered, changes=tuple(re.sub("^layers =", "seq =", words) for words in answered.changes))


def _changed_job(job: Job, graph: Graph, changes: Changes, cut: Cut, *, step_only: bool = False) -> Answer:
    """The answer for one set of changes."""
    if not changes.structural:
        return _of_durations(job, graph, changes, cut, step_only=step_only)
    if is_operations(job.traces[0]):
        return _passes(job, graph, changes)
    check_blocks(changes.settings)
    graphs = wants_graphs(changes.settings, graph)
    segmentation = cut.segmentation
    check_layers(job, segmentation, changes)
    _whole_pipeline(job, graph, changes.settings)
    measured = measured_layout(segmentation)
    changes = absolute(changes, of_blocks(measured, job))
    counted = {"layers": segmentation.layers, "microbatches": 1 + max(p.label.microbatch for p in segmentation.pieces)}
    check_size(len(graph), counts(changes.settings), counted)
    check_size(len(graph), counts(changes.settings), {"pp": 1})
    resized = {key: value for key, value in counts(changes.settings).items() if key in SIZE_KEYS}
    layout = changed_layout(measured, job, changes)
    same = as_recorded_cut(segmentation, job, changes.settings)
    launches = _launching(measured, job, layout) if has_device(graph) and same is None else ()
    built = _built(job, layout, changes, launches, graphs=graphs)
    changed = built.changed
    resized_here = sizes_of_rank(measured, job, resized)
    done = () if step_only else work(measured, job, changes, resized_here, layout.shared)
    with schedulable(", ".join(changed.changes)):
        answered = answer(graph, changed, *done, repeat=changes.repeat, step_only=step_only)
    answered = trusted.as_far_as_reached(answered, held=built.held)
    answered = replace(answered, trust=with_evidence(answered.trust, sides_left_out(built.placed.graph, changed.graph)))
    if {"layers", "recompute"} & set(changes.settings):
        how = f"the recording shows {count(segmentation.layers, 'layer')}, by {segmentation.evidence.get('forward', 'nothing')}"
        answered = trusted.less_sure(answered, "layers-uncertain", how, segmentation.confidence)
    answered = trusted.as_far_as_rebuilt(answered, layout, measured) if changes.settings else answered
    answered = replace(answered, recorded=replace(job, traces=_of_ranks(reshaped(job, layout), layout)))
    if not step_only:
        answered = with_memory(answered, job, lambda: segmentation, *_allocating(measured, job, layout, changes))
    answered = trusted.as_far_as_arranged(answered, changes.settings)
    if same is not None:
        answered = trusted.as_far_as_reproduced(answered, graph, same, repeat=changes.repeat)
    recorded_sizes = sizes(job.traces[0])._asdict() if resized else {}
    shown = {**recorded_sizes, **counted, "layers": recorded_layers(measured, job)}
    return _sized(answered, changes, shown, {**counts(changes.settings), **resized_here}, 1e-9 * accumulation_ns(layout))


def _of_durations(job: Job, graph: Graph, changes: Changes, cut: Cut, *, step_only: bool) -> Answer:
    """The answer where durations alone change."""
    altered = changes.durations.apply(graph, job)
    check_altered(graph, altered, job, changes.durations)
    answered = answer(graph, unchanged_tasks(graph, altered, changes.durations.described()), repeat=changes.repeat, step_only=step_only)
    known = changes.machine(job, graph).known
    impossible = above_peak_rate(graph, altered, job, known.accelerator if known is not None else None, answered.base.step_time_s)
    answered = answered if step_only else with_memory(answered, job, lambda: cut.segmentation, (None,) * len(job.traces))
    return replace(answered, trust=with_evidence(answered.trust, (*impossible, *sides_left_out(graph, altered))))


class _Built(NamedTuple):
    """A changed job that was put together. placed: before its durations change besides. held: whether the interval of any task holds what
    the recording leaves open."""

    changed: Changed
    placed: Placed
    held: bool


def _built(job: Job, layout: MeasuredLayout, changes: Changes, launches: Sequence[Launching], *, graphs: bool) -> _Built:
    """The job of a layout, put together, with changed durations. launches: what launching added work takes the CPU of each rank. graphs:
    whether its passes are captured as CUDA graphs."""
    placed, durations = assemble_pieces(layout), changes.durations
    modelled = np.isin(placed.source, np.array(sorted(layout.modelled), np.int64))
    words = layout.changes
    if graphs:
        placed, captured = capture(placed, layout.segmentation)
        modelled |= captured
        words = (*words, "cuda_graphs = on")
    added = len(placed.source)
    for assumed in layout.assumed:
        placed = add_work(placed, tuple(assumed(placed)), launches)
    modelled = np.append(modelled, np.ones(len(placed.source) - len(modelled), bool))
    left_open = np.isin(placed.source, np.array(sorted(layout.open), np.int64)) | (np.arange(len(placed.source)) >= added)
    new = replace(job, traces=_of_ranks(job, layout))
    altered = durations.apply(placed.graph, new, MadeFrom(layout.segmentation.graph, job, placed.source))
    before = placed.graph.duration
    factor = np.divide(altered.duration, before, out=np.ones(len(before)), where=before > 0)  # what is left out may remain at the high end
    changed = Changed(
        graph=altered,
        owners=placed.owners,
        low=np.minimum(np.rint(placed.low * factor).astype(np.int64), altered.duration),
        high=np.maximum(np.rint(placed.high * factor).astype(np.int64), altered.duration),
        scaled=((layout.prices.best[placed.source] != 1) & (placed.source >= 0)) | (altered.duration != placed.graph.duration),
        modelled=modelled,
        changes=(*words, *durations.described()),
        diagnostics=layout.diagnostics,
    )
    held = bool((left_open & (changed.low < changed.high)).any())
    together = left_open | (placed.graph.kind == Kind.COLLECTIVE) | bool(changes.cluster)  # the same links, or rates of one device
    if "precision" in changes.settings:
        together |= bound_by_arithmetic(placed.graph)
    return _Built(changed.with_separate_errors(together), placed, held)


def _allocating(
    measured: MeasuredLayout, job: Job, layout: MeasuredLayout, changes: Changes
) -> tuple[tuple[Resized | None, ...], float, bool]:
    """What a change does to memory: the sizes of each rank, how many times as many layers, and whether it does nothing else."""
    of_ranks = [(trace, sizes(trace), layout.sizes[i] if layout.sizes else sizes(trace)) for i, trace in enumerate(job.traces)]
    resized = tuple(Resized(trace, old, new) if old != new else None for trace, old, new in of_ranks)
    times = int(changes.settings["layers"]) / recorded_layers(measured, job) if "layers" in changes.settings else 1.0
    return resized, times, set(changes.settings) <= {*SIZE_KEYS, "layers", "microbatches"}


def _of_ranks(job: Job, layout: MeasuredLayout) -> tuple[Trace, ...]:
    """The trace of which each rank of the layout is a copy: stages may share a recording."""
    return tuple(job.traces[rank] for rank in layout.recorded)


def _launching(measured: MeasuredLayout, job: Job, layout: MeasuredLayout) -> tuple[Launching, ...]:
    """What launching work takes the CPU of every rank of the layout. measured: the layout before the change."""
    if not layout.assumed:
        return ()
    by_rank = [launching(rank) for rank in recordings_of(measured.segmentation, job)]
    return tuple(by_rank[i] for i in layout.recorded)


def _passes(job: Job, graph: Graph, changes: Changes) -> Answer:
    """The answer for a recording of passes."""
    if changes.cluster or changes.network:
        raise LumosError(f"{job.traces[0].path} records passes, not what they consist of: --cluster and --network cannot change them")
    changed = rearranged(job, changes.settings)
    altered = changes.durations.apply(changed.graph, job)
    factor = altered.duration / np.maximum(changed.graph.duration, 1)
    answered = answer(
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
    return trusted.as_far_as_arranged(answered, changes.settings)


def _whole_pipeline(job: Job, graph: Graph, settings: Mapping[str, str]) -> None:
    """Raise LumosError where layers, microbatches or tensor-parallel ranks are to change but traces of some pipeline stages are missing."""
    facts = graph.collectives
    transfers = facts is not None and any(facts.kinds[k].is_transfer for k in set(facts.kind.tolist()))
    changed = [key for key in ("layers", "microbatches", "tp", *PIPELINE_KEYS) if key in settings]
    if transfers and job.world > len(job.traces) and changed:
        raise LumosError(
            f"--set {changed[0]}: the traces are {len(job.traces)} of {job.world} ranks and pass activations to others, so they show"
            " only a part of the model; give at least one rank of every pipeline stage"
        )


def _sized(answered: Answer, changes: Changes, recorded: Mapping[str, int], wanted: Mapping[str, int], added_s: float = 0.0) -> Answer:
    """The answer, with the finding that it is beyond what the changed sizes and counts allow, where nothing else changes.

    recorded, wanted: sizes and counts by key, 0 where a recording does not show one. added_s: what accumulating the gradients of more
    microbatches adds to a step, seconds.
    """
    alone = not (changes.cluster or changes.network or changes.durations != Durations())
    if not alone or not all(recorded.get(key) for key in changes.settings):
        return answered
    linear = LINEAR if all(note.code != READ_TWICE for note in answered.diagnostics) else ()
    steps = answered.base.step_time_s, answered.outcome.step_time_s - added_s
    beyond = size_bounds(*steps, recorded, {key: wanted[key] for key in changes.settings}, linear)
    return replace(answered, trust=with_evidence(answered.trust, beyond)) if beyond else answered
