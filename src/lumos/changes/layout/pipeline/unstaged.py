"""A recorded pipeline without stages: the passes of all of them follow one another on one rank.

Every microbatch runs through all recorded layers, forward and then backward, before the next one begins. A pass is made of those of the
stages in their order, without what a stage does before its first and behind its last layer to take and give what it passes on: the
embedding is that of the first stage, the head that of the last. Messages go. The optimizer updates what all stages do, one after the
other. What a step does besides is what the first stage does. The division of gradients by the microbatches, which is that of a schedule, is
left out, and kept at the high end of the interval: without a schedule a script divides the loss.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lumos.changes.layout.pipeline.divided import divisions, without_divisions
from lumos.changes.layout.pipeline.joined import ranks_joined
from lumos.changes.layout.pipeline.parts import PassParts, carried, like, passes_of_step
from lumos.changes.layout.pipeline.recorded import steps_of
from lumos.changes.settings import counts
from lumos.diagnostics import Diagnostic
from lumos.errors import UsageError
from lumos.units import count as counted
from lumos.vocabulary import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lumos.changes.layout.measured_layout import Instance, MeasuredLayout
    from lumos.changes.layout.pipeline.recorded import RecordedStages, StepOfRank
    from lumos.trace.table import Job


def on_one_rank(layout: MeasuredLayout, job: Job, recorded: RecordedStages, settings: Mapping[str, str]) -> MeasuredLayout:
    """The layout of a recorded pipeline as that of one stage, with the microbatches of the settings.

    Raises UsageError where the settings ask for several chunks or an order, which one stage does not have.
    """
    numbers, old = counts(settings), recorded.pipeline
    if numbers.get("vpp", 1) > 1 or {"schedule", "first_layers", "last_layers"} & settings.keys():
        raise UsageError(
            "--set pp=1: one stage has no order of passes, no chunks and no ends; leave out schedule, vpp, first_layers and last_layers"
        )
    wanted = numbers.get("microbatches", recorded.microbatches)
    groups = [[own[replica] for own in recorded.ranks] for replica in range(len(recorded.ranks[0]))]
    names = [step.name for step in layout.segmentation.owners.steps]
    ranks = []
    for group in groups:
        first, *others = [[*steps_of(layout, layout.ranks[position])] for position in group]
        by_name = [{_name(layout, names, step): step for step in steps} for steps in others]
        ranks.append(
            tuple(
                item
                for step in first
                for item in _together(layout, recorded, wanted, [step, *(found.get(_name(layout, names, step)) for found in by_name)])
            )
        )
    out = ranks_joined(layout, groups)
    words = [f"pp = 1 (measured: {old.stages})"]
    words += [f"vpp = 1 (measured: {old.chunks})"] if old.chunks > 1 else []
    words += [f"microbatches = {wanted} (measured: {recorded.microbatches})"] if wanted != recorded.microbatches else []
    text = (
        f"pp = 1: the recording is of {counted(old.stages, 'stage')}; assumed is that one rank runs their layers one after the other, each"
        " microbatch forward and backward before the next"
    )
    divided = divisions(layout, job)
    if len(divided):
        text += (
            "; the recorded schedule divides the gradients by its microbatches, which a script without a schedule does to the loss: this is"
            " left out, and kept at the high end of the interval"
        )
    return replace(
        out,
        ranks=tuple(ranks),
        prices=without_divisions(out.prices, divided),
        dropped=out.dropped | carried(layout),
        open=out.open | set(divided.tolist()),
        shared=out.shared / old.stages,
        changes=(*out.changes, *words),
        diagnostics=(*out.diagnostics, Diagnostic("stages-assumed", text)),
    )


def _name(layout: MeasuredLayout, names: Sequence[str], step: StepOfRank) -> str:
    """The name of a step of a rank; "" outside of all steps."""
    item = next(iter([*step.before, *(i for one in step.passes for i in one.items), *step.after]))
    number = layout.pieces[item.piece].step
    return names[number] if number >= 0 else ""


def _together(layout: MeasuredLayout, recorded: RecordedStages, wanted: int, steps: Sequence[StepOfRank | None]) -> Iterator[Instance]:
    """A step of one rank that does what all stages do. steps: of each stage; None where the recording does not have it. A step that is not
    whole on all stages stays that of the first."""
    first, shown = steps[0], [step for step in steps if step is not None]
    assert first is not None
    yield from first.before
    if len(shown) < len(steps) or any(len(step.passes) != recorded.passes for step in shown):
        yield from (i for one in first.passes for i in one.items)
        yield from first.after
        return
    by_stage = [passes_of_step(recorded, stage, step) for stage, step in enumerate(shown)]
    places = range(recorded.pipeline.places)
    for microbatch in range(wanted):
        source = like(microbatch, wanted, recorded.microbatches)
        inner = source == recorded.microbatches - 1 and microbatch != wanted - 1
        for backward in (False, True):
            for place in reversed(places) if backward else places:
                chunk, stage = divmod(place, recorded.pipeline.stages)
                parts = PassParts(layout, by_stage[stage][source, chunk, backward].items, backward=backward)
                mine = parts.of(range(len(parts.layers)), lead=place == 0, tail=place == places[-1])
                yield from (replace(i, inner=True, later=True) for i in mine) if inner else mine
    for stage, step in enumerate(shown):
        yield from (i for i in step.after if stage == 0 or layout.pieces[i.piece].label.phase == Phase.OPTIMIZER)
