"""The structural settings of a change, applied to a layout of measured blocks one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.errors import LumosError
from lumos.vocabulary import Recompute
from lumos.whatif.hardware import check_links_matter, on_cluster, on_host
from lumos.whatif.layout.activations import exchanged, stream_ratio
from lumos.whatif.layout.change import layers, microbatches, pipeline_stages, recompute
from lumos.whatif.layout.context import context_parallel, sequence_ranks
from lumos.whatif.layout.exchange import replicas
from lumos.whatif.layout.experts import expert_parallel
from lumos.whatif.layout.number_format import in_precision
from lumos.whatif.layout.pipeline.recut import recut_as
from lumos.whatif.layout.pipeline.stages import pipelined, wanted_pipeline
from lumos.whatif.layout.resize import SIZE_KEYS, resize
from lumos.whatif.layout.sharding.exchanged import gathers_once
from lumos.whatif.layout.sharding.sharded import sharded
from lumos.whatif.layout.tensor import tensor_parallel
from lumos.whatif.machine import has_device
from lumos.whatif.settings import counts

if TYPE_CHECKING:
    from lumos.trace.table import Job
    from lumos.whatif.changes import Changes
    from lumos.whatif.layout.measured_layout import MeasuredLayout


def changed_layout(layout: MeasuredLayout, job: Job, changes: Changes) -> MeasuredLayout:
    """The layout with the settings applied: sizes first, then how often blocks run."""
    settings = changes.settings
    wanted, machine = counts(settings), changes.machine(job, layout.segmentation.graph)
    resized = {key: wanted[key] for key in SIZE_KEYS if key in wanted}
    shared = sequence_ranks(layout, job) if resized or "cp" in wanted else 1
    stages = pipeline_stages(layout.segmentation.graph, job)
    keys = {"tp", "cp", "ep", "zero", "precision"}
    needs_costs = bool(resized) or bool(keys & set(settings)) or ("microbatches" in settings and stages == 1)
    accelerator = machine.accelerator if needs_costs else None
    if shared > 1 or wanted.get("cp", 1) > 1:
        layout = context_parallel(layout, job, accelerator, resized, (shared, wanted.get("cp", shared)), machine.known)
    elif resized:
        layout = resize(layout, job, accelerator, **resized)
        layout = exchanged(layout, job, machine.known, stream_ratio(job, resized), {})
    if "tp" in wanted:
        layout = tensor_parallel(layout, job, accelerator, wanted["tp"], machine.known, stream_ratio(job, resized))
    if ("dp" in wanted or wanted.get("cp", shared) != shared) and not machine.alone:
        layout = replicas(layout, job, wanted.get("dp"), machine.fabric, (shared, wanted.get("cp", shared)))
    if "ep" in wanted:
        layout = expert_parallel(layout, job, accelerator, wanted["ep"], machine.known, stream_ratio(job, resized))
    if "zero" in wanted:
        layout = sharded(layout, job, accelerator, wanted["zero"], machine.known)
    if changes.cluster and not has_device(layout.segmentation.graph):
        raise LumosError(
            "--cluster: the job ran on CPUs, which does not show how long its operators take on accelerators; use lumos predict"
        )
    if changes.cluster or changes.network:
        old = machine.recorded
        before, new = layout, machine.target(old) or old
        layout = on_cluster(before, job, old, new, ", ".join(changes.hardware_words))
        if new != old and not (changes.cluster or settings):
            check_links_matter(before, layout)
        if changes.moves_from(old):
            layout = on_host(layout, changes.host_factor)
    if "precision" in settings:
        layout = in_precision(layout, job, accelerator, settings["precision"])
    if "recompute" in settings:
        layout = recompute(layout, Recompute(settings["recompute"]), gathers_once(layout, job))
    if "layers" in wanted:
        layout = layers(layout, job, wanted["layers"])
    if stages > 1:
        return recut_as(layout, job, settings, stages)
    if "microbatches" in wanted:
        layout = microbatches(layout, job, accelerator, wanted["microbatches"])
    pipeline = wanted_pipeline(settings)
    if pipeline is not None:
        layout = pipelined(layout, job, pipeline, machine.link("pp"), stream_ratio(job, resized))
    return layout
