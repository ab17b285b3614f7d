"""The fitted coefficients: a small set per model, accelerator and variant, in `data/coefficients.toml`, written by tools/fit.py.

Each set comes with its 80 % interval (of measured / modelled, over rows held out of the fit), its errors on those rows, and the
range of inputs that it was fitted on. Every coefficient is dimensionless or a time, so that a set can be used with any
accelerator's peak rates. `generic` sets are fitted over all accelerators together, for those that have no set of their own.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from lumos.cost.cluster import CLUSTER_FOLDER, Accelerator
from lumos.cost.estimate import MODELLED, SCALED, Bound, Estimate, Float64, nanoseconds
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.output_files import new_file

if TYPE_CHECKING:
    from pathlib import Path

GENERIC = "generic"
_Form = TypeVar("_Form")
#: The interval of an extrapolated estimate is this many times as wide, on the logarithmic scale.
EXTRAPOLATED_SPREAD = 2.0


class Coefficients(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fitted set. values: the model's coefficients. interval: low and high measured / modelled. seen: (min, max) of each input
    in the rows that were fitted."""

    values: dict[str, float | list[float]]
    interval: tuple[float, float]
    seen: dict[str, tuple[float, float]] = {}
    #: measured / modelled in the trace that the set was calibrated on; every modelled time is multiplied by it
    ratio: float = 1.0
    #: number of rows fitted and of rows held out, and median and 90th percentile of |error| over those held out
    rows: int = 0
    held_out_rows: int = 0
    median_error: float | None = None
    p90_error: float | None = None

    @property
    def count(self) -> int:
        """How many numbers were fitted: the values and the two ends of the interval."""
        return sum(len(v) if isinstance(v, list) else 1 for v in self.values.values()) + 2

    def read_as(self, form: type[_Form]) -> _Form:
        """The values as the named tuple of a model."""
        return form(**{key: tuple(v) if isinstance(v, list) else v for key, v in self.values.items()})


def stored(coefficients: Any) -> dict[str, float | list[float]]:
    """The named tuple of a model as `Coefficients.values`."""
    return {key: list(v) if isinstance(v, tuple) else v for key, v in coefficients._asdict().items()}


#: Sets by model ("gemm"), then by accelerator or "generic", then by variant (dtype, kernel, …).
Book = Mapping[str, Mapping[str, Mapping[str, Coefficients]]]


@cache
def shipped_coefficients() -> Book:
    """The coefficients that ship with Lumos."""
    return _decoded(CLUSTER_FOLDER / "coefficients.toml")


def read_coefficients(path: Path) -> Book:
    """Coefficients of a file that `lumos calibrate` or tools/fit.py wrote. Raises LumosError where the file is not of that form: each
    set has finite numbers of the names, and lists of the lengths, that the sets of its model have which ship with Lumos."""
    book = _decoded(path)
    shipped = shipped_coefficients()
    for model, sets in book.items():
        if model not in shipped:
            raise LumosError(f"{path}: [{model}] is no cost model; valid: {', '.join(shipped)}")
        wanted = _form(next(iter(next(iter(shipped[model].values())).values())))
        for name, variants in sets.items():
            for variant, entry in variants.items():
                _check_set(entry, wanted, f"{path}: [{model}.{name}.{variant}]")
    return book


def _check_set(entry: Coefficients, form: Mapping[str, int], where: str) -> None:
    """Raise LumosError unless the set has that form and numbers that costs can be computed from."""
    if _form(entry) != form:
        keys = ", ".join(key if not length else f"{key} (a list of {length})" for key, length in form.items())
        raise LumosError(f"{where} values must be {keys}; write them with lumos calibrate")
    low, high = entry.interval
    values = [number for value in entry.values.values() for number in (value if isinstance(value, list) else [value])]
    numbers = (*entry.interval, entry.ratio, *values, *(end for seen in entry.seen.values() for end in seen))
    if not (all(map(math.isfinite, numbers)) and 0 < low <= high and entry.ratio > 0):
        raise LumosError(f"{where} numbers must be finite, interval and ratio positive; write them with lumos calibrate")


def _form(entry: Coefficients) -> dict[str, int]:
    """The names of a set's values, each with the length of its list, 0 for a number."""
    return {key: len(value) if isinstance(value, list) else 0 for key, value in sorted(entry.values.items())}


def _decoded(path: Path) -> Book:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert(table, dict[str, dict[str, dict[str, Coefficients]]])
    except OSError as error:
        raise LumosError(f"{path}: cannot be read ({error.strerror}); write it with lumos calibrate") from error
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise LumosError(f"{path}: not a file of coefficients: {error}; write it with lumos calibrate") from error


def write_coefficients(book: Book, path: Path, heading: str) -> None:
    """Write the book as TOML, sorted, with six significant digits, under `heading` as a comment.

    An existing file is replaced only once the new one is complete. Raises LumosError where it cannot be written.
    """
    lines = [f"# {line}".rstrip() for line in heading.splitlines()]
    for model in sorted(book):
        for accelerator in sorted(book[model]):
            for variant in sorted(book[model][accelerator]):
                fields = msgspec.structs.asdict(book[model][accelerator][variant])
                lines += ["", f'[{model}."{accelerator}"."{variant}"]']
                lines += [f"{key} = {_toml(value)}" for key, value in fields.items() if value is not None]
    with new_file(path) as file:
        file.write(("\n".join(lines) + "\n").encode())


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
    """The sets of `base`, replaced by those of `own` where both have one of the same name, and the further sets of `own`."""
    merged = {model: {name: dict(variants) for name, variants in sets.items()} for model, sets in base.items()}
    for model, sets in own.items():
        for name, variants in sets.items():
            merged.setdefault(model, {}).setdefault(name, {}).update(variants)
    return merged


def find(
    model: str, accelerator: Accelerator, variants: tuple[str, ...], book: Book | None = None
) -> tuple[Coefficients, tuple[Diagnostic, ...]]:
    """The coefficients to use for an accelerator: the first of `variants` that was fitted on it or on one in its `fitted_as`.

    Where there is none, the generic set of the first of `variants` that has one. A set that was not fitted on the accelerator
    itself comes with a diagnostic. Raises LumosError where there is no set at all.
    """
    sets = (shipped_coefficients() if book is None else book).get(model, {})
    for variant in variants:
        if variant in sets.get(accelerator.name, {}):
            return sets[accelerator.name][variant], ()
        for other in accelerator.fitted_as:
            if variant in sets.get(other, {}):
                note = f"{model}: coefficients fitted on {other} ({variant}), with the rates of {accelerator.name}"
                return sets[other][variant], (Diagnostic("coefficients-of-kin", note),)
    for variant in variants:
        if variant in sets.get(GENERIC, {}):
            note = f"{model}: no measurements of {accelerator.name} ({variants[0]}) were fitted; coefficients of all accelerators together"
            return sets[GENERIC][variant], (Diagnostic("generic-coefficients", note),)
    raise LumosError(f"{model}: no coefficients for {accelerator.name} ({variants[0]}); fit your own with lumos calibrate")


def outside(seen: Mapping[str, tuple[float, float]], **inputs: Any) -> Any:
    """Whether any input lies outside the range that was fitted, as an array of bool."""
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
    """A model's seconds as an Estimate: never below the roofline, with the interval of the coefficients. beyond: bool, where inputs
    lie outside the range that was fitted."""
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
