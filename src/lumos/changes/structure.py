"""The structural settings of a change, applied to a layout of measured blocks one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumos.changes.hardware import check_links_matter, on_accelerator, on_host
from lumos.changes.layout.accumulate import shows_gradients
from lumos.changes.layout.activations import exchanged, stream_ratio
from lumos.changes.layout.change import layers, microbatches, pipeline_stages
from lumos.changes.layout.exchange import replicas
from lumos.changes.layout.parallel.context import context_parallel, sequence_ranks, to_all_keys
from lumos.changes.layout.parallel.experts import expert_parallel
from lumos.changes.layout.parallel.split import stream_bytes
from lumos.changes.layout.parallel.tensor import tensor_parallel
from lumos.changes.layout.pipeline.recut import cut_anew, recut_as
from lumos.changes.layout.precision import computing, in_precision
from lumos.changes.layout.rates import rates_of
from lumos.changes.layout.recomputed import recompute
from lumos.changes.layout.regroup import Links, reexchange
from lumos.changes.layout.replicated import replicate
from lumos.changes.layout.reprice import opened, reprice
from lumos.changes.layout.rescale import Devices
from lumos.changes.layout.reshaped import reshaped
from lumos.changes.layout.resize import SIZE_KEYS, resize
from lumos.changes.layout.sharding.exchanged import gathers_once
from lumos.changes.layout.sharding.sharded import sharded
from lumos.changes.machine import has_device
from lumos.changes.settings import counts
from lumos.errors import LumosError
from lumos.vocabulary import DType, Recompute

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumos.changes.changes import Changes
    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.changes.layout.rates import Rates
    from lumos.changes.machine import Machine
    from lumos.cost.cluster import Cluster
    from lumos.trace.table import Job


def changed_layout(layout: MeasuredLayout, job: Job, changes: Changes) -> MeasuredLayout:
    """The layout with the settings applied: what becomes of operators and exchanges first, then how often blocks run, and at last, once for
    all settings, what operators and exchanges take then."""
    settings = changes.settings
    wanted, machine = counts(settings), changes.machine(job, layout.segmentation.graph)
    resized = {key: wanted[key] for key in SIZE_KEYS if key in wanted}
    shared = sequence_ranks(layout, job) if resized or "cp" in wanted else 1
    stages = pipeline_stages(layout.segmentation.graph, job)
    keys = {"tp", "cp", "ep", "zero", "shard", "precision"}
    accumulates = "microbatches" in settings and stages == 1 and shows_gradients(layout, job)
    needs_costs = bool(resized) or bool(keys & set(settings)) or accumulates or bool(changes.cluster)
    accelerator = machine.accelerator if needs_costs else None
    devices = Devices(None if accelerator is None else machine.recorded.accelerator, accelerator)
    measured, layout = layout, _on_hardware(layout, job, changes, machine)
    links = _links(changes, machine, wanted)
    exchanges = shared > 1 or not {"tp", "cp", "ep", "zero", "shard"}.isdisjoint(wanted)
    rates = rates_of(layout.segmentation, job, links, stated=machine.stated) if exchanges and accelerator and links else None
    if shared > 1 or wanted.get("cp", 1) > 1:
        layout = context_parallel(layout, job, rates, resized, (shared, wanted.get("cp", shared)))
    elif resized:
        layout = resize(layout, job, **resized)
        layout = exchanged(layout, job, resized, {})
    if "tp" in wanted:
        ratio = stream_ratio(job, resized)
        layout = opened(layout, tensor_parallel(layout, job, wanted["tp"], links and links.after, ratio, rates), job)
    if ("dp" in wanted or wanted.get("cp", shared) != shared) and not machine.alone:
        layout = replicas(layout, job, wanted.get("dp"), machine.fabric, (shared, wanted.get("cp", shared)))
    if "ep" in wanted:
        layout = opened(layout, expert_parallel(layout, job, rates, wanted["ep"], resized), job)
    if "precision" in settings:
        layout = in_precision(layout, job, devices, settings["precision"])
    if "recompute" in settings:
        layout = recompute(layout, job, Recompute(settings["recompute"]), gathers_once(layout, job))
    of_weights = {"layers", "microbatches", "zero", "shard", "dp", "cp"} & set(wanted)
    shaped = reshaped(job, layout) if of_weights else job
    if "layers" in wanted:
        layout = layers(layout, shaped, wanted["layers"])
    if "microbatches" in wanted and stages == 1:
        layout = microbatches(layout, job, accelerator, wanted["microbatches"], shaped)
    if "zero" in wanted or "shard" in wanted:  # the last, since what it adds is placed between the instances of all blocks
        replicated = wanted.get("dp", 1 if machine.alone else 0) * wanted.get("cp", shared)
        layout = _sharing_states(layout, (job, shaped), changes, rates, replicated or None)
    layout = reexchange(reprice(layout, job, devices), job, links)
    layout = to_all_keys(layout, job, (shared, wanted.get("cp", shared)))
    if links is not None and links.differ and not (changes.cluster or settings):
        check_links_matter(measured, layout)
    if cut_anew(settings, stages):

        def between_stages() -> tuple[Cluster, int]:
            return machine.link("pp"), round(stream_bytes(job.traces[0]) * stream_ratio(job, resized))

        layout = recut_as(layout, job, settings, stages, between_stages)
    copies = wanted.get("dp", 1), wanted.get("cp", 1)
    if machine.alone and max(copies) > 1 and wanted.get("zero", 0) < 2:
        layout = replicate(layout, job, shaped, copies, machine)
    return layout


def _sharing_states(
    layout: MeasuredLayout, jobs: tuple[Job, Job], changes: Changes, rates: Rates | None, replicas: int | None
) -> MeasuredLayout:
    """The layout of replicas that share their states in another way. jobs: the recorded one, and the same with the shapes that the changed
    one has. replicas: how many there are to be; None where they stay.

    Raises LumosError as `sharded` does, and where its exchanges would have to be spread over new stages.
    """
    wanted, stages = counts(changes.settings), pipeline_stages(layout.segmentation.graph, jobs[0])
    out = opened(layout, sharded(layout, *jobs, rates, wanted, replicas), jobs[0])
    if len(out.assumed) > len(layout.assumed) and cut_anew(changes.settings, stages):
        raise LumosError(
            f"--set {' '.join(f'{key}={wanted[key]}' for key in ('zero', 'shard') if key in wanted)}: its exchanges lie between the"
            " recorded passes, which the other keys of this change put on other stages or in another order, and a stage would exchange for"
            " its own layers alone; ask for this and for the pipeline one by one"
        )
    return out


def _on_hardware(layout: MeasuredLayout, job: Job, changes: Changes, machine: Machine) -> MeasuredLayout:
    """The layout on the cluster and network that the job is to run on."""
    if changes.cluster and not has_device(layout.segmentation.graph):
        raise LumosError(
            "--cluster: the job ran on CPUs, which does not show how long its operators take on accelerators; use lumos predict"
        )
    if changes.cluster or changes.network:
        old, new = machine.recorded, machine.goal
        if "precision" not in changes.settings:
            _check_format(layout, job, new)
        layout = on_accelerator(layout, job, old.accelerator, new.accelerator)
        layout = replace(layout, changes=(*layout.changes, ", ".join(changes.hardware_words)))
        if changes.moves_from(old):
            layout = on_host(layout, changes.host_factor)
    return layout


def _links(changes: Changes, machine: Machine, wanted: Mapping[str, int]) -> Links | None:
    """The links over which the job exchanged and is to exchange; None where they are not known. Replicas on CPUs exchange over those of a
    usual host."""
    if changes.cluster or changes.network or (not {"dp", "cp"}.isdisjoint(wanted) and machine.fabric is not None):
        return Links(machine.recorded, machine.goal)
    return None if machine.known is None else Links(machine.known, machine.known)


def _check_format(layout: MeasuredLayout, job: Job, new: Cluster) -> None:
    """Raise LumosError where the job multiplies in a format that its new accelerator lacks; where that lacks tf32, fp32 stands in."""
    dtype, rates = computing(layout, job), new.accelerator.peak_flops
    if dtype is not None and dtype is not DType.TF32 and rates and dtype not in rates:
        raise LumosError(
            f"--cluster: the job multiplies in {dtype}, for which {new.name} has no rate; it has {', '.join(rates)}"
            " (--set precision asks for another)"
        )
