"""What a change of settings rests on: a reading of the recording, which must be unique, or stated by the user (`--base`).

Where a name can mean several things in a recording, such as `seq` beside two lengths, or where what repeats need not be layers, the answer
is a question (`QuestionError`) that lists them by names of their own. A setting that says how many times what was recorded, such as
`layers=x2`, becomes a whole number by what the measured blocks show.
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
from lumos.changes.settings import AXIS, FRAMEWORK, RELATIVE
from lumos.errors import LumosError, Meaning, QuestionError, UsageError
from lumos.segment.rank import recordings_of
from lumos.segment.readings import SHARED, reading_of_layers, readings_of_sizes
from lumos.segment.sizes import sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lumos.changes.changes import Changes
    from lumos.changes.layout.measured_layout import MeasuredLayout
    from lumos.segment.readings import Reading
    from lumos.segment.segment import Segmentation
    from lumos.trace.table import Job, Trace

#: Joins the names of readings that a setting means together.
SEVERAL_AXES = "+"


def named_by_setting(job: Job, changes: Changes) -> Changes:
    """The changes with settings in place of axes: what is set of `512@attention.0` is the setting that can mean that axis, stated to mean
    it.

    Raises LumosError where the recording has no such axis, or a setting is given twice so.
    """
    own = [key for key in changes.settings if AXIS.fullmatch(key)]
    if not own:
        return changes
    settings, base = dict(changes.settings), dict(changes.base)
    for name in own:
        meant = next((key for key, readings in readings_of_sizes(job.traces[0]).items() if any(r.name == name for r in readings)), None)
        if meant is None:
            known = [r.name for readings in readings_of_sizes(job.traces[0]).values() for r in readings]
            raise LumosError(f"--set {name}: {job.traces[0].path} has no axis of that name; it has {', '.join(known) or 'none'}")
        if meant in settings or base.get(meant, name) != name:
            raise LumosError(f"--set {name}={settings[name]}: {meant} is said otherwise as well; give one of them")
        settings[meant], base[meant] = settings.pop(name), name
    return replace(changes, settings=settings, base=base)


def with_stated_sizes(job: Job, changes: Changes) -> Job:
    """The job whose traces say which axes the changed sizes mean. It is the same job where that is certain.

    Raises QuestionError where a changed size can mean several axes and nothing was stated, LumosError where what was stated is none of
    them.
    """
    known = readings_of_sizes(job.traces[0]) if {*changes.settings, *changes.base} & set(SIZE_KEYS) else {}
    said: dict[str, list[str]] = {}
    for key, readings in known.items():
        if key in changes.base and len(readings) > 1:
            said[key] = [reading.name for reading in _meant(key, readings, changes.base[key])]
        elif key in changes.settings and len(readings) > 1:
            raise _question(key, readings, f"--set {key}={changes.settings[key]}: {key} can be {_listed(readings)}")
    return replace(job, traces=tuple(_stating(trace, said) for trace in job.traces)) if said else job


def _stating(trace: Trace, said: Mapping[str, Sequence[str]]) -> Trace:
    """The trace that says which axes sizes mean, by the names of their readings. Where it has none of those, it says nothing."""
    known = readings_of_sizes(trace)
    means = {key: tuple(a for r in known.get(key, ()) if r.name in names for a in r.axes) for key, names in said.items()}
    return replace(trace, stated={key: axes for key, axes in means.items() if axes})


def by_steps_of_time(job: Job, segmentation: Callable[[], Segmentation], changes: Changes) -> Changes:
    """The changes with layers in place of a sequence, where no axis is one and what repeats with one set of weights is a loop over time: as
    many more steps of it are as many more of what repeats."""
    if "seq" not in changes.settings or "layers" in changes.settings or "seq" in readings_of_sizes(job.traces[0]):
        return changes
    reading = reading_of_layers(recordings_of(segmentation(), job)[0])
    if reading is None or reading.why != SHARED:
        return changes
    settings = {"layers" if key == "seq" else key: value for key, value in changes.settings.items()}
    return replace(changes, settings=settings, base={**changes.base, "layers": changes.base.get("seq", reading.name)})


def check_layers(job: Job, segmentation: Segmentation, changes: Changes) -> None:
    """Raise QuestionError where a number of layers is to change, or they are to be recomputed, and what repeats need not be layers."""
    asked = [key for key in ("layers", "recompute", "pp", "vpp", "first_layers", "last_layers") if key in changes.settings]
    reading = reading_of_layers(recordings_of(segmentation, job)[0]) if asked and "layers" not in changes.base else None
    if reading is not None and reading.why:
        text = (
            f"--set {asked[0]}={changes.settings[asked[0]]}: what repeats {reading.value} times in a forward pass may be no layers, since"
            f" {reading.why} ({reading.operators[0]})"
        )
        raise _question("layers", (reading,), text)


def _meant(key: str, readings: Sequence[Reading], text: str) -> list[Reading]:
    """The readings that a statement means: by their names, or by a number that only one has."""
    out = []
    for word in text.split(SEVERAL_AXES):
        fitting = [reading for reading in readings if word.strip() in (reading.name, str(reading.value))]
        if not fitting:
            raise LumosError(f"--base {key}={text}: the recording shows {key} as {_listed(readings)}; say one of them, or leave --base out")
        if len(fitting) > 1:
            raise _question(key, fitting, f"--base {key}={text}: {len(fitting)} axes are {text} long, {_listed(fitting)}")
        out += fitting
    return out


def _question(key: str, readings: Sequence[Reading], text: str) -> QuestionError:
    candidates = tuple(Meaning(reading.name, reading.value, reading.operators) for reading in readings)
    return QuestionError(f"{text}; say which with --base {key}={candidates[0].name}", key, candidates)


def _listed(readings: Sequence[Reading]) -> str:
    return ", or ".join(f"{reading.name} ({'; '.join(reading.operators)})" for reading in readings)


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
