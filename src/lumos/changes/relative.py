"""Settings that say how many times what was recorded: `layers=x2` is twice the recorded layers, whatever their number.

They become whole numbers once the recording is read, by what its measured blocks show.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from lumos.changes.layout.change import pipeline_stages, recorded_layers, recorded_microbatches
from lumos.changes.layout.exchange import recorded_replicas
from lumos.changes.layout.parallel.context import sequence_ranks
from lumos.changes.layout.pipeline.recorded import recorded_pipeline
from lumos.changes.layout.resize import SIZE_KEYS, sharing_ranks, unknown_size
from lumos.changes.settings import FRAMEWORK, RELATIVE
from lumos.errors import LumosError, UsageError
from lumos.segment.sizes import sizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from lumos.changes.changes import Changes
    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.trace.table import Job


def absolute(changes: Changes, recorded: Callable[[str], int]) -> Changes:
    """The changes with whole numbers in place of factors. recorded: the number of a setting in the recording, 0 where it does not show it.

    Raises LumosError for a setting that the recording does not show and nobody stated, and where what was stated is not what was recorded,
    UsageError for a factor that gives no whole number.
    """
    out, stated = dict(changes.settings), {key: _checked(key, text, recorded) for key, text in changes.base.items() if key != FRAMEWORK}
    for key, text in changes.settings.items():
        factor = RELATIVE.fullmatch(text)
        if factor is None:
            continue
        base = stated[key] if key in stated else recorded(key)
        if not base:
            raise LumosError(f"--set {key}={text}: the recording does not show {key}, so {text} of it is unknown; give the number")
        number = base * Fraction(factor[1])
        if number.denominator != 1:
            raise UsageError(f"--set {key}={text}: {factor[1]} times the recorded {base} is no whole number")
        out[key] = str(number)
    return replace(changes, settings=out) if out != changes.settings else changes


def _checked(key: str, text: str, recorded: Callable[[str], int]) -> int:
    """The number that was stated of a setting. Raises LumosError where the recording shows another."""
    try:
        shown = recorded(key)
    except LumosError:
        shown = 0
    numbers = [int(part.partition("@")[0]) for part in text.split("+")]
    if shown and shown not in numbers and not ("@" in text and key == "layers"):
        raise LumosError(f"--base {key}={text}: the recording shows {key} {shown}; correct --base, or leave it out")
    return shown or numbers[0]


def of_blocks(layout: MeasuredLayout, job: Job) -> Callable[[str], int]:
    """The sizes, layers, microbatches, stages and ranks that measured blocks show."""

    def recorded(key: str) -> int:
        stages, (ranks, shared) = pipeline_stages(layout.segmentation.graph, job), sharing_ranks(layout, job)
        if key == "layers":
            return recorded_layers(layout, job)
        if key == "microbatches":
            return recorded_pipeline(layout, job, stages).microbatches if stages > 1 else recorded_microbatches(layout)
        if key in ("dp", "cp"):
            sharing = sequence_ranks(layout, job)
            return sharing if key == "cp" else recorded_replicas(layout, job) // sharing
        if key in SIZE_KEYS and not getattr(sizes(job.traces[0]), key):
            raise LumosError(f"--set {key}: {unknown_size(key, job.traces[0])}")
        counted: dict[str, int] = {"pp": stages, "tp": ranks, **sizes(job.traces[0])._asdict()}
        return counted.get(key, 0) * (ranks if key in shared else 1)

    return recorded
