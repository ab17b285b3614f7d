"""Gathers of parameters and scatters of gradients, as PyTorch's FSDP2 makes them for every layer, and the copies around them."""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.changes.layout.measured_layout import by_repetition
from lumos.changes.layout.placed import AddedTimes, Addition
from lumos.changes.layout.replicated import gradient_bytes
from lumos.graph.table import Kind
from lumos.segment.rank import recordings_of
from lumos.vocabulary import CollectiveKind, Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumos.changes.layout.measured_layout import Instance, MeasuredLayout
    from lumos.changes.layout.placed import Placed
    from lumos.changes.layout.rates import Rates
    from lumos.trace.table import Job


class Unit(NamedTuple):
    """What the exchanges of one layer, or of all that is outside (-1), take. gather: with the copy of the rank's own part into place.
    total: the sum of the rank's part over all sets of ranks that share their states; None where these are one."""

    gather: AddedTimes
    unpack: AddedTimes
    pack: AddedTimes
    scatter: AddedTimes
    total: AddedTimes | None


class Sharing(NamedTuple):
    """How replicas share their states: `shards` of them, `apart` ranks from each other, in each of `sets`."""

    shards: int
    sets: int
    apart: int

    def total(self, nbytes: int, rates: Rates) -> AddedTimes | None:
        """What it takes to add up a rank's part of so many bytes over all sets; None where there is one."""
        part, apart = nbytes // self.shards, self.apart * self.shards
        return rates.exchange(CollectiveKind.ALL_REDUCE, self.sets, part, apart) if self.sets > 1 else None

    def add_total(
        self, rank: int, time: AddedTimes, after: int, before: tuple[int, ...], instance: int, follows: tuple[int, ...] = ()
    ) -> Addition:
        """The exchange that adds up a rank's part over all sets."""
        name, lane, apart = "all_reduce of gradients (assumed)", "assumed all_reduce", self.apart * self.shards
        return Addition(name, rank, lane, time, (after,), before, instance, follows, self.sets, apart)


def units_of(layout: MeasuredLayout, job: Job, sharing: Sharing, rates: Rates) -> list[dict[int, Unit]]:
    """What the exchanges of every layer take, by position of the rank."""
    out = []
    for rank in recordings_of(layout.segmentation, job):
        units = {}
        for layer, nbytes in gradient_bytes(rank).items():
            copied = rates.copy(nbytes)
            gather, scatter = (
                rates.exchange(kind, sharing.shards, nbytes, sharing.apart)
                for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
            )
            part = rates.copy(nbytes // sharing.shards)
            gather = AddedTimes(*map(sum, zip(part, gather, strict=True)))
            units[layer] = Unit(gather, copied, copied, scatter, sharing.total(nbytes, rates))
        out.append(units)
    return out


class _Run(NamedTuple):
    """A pass over one layer, or over what lies before, between or after layers (-1). first, last: its tasks on the device."""

    layer: int
    phase: Phase
    inner: bool
    first: int
    last: int
    instance: int


class _Additions:
    """The additions so far, and the rank that they are of."""

    def __init__(self, sharing: Sharing) -> None:
        self.all: list[Addition] = []
        self.rank, self.sharing = -1, sharing

    def add(
        self, what: str, time: AddedTimes, after: tuple[int, ...], before: tuple[int, ...], run: _Run, follows: tuple[int, ...] = ()
    ) -> int:
        """Add a copy on the device, or an exchange between the replicas; returns its position."""
        kind = what.split()[0]
        copies, lane = kind == "copy", f"assumed {'copies' if kind == 'copy' else kind}"
        group, apart = (1, 1) if copies else (self.sharing.shards, self.sharing.apart)
        numbers = run.instance, follows, group, apart, int(copies), int(not copies)
        self.all.append(Addition(f"{what} (assumed)", self.rank, lane, time, after, before, *numbers))
        return len(self.all) - 1


class Added(NamedTuple):
    """Which exchanges the recording does not have: gathers for forward passes, gathers for backward passes, scatters of gradients."""

    forward: bool
    backward: bool
    scatters: bool


def gathers(
    layout: MeasuredLayout, units: list[dict[int, Unit]], sharing: Sharing, added: Added, placed: Placed
) -> Iterator[Addition]:
    """The exchanges of FSDP2 in every step, as far as they are to be added."""
    out = _Additions(sharing)
    for rank, runs in enumerate(_runs(layout, placed)):
        unpacked: tuple[int, ...] = ()
        out.rank = rank
        for before, run, following in zip([None, *runs[:-1]], runs, [*runs[1:], None], strict=True):
            unit = units[rank].get(run.layer)
            if unit is None or run.phase not in (Phase.FORWARD, Phase.BACKWARD):
                continue
            begins = run.phase == Phase.FORWARD and (before is None or before.phase not in (Phase.FORWARD, Phase.BACKWARD))
            if (added.forward if run.phase == Phase.FORWARD else added.backward) and (run.layer >= 0 or begins):
                after = (before.last,) if before is not None else ()
                updated = after if begins else ()
                got = out.add("all_gather of parameters", unit.gather, updated, (run.first,), run, unpacked)
                unpacked = (out.add("copy of parameters", unit.unpack, after, (run.first,), run, (got,)),)
            ends = following is None or following.phase != Phase.BACKWARD
            if added.scatters and run.phase == Phase.BACKWARD and not run.inner and (run.layer >= 0 or ends):
                then = (following.first,) if following is not None else ()
                packed = out.add("copy of gradients", unit.pack, (run.last,), then, run)
                waiting = then if ends else ()
                got = out.add("reduce_scatter of gradients", unit.scatter, (run.last,), waiting, run, (packed,))
                if unit.total is not None:
                    out.all.append(sharing.add_total(rank, unit.total, run.last, waiting, run.instance, (got,)))
    return iter(out.all)


def _runs(layout: MeasuredLayout, placed: Placed) -> list[list[_Run]]:
    """The passes over single layers of every rank, in order."""
    on_device = np.flatnonzero((placed.graph.kind == Kind.KERNEL) & (placed.source >= 0))
    tasks: dict[int, list[int]] = defaultdict(list)
    for task, instance in zip(on_device.tolist(), placed.instance[on_device].tolist(), strict=True):
        tasks[instance].append(task)
    out, number = [], 0
    for items in layout.ranks:
        numbered = list(enumerate(items, number))
        number += len(items)
        runs: list[_Run] = []
        for key, mine in _over_layers(layout, numbered):
            work = [task for n, _ in mine for task in tasks[n]]
            if work:
                runs.append(_Run(key.layer, key.phase, mine[-1][1].inner, work[0], work[-1], mine[-1][0]))
        out.append(runs)
    return out


class _Key(NamedTuple):
    """What the instances of one pass over one layer share. Recomputation is part of the backward pass, which has gathered for it."""

    step: int
    phase: Phase
    layer: int
    microbatch: int


def _over_layers(layout: MeasuredLayout, numbered: Iterable[tuple[int, Instance]]) -> Iterator[tuple[_Key, list[tuple[int, Instance]]]]:
    """The numbered instances of a rank by the passes over single layers, in order."""
    for key, group in groupby(numbered, key=lambda e: _key(layout, e[1])):
        for mine in by_repetition(group) if key.layer >= 0 else [list(group)]:
            yield key, mine


def _key(layout: MeasuredLayout, item: Instance) -> _Key:
    piece = layout.pieces[item.piece]
    label = piece.label
    again = label.phase == Phase.RECOMPUTE or item.thread_of >= 0
    return _Key(piece.step, Phase.BACKWARD if again else label.phase, label.layer, label.microbatch)
