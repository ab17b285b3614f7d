"""Quantities with their units, as text for people.

The names of fields give their units (`duration_ns`, `step_time_s`, `peak_bytes`), so a table of results can state the units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Units of time, the largest first, and how many nanoseconds each has. Minutes and hours are not used.
_TIMES = (("d", 86400e9), ("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))

#: Units of memory and traffic: powers of 1,000, as vendors of devices use them.
_SIZES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))


class Quantity(NamedTuple):
    """What a field's name says about its values.

    name: the field's name without the unit. units: the largest first, each with its size in the smallest one. scale: the factor
    that converts a value into the smallest unit.
    """

    name: str
    units: tuple[tuple[str, float], ...] = ()
    scale: float = 1.0


def quantity(field: str) -> Quantity:
    """The quantity that a field holds, by the ending of its name; without a known ending it has no units, and neither have rates
    (`…_per_s`)."""
    if field.endswith("_per_s"):
        return Quantity(field)
    for suffix, units, scale in (("_ns", _TIMES, 1.0), ("_s", _TIMES, 1e9), ("_bytes", _SIZES, 1.0)):
        if field.endswith(suffix):
            return Quantity(field.removesuffix(suffix), units, scale)
    return Quantity(field)


def shared_unit(units: Iterable[tuple[str, float]], values: Iterable[float]) -> tuple[str, float]:
    """The largest unit in which the largest of the values is at least one; the smallest unit where there is none."""
    most = max(map(abs, values), default=0.0)
    listed = tuple(units)
    return next((unit for unit in listed if most >= unit[1]), listed[-1])


def with_unit(value: float, measure: Quantity) -> str:
    """A value in the unit that suits its size: "2.31 ms", "1.50 GB"."""
    amount = value * measure.scale
    unit, size = shared_unit(measure.units, (amount,))
    return f"{amount / size:.{decimals(abs(amount) / size) if size > 1 else 0}f} {unit}"


def duration(ns: float | None) -> str:
    """A time in the unit that suits its size; a dash for None."""
    return "–" if ns is None else with_unit(ns, Quantity("", _TIMES))


def size(nbytes: float) -> str:
    """An amount of memory in the unit that suits it."""
    return with_unit(nbytes, quantity("_bytes"))


def count(number: int, noun: str) -> str:
    """A number and its noun, in the plural unless the number is 1."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def decimals(value: float) -> int:
    """Decimal places that show a figure with three or four digits."""
    return 1 if value >= 100 else 2
