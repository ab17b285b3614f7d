"""The largest number in a training command with which the script still fits on its device.

The command has a placeholder, as in `python train.py --batch {batch}`. Memory grows with the number nearly in a straight line, so that the
two values that fit tell where the limit is; what is tried there says whether that is so, until one value fits and the next does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lumos.emulation.peak import peak
from lumos.emulation.run import DeviceFullError
from lumos.errors import LumosError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lumos.emulation.record import Process

#: The code of the note that a script met a full device and went on.
_SHRANK = "out-of-memory"
#: A number that moves memory has done so by here.
_MOVES = 64


class Tried(NamedTuple):
    """A value that was tried. allocated_bytes, reserved_bytes, room_bytes: the most of any rank, and what it may have, 0 where the script
    ended without room. reason: why it does not fit, "" where it does."""

    value: int
    allocated_bytes: int
    reserved_bytes: int
    room_bytes: int
    reason: str

    @property
    def fits(self) -> bool:
        return not self.reason


def filled_in(command: Sequence[str], name: str, value: int) -> list[str]:
    """The command with a number in the place of `{name}`. Raises UsageError where it has no such place."""
    place = f"{{{name}}}"
    if not any(place in each for each in command):
        raise UsageError(f"--fit {name}: the command has no {place}; write it where the number belongs, as in --batch {place}")
    return [each.replace(place, str(value)) for each in command]


def largest_that_fits(name: str, run: Callable[[int], list[Process]], said: Callable[[Tried], None]) -> tuple[list[Process], list[Tried]]:
    """The records of the largest whole number from 1 on that fits, and what was tried in order. run: the script with a number; said: called
    with each try.

    Raises LumosError where 1 does not fit, and where memory does not grow with the number.
    """
    tried: list[Tried] = []
    best: list[Process] = []
    value: int | None = 1
    while value is not None:
        found, one = _try(run, value)
        best = found or best
        tried.append(one)
        said(one)
        value = next_value(name, tried)
    return best, tried


def next_value(name: str, tried: Sequence[Tried]) -> int | None:
    """What to try after these, None where one fits and the next does not. Raises LumosError as `largest_that_fits`."""
    fitting = sorted(each for each in tried if each.fits)
    above = min((each.value for each in tried if not each.fits), default=None)
    if not fitting:
        raise LumosError(f"--fit {name}: 1 does not fit: {tried[-1].reason}")
    low = fitting[-1]
    if above == low.value + 1:
        return None
    if len(fitting) < 2:
        return low.value + 1
    growth = (low.allocated_bytes - fitting[-2].allocated_bytes) / (low.value - fitting[-2].value)
    if above is None and low.value >= _MOVES and low.allocated_bytes <= fitting[0].allocated_bytes:
        raise LumosError(
            f"--fit {name}: {fitting[0].value} and {low.value} take the same memory ({low.allocated_bytes:,} bytes): "
            f"put {{{name}}} where it changes what each process holds"
        )
    guess = low.value + int((low.room_bytes - low.allocated_bytes) / growth) if growth > 0 else 2 * low.value
    if above is None:
        return max(low.value + 1, guess)
    missed_twice = len(tried) > 1 and not tried[-1].fits and not tried[-2].fits
    return (low.value + above) // 2 if missed_twice else min(max(low.value + 1, guess), above - 1)


def _try(run: Callable[[int], list[Process]], value: int) -> tuple[list[Process], Tried]:
    try:
        found = run(value)
    except DeviceFullError as full:
        return [], Tried(value, 0, 0, 0, str(full))
    most = max((peak(each) for each in found), key=lambda each: (each.reserved_bytes, each.allocated_bytes))
    shrank = next((note for each in found for note in each.notes if note.code == _SHRANK), None)
    reason = f"{shrank.where}: {shrank.message}" if shrank else ""
    return [] if reason else found, Tried(value, most.allocated_bytes, most.reserved_bytes, most.room_bytes, reason)
