"""What a recorded pass of a pipeline consists of, and which recorded one a new one is a copy of.

PyTorch's schedules (torch.distributed.pipelining, `scale_grads`) divide every gradient on the device by the number of microbatches after
the last backward pass. A loop over microbatches without a schedule divides the loss instead, which is one number. Which of the two a script
of one stage does, the recording of a pipeline does not show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lumos.plan.schedules import Pass
from lumos.segment.rank import recordings_of
from lumos.vocabulary import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.changes.layout.measured_layout import Instance, MeasuredLayout
    from lumos.changes.layout.pipeline.recorded import OnePass, RecordedStages, StepOfRank
    from lumos.segment.rank import RankRecording
    from lumos.trace.table import Int64, Job

#: The operators that divide a tensor, or a list of them, in place.
_DIVIDES = ("aten::div_", "aten::_foreach_div_")


def carried(layout: MeasuredLayout) -> frozenset[int]:
    """The tasks that carry messages between stages."""
    facts = layout.segmentation.graph.collectives
    if facts is None:
        return frozenset()
    transfers = np.array([kind.is_transfer for kind in facts.kinds], bool)
    return frozenset(facts.task[transfers[facts.kind]].tolist())


def passes_of_step(recorded: RecordedStages, stage: int, step: StepOfRank) -> dict[tuple[int, int, bool], OnePass]:
    """The passes of a whole recorded step of a stage by microbatch, chunk and direction."""
    actions = recorded.pipeline.actions(stage, recorded.microbatches)
    return {
        (a.microbatch, a.chunk, a.step is not Pass.FORWARD): one
        for a, one in zip(actions, step.passes, strict=True)
    }


def like(microbatch: int, count: int, recorded: int) -> int:
    """The recorded microbatch of which a new one is a copy: the first and the last stay, and those between repeat in turn. count: how many
    there are now; recorded: how many there were."""
    last = recorded - 1
    if microbatch == 0:
        return 0
    return last if microbatch == count - 1 or last < 2 else 1 + (microbatch - 1) % (last - 1)


class PassParts:
    """The instances of a pass: before its layers, in each of them, and after them, in the order in which they ran. What lies between layers
    belongs to the one before it."""

    def __init__(self, layout: MeasuredLayout, items: Sequence[Instance], *, backward: bool) -> None:
        self.backward = backward
        numbers = [layout.pieces[item.piece].label.layer for item in items]
        inside = [i for i, number in enumerate(numbers) if number >= 0]
        low, high = (inside[0], inside[-1] + 1) if inside else (len(items), len(items))
        self.start, self.end = list(items[:low]), list(items[high:])
        self.layers: list[list[Instance]] = []
        previous, ran = -1, set[int]()
        for item, number in zip(items[low:high], numbers[low:high], strict=True):
            if number >= 0 and (number != previous or item.piece in ran):  # another layer, or the same one again
                self.layers.append([])
                previous, ran = number, set()
            ran.add(item.piece)
            self.layers[-1].append(item)

    def of(self, chosen: Sequence[int], *, lead: bool, tail: bool) -> list[Instance]:
        """The pass over the layers `chosen`, by their numbers in the order of the forward pass. lead, tail: whether with what that does
        before and after them."""
        first, last = (tail, lead) if self.backward else (lead, tail)
        inner = [self.layers[len(self.layers) - 1 - n] for n in reversed(chosen)] if self.backward else [self.layers[n] for n in chosen]
        return [*(self.start if first else ()), *(i for layer in inner for i in layer), *(self.end if last else ())]


def divisions(layout: MeasuredLayout, job: Job) -> Int64:
    """The kernels that divide gradients behind the passes of a step, on all ranks, as tasks; none where the trace has no shapes."""
    by_rank = [_of_rank(rank) for rank in recordings_of(layout.segmentation, job)]
    return np.concatenate(by_rank) if by_rank else np.empty(0, np.int64)


def _of_rank(rank: RankRecording) -> Int64:
    known = {gradient.shape for gradient in rank.gradients}
    tasks = rank.work.of(lambda o: o.name in _DIVIDES and o.shapes and o.shapes[0] in known)
    behind: Int64 = tasks[rank.segmentation.phase[tasks] == Phase.OPTIMIZER]
    return behind
