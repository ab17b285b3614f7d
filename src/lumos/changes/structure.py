"""The structural settings of a change, applied to a layout of measured blocks one after the other: a table with a row for each.

Rows come in an order: what becomes of operators and exchanges first, then how often blocks run, then, once for all settings, what operators
and exchanges take, and at last on which ranks blocks run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from lumos.changes.hardware import check_links_matter, on_accelerator, on_host
from lumos.changes.layout.accumulate import shows_gradients
from lumos.changes.layout.activations import exchanged, stream_ratio
from lumos.changes.layout.change import layers, microbatches, pipeline_stages
from lumos.changes.layout.exchange import replicas
from lumos.changes.layout.parallel.context import context_parallel, sequence_ranks, to_all_keys
from lumos.changes.layout.parallel.experts import expert_parallel
from lumos.changes.layout.parallel.split import Ways, stream_bytes
from lumos.changes.layout.parallel.tensor import tensor_parallel
from lumos.changes.layout.pipeline.recut import PIPELINE_KEYS, cut_anew, recut_as
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
from lumos.plan.profiles import framework_profile
from lumos.vocabulary import DType, Recompute

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lumos.changes.changes import Changes
    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.changes.layout.rates import Rates
    from lumos.changes.machine import Machine
    from lumos.cost.cluster import Cluster
    from lumos.plan.framework import Framework
    from lumos.trace.table import Job


@dataclass(frozen=True, eq=False)
class WantedChange:
    """What a change asks of a recorded job. recorded: its layout. wanted: the settings that are whole numbers. stages: of its pipeline.
    sharing: by how many ranks its sequences are shared, and are to be. framework: with which it is written, where somebody said."""

    recorded: MeasuredLayout
    job: Job
    settings: Mapping[str, str]
    wanted: Mapping[str, int]
    machine: Machine
    stages: int
    sharing: tuple[int, int]
    devices: Devices
    links: Links | None
    framework: Framework | None

    @classmethod
    def of(cls, recorded: MeasuredLayout, job: Job, changes: Changes) -> WantedChange:
        """The same of changes. Raises LumosError where they need a device or links that are not known."""
        graph, settings = recorded.segmentation.graph, changes.settings
        wanted, machine, stages = counts(settings), changes.machine(job, graph), pipeline_stages(graph, job)
        shared = sequence_ranks(recorded, job) if {*SIZE_KEYS, "cp"} & wanted.keys() else 1
        accumulates = "microbatches" in wanted and stages == 1 and shows_gradients(recorded, job)
        priced = {*SIZE_KEYS, "tp", "cp", "ep", "zero", "shard", "precision"} & settings.keys() or accumulates or changes.cluster
        after = machine.accelerator if priced else None
        devices = Devices(None if after is None else machine.recorded.accelerator, after)
        sharing = shared, wanted.get("cp", shared)
        links = _links(changes, machine, wanted)
        return cls(recorded, job, settings, wanted, machine, stages, sharing, devices, links, changes.framework)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that are to be others."""
        return {key: self.wanted[key] for key in SIZE_KEYS if key in self.wanted}

    @cached_property
    def rates(self) -> Rates | None:
        """What exchanges take that the recording does not have; None where device or links are not known."""
        known = self.devices.after is not None and self.links is not None
        return rates_of(self.recorded.segmentation, self.job, self.links, stated=self.machine.stated) if known and self.links else None

    @property
    def ways(self) -> Ways:
        """How its ranks would share layers: as PyTorch does it where PyTorch's own operators share the states of its replicas."""
        if self.framework is not None:
            return Ways(self.framework, sure=True)
        shared = any(trace.named(lambda name: name.startswith("fsdp::")).any() for trace in self.job.traces)
        return Ways(framework_profile("fsdp2") if shared else None)


class SettingRow(NamedTuple):
    """A change of some settings. keys: the settings. apply: what they make of a layout, from what is asked and the job with the shapes that
    it has then, which it needs if `shaped`; else that may be as it was recorded."""

    keys: tuple[str, ...]
    apply: Callable[[MeasuredLayout, WantedChange, Job], MeasuredLayout]
    shaped: bool = False

    def of(self, asked: WantedChange) -> bool:
        """Whether one of the settings changes."""
        return any(key in asked.settings for key in self.keys)


def _sized(layout: MeasuredLayout, asked: WantedChange, _: Job) -> MeasuredLayout:
    """Other sizes, and other ranks that share the sequences."""
    if max(asked.sharing) > 1:
        return context_parallel(layout, asked.job, asked.rates, asked.sizes, asked.sharing)
    return exchanged(resize(layout, asked.job, **asked.sizes), asked.job, asked.sizes, {}) if asked.sizes else layout


def _sharing_layers(layout: MeasuredLayout, asked: WantedChange, _: Job) -> MeasuredLayout:
    ratio, cluster = stream_ratio(asked.job, asked.sizes), asked.links and asked.links.after
    out = tensor_parallel(layout, asked.job, asked.wanted["tp"], cluster, ratio, asked.rates, asked.ways)
    return opened(layout, out, asked.job)


def _replicated(layout: MeasuredLayout, asked: WantedChange, _: Job) -> MeasuredLayout:
    """Other replicas of a job that has some."""
    shared, sharing = asked.sharing
    if asked.machine.alone or ("dp" not in asked.wanted and sharing == shared):
        return layout
    return replicas(layout, asked.job, asked.wanted.get("dp"), asked.machine.fabric, asked.sharing)


def _accumulating(layout: MeasuredLayout, asked: WantedChange, shaped: Job) -> MeasuredLayout:
    """Other microbatches of a job without stages."""
    count = asked.wanted["microbatches"]
    return layout if asked.stages > 1 else microbatches(layout, asked.job, asked.devices.after, count, shaped)


def _sharing_states(layout: MeasuredLayout, asked: WantedChange, shaped: Job) -> MeasuredLayout:
    """Replicas that share their states in another way.

    Raises LumosError as `sharded` does, and where its exchanges would have to be spread over new stages.
    """
    count = asked.wanted.get("dp", 1 if asked.machine.alone else 0) * asked.sharing[1]
    out = sharded(layout, asked.job, shaped, asked.rates, asked.wanted, count or None, asked.framework)
    out = opened(layout, out, asked.job)
    if len(out.assumed) > len(layout.assumed) and cut_anew(asked.settings, asked.stages):
        keys = (key for key in ("zero", "shard") if key in asked.wanted)
        raise LumosError(
            f"--set {' '.join(f'{key}={asked.wanted[key]}' for key in keys)}: its exchanges lie between the recorded passes, which the"
            " other keys of this change put on other stages or in another order, and a stage would exchange for its own layers alone; ask"
            " for this and for the pipeline one by one"
        )
    return out


def _cut(layout: MeasuredLayout, asked: WantedChange, _: Job) -> MeasuredLayout:
    """Other stages, chunks or passes."""
    if not cut_anew(asked.settings, asked.stages):
        return layout

    def between_stages() -> tuple[Cluster, int]:
        nbytes = stream_bytes(asked.job.traces[0]) * stream_ratio(asked.job, asked.sizes)
        return asked.machine.link("pp"), round(nbytes)

    return recut_as(layout, asked.job, asked.settings, asked.stages, between_stages)


def _copied(layout: MeasuredLayout, asked: WantedChange, shaped: Job) -> MeasuredLayout:
    """Replicas of a job of one process, which exchange whole gradients."""
    copies = asked.wanted.get("dp", 1), asked.wanted.get("cp", 1)
    if not asked.machine.alone or max(copies) == 1 or asked.wanted.get("zero", 0) >= 2:
        return layout
    return replicate(layout, asked.job, shaped, copies, asked.machine)


#: What becomes of operators and exchanges.
RESHAPED = (
    SettingRow((*SIZE_KEYS, "cp"), _sized),
    SettingRow(("tp",), _sharing_layers),
    SettingRow(("dp", "cp"), _replicated),
    SettingRow(("ep",), lambda out, of, _: opened(out, expert_parallel(out, of.job, of.rates, of.wanted["ep"], of.sizes), of.job)),
    SettingRow(("precision",), lambda out, of, _: in_precision(out, of.job, of.devices, of.settings["precision"])),
)
#: How often blocks run; the last row places what it adds between the instances of all blocks.
REPEATED = (
    SettingRow(("recompute",), lambda out, of, _: recompute(out, of.job, Recompute(of.settings["recompute"]), gathers_once(out, of.job))),
    SettingRow(("layers",), lambda out, of, shaped: layers(out, shaped, of.wanted["layers"]), shaped=True),
    SettingRow(("microbatches",), _accumulating, shaped=True),
    SettingRow(("zero", "shard"), _sharing_states, shaped=True),
)
#: On which ranks blocks run, once they are priced.
PLACED = (SettingRow((*PIPELINE_KEYS, "microbatches"), _cut), SettingRow(("dp", "cp"), _copied, shaped=True))


def changed_layout(layout: MeasuredLayout, job: Job, changes: Changes) -> MeasuredLayout:
    """The layout with the settings applied."""
    asked, out = WantedChange.of(layout, job, changes), _on_hardware(layout, job, changes)
    out = _applied(out, asked, RESHAPED, job)
    shaped = reshaped(job, out) if any(row.shaped and row.of(asked) for row in (*REPEATED, *PLACED)) else job
    out = _applied(out, asked, REPEATED, shaped)
    out = to_all_keys(reexchange(reprice(out, job, asked.devices), job, asked.links), job, asked.sharing)
    if asked.links is not None and asked.links.differ and not (changes.cluster or changes.settings):
        check_links_matter(layout, out)
    return _applied(out, asked, PLACED, shaped)


def _applied(layout: MeasuredLayout, asked: WantedChange, rows: tuple[SettingRow, ...], shaped: Job) -> MeasuredLayout:
    """The layout with those of the rows applied of which a setting changes."""
    for row in rows:
        if row.of(asked):
            layout = row.apply(layout, asked, shaped)
    return layout


def _on_hardware(layout: MeasuredLayout, job: Job, changes: Changes) -> MeasuredLayout:
    """The layout on the cluster and network that the job is to run on."""
    if changes.cluster and not has_device(layout.segmentation.graph):
        raise LumosError(
            "--cluster: the job ran on CPUs, which does not show how long its operators take on accelerators; use lumos predict"
        )
    if changes.cluster or changes.network:
        machine = changes.machine(job, layout.segmentation.graph)
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
