"""The fitted numbers: few per model, accelerator and dtype, in `data/coefficients.toml`, written by tools/fit.py.

Each set carries its 80 % interval (ratios measured / modelled of rows held out of the fit), how it did on them, and the
range of inputs it saw. Every coefficient is dimensionless or a time, so a set applies to any accelerator's peak rates:
`generic` sets are fitted over all accelerators together and serve those that have none of their own.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lumos.cost.cluster import DATA, Accelerator
from lumos.cost.estimate import MODELLED, SCALED, Bound, Estimate, Float64, nanoseconds
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError

GENERIC = "generic"
#: An extrapolated answer's interval is wider by this power: twice as far on the logarithmic scale.
EXTRAPOLATED_SPREAD = 2.0


class Coefficients(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fitted set. `values`: the model's own; `interval`: (low, high) ratios; `seen`: (min, max) of each input."""

    values: dict[str, float | list[float]]
    interval: tuple[float, float]
    seen: dict[str, tuple[float, float]] = {}
    #: measured / modelled over the trace that the set was calibrated on; every time is multiplied by it
    ratio: float = 1.0
    #: rows fitted and held out, and median and 90th percentile of |error| over the held-out ones
    rows: int = 0
    held_out_rows: int = 0
    median_error: float | None = None
    p90_error: float | None = None

    @property
    def count(self) -> int:
        """Numbers fitted: the values and the two of the interval."""
        return sum(len(v) if isinstance(v, list) else 1 for v in self.values.values()) + 2


#: model name ("gemm") → accelerator name or "generic" → variant (dtype, kernel, …) → set
Book = Mapping[str, Mapping[str, Mapping[str, Coefficients]]]


@cache
def shipped() -> Book:
    """The coefficients that ship with Lumos."""
    return read(DATA / "coefficients.toml")


def read(path: Path) -> Book:
    """Coefficients of a file that `lumos calibrate` or tools/fit.py wrote. Raises LumosError where it is not one."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert(table, dict[str, dict[str, dict[str, Coefficients]]])
    except OSError as error:
        raise LumosError(f"{path}: cannot be read ({error.strerror}); write it with lumos calibrate") from error
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise LumosError(f"{path}: not a file of coefficients: {error}; write it with lumos calibrate") from error


def write(book: Book, path: Path, heading: str) -> None:
    """The book as TOML, sorted, six significant digits; `heading` becomes its comment.

    All or nothing: a file of before stays whole until the new one is. Raises LumosError where it cannot be written.
    """
    lines = [f"# {line}".rstrip() for line in heading.splitlines()]
    for model in sorted(book):
        for accelerator in sorted(book[model]):
            for variant in sorted(book[model][accelerator]):
                lines += ["", f'[{model}."{accelerator}"."{variant}"]', *_entries(book[model][accelerator][variant])]
    beside = path.with_name(f".{path.name}.{os.getpid()}") if path.is_file() or not path.exists() else path  # a device is no file
    try:
        try:
            beside.write_text("\n".join(lines) + "\n", encoding="utf-8")
            if beside != path:
                beside.replace(path)
        finally:
            if beside != path:
                beside.unlink(missing_ok=True)
    except OSError as error:
        raise LumosError(f"{path}: cannot be written ({error.strerror}); name a file in a folder that exists and is writable") from error


def _entries(entry: Coefficients) -> list[str]:
    fields = [(k, v) for k, v in msgspec.structs.asdict(entry).items() if v is not None]
    return [f"{key} = {_toml(value)}" for key, value in fields]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float):
        text = f"{value:.6g}"
        return text if any(c in text for c in ".en") else text + ".0"
    return str(value)


def overlay(base: Book, own: Book) -> Book:
    """`base` with the sets of `own` in place of its own of the same name."""
    merged = {model: {name: dict(variants) for name, variants in sets.items()} for model, sets in base.items()}
    for model, sets in own.items():
        for name, variants in sets.items():
            merged.setdefault(model, {}).setdefault(name, {}).update(variants)
    return merged


def find(
    model: str, accelerator: Accelerator, variants: tuple[str, ...], book: Book | None = None
) -> tuple[Coefficients, tuple[Diagnostic, ...]]:
    """The set for the first of `variants` that an accelerator, or else its next kin, has; else the generic set.

    Anything but the accelerator's own set comes with a diagnostic. Raises LumosError where there is none at all.
    """
    sets = (shipped() if book is None else book).get(model, {})
    for variant in variants:
        if variant in sets.get(accelerator.name, {}):
            return sets[accelerator.name][variant], ()
        for kin in accelerator.fitted_as:
            if variant in sets.get(kin, {}):
                note = f"{model}: coefficients fitted on {kin} ({variant}), with the rates of {accelerator.name}"
                return sets[kin][variant], (Diagnostic("coefficients-of-kin", note),)
    for variant in variants:
        if variant in sets.get(GENERIC, {}):
            note = f"{model}: no measurements of {accelerator.name} ({variants[0]}) were fitted; coefficients of all accelerators together"
            return sets[GENERIC][variant], (Diagnostic("generic-coefficients", note),)
    raise LumosError(f"{model}: no coefficients for {accelerator.name} ({variants[0]}); fit your own with lumos calibrate")


def outside(seen: Mapping[str, tuple[float, float]], **inputs: Any) -> Any:
    """Where any input lies beyond the range that was fitted (bool array)."""
    beyond: Any = np.bool_(False)
    for key, value in inputs.items():
        if key in seen:
            low, high = seen[key]
            beyond = beyond | (np.asarray(value) < low) | (np.asarray(value) > high)
    return beyond


def estimate(
    seconds: Float64,
    roofline: Float64,
    bound_by: Any,
    beyond: Any,
    coefficients: Coefficients,
    diagnostics: tuple[Diagnostic, ...] = (),
) -> Estimate:
    """A model's seconds as an Estimate: never below the roofline, with the interval of the held-out rows."""
    shape = np.shape(seconds)
    seconds = seconds * coefficients.ratio
    beyond = np.broadcast_to(np.asarray(beyond, bool), shape)
    power = np.where(beyond, EXTRAPOLATED_SPREAD, 1.0)
    low, high = (seconds * np.power(ratio, power) for ratio in coefficients.interval)
    roof = nanoseconds(np.floor(roofline * 1e9))
    time = np.maximum(nanoseconds(seconds * 1e9), roof)
    work = seconds > 0
    if np.any(beyond & work):
        note = "beyond the range the coefficients were fitted on; the interval is widened"
        diagnostics = (*diagnostics, Diagnostic("extrapolated", note))
    return Estimate(
        time,
        np.clip(nanoseconds(low * 1e9), roof, time),
        np.maximum(nanoseconds(high * 1e9), time),
        np.broadcast_to(np.where(work, bound_by, Bound.NOTHING).astype(np.uint8), shape),
        np.broadcast_to(roof, shape),
        beyond & work,
        MODELLED if coefficients.ratio == 1.0 else SCALED,
        diagnostics,
    )
