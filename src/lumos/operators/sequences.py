"""Align two sequences of operator names: find which entry of one is the same call as which entry of the other.

Two ranks of a job, or an execution trace and a profiler file of one run, hold the same calls in the same order, but each may hold
calls that the other lacks: one rank does more work, the profiler records more steps, the observer more labels. So the longer
sequence is first narrowed to the stretch that the shorter one covers. Runs of equal names vote for the offset of that stretch. The
longest common subsequence is then taken within it, the leftmost of several, so that matches stay together. It is exact. Sequences that
differ in few places are compared along their equal runs (Myers 1986), which takes as long as there are differences. Others fill a
table, each row of which is a Python integer, whose operations handle 30 names at a time.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Names = NDArray[np.signedinteger[Any]]
    Int64 = NDArray[np.int64]

#: Names in a run that votes: long enough to distinguish layers, short enough that an extra label spoils few runs.
_RUN = 12
#: A stretch is the right one if this share of the shorter sequence is found in it.
_WHOLE = 0.99
#: The most bits that the table of the subsequence may hold (256 MB); longer sequences are cut in two.
MOST_BITS = 1 << 31
#: Sequences with more differences than this, and than one in `_RARE` entries, fill the table: the time along runs grows with their square.
_FEW, _RARE = 128, 256

#: How far the last entries of two sequences can be aligned with a number of differences: for each diagonal (entries of `a` minus entries
#: of `b`) the most entries of `a`.
Reach = dict[int, int]


def align_names(a: Names, b: Names) -> Int64:
    """For each entry of `a` its partner in `b`, -1 without one: int64[len(a)], ascending where >= 0."""
    partner = np.full(len(a), -1, np.int64)
    head = _equal(a, b)
    partner[:head] = np.arange(head)
    if head == len(a):
        return partner
    if head == len(b):
        return partner
    low, high = _stretch(a, b) if len(b) >= len(a) else (0, len(b))
    if low == 0 and high == len(b):
        _subsequence(a[head:], b[head:], partner[head:], head)
        return partner
    partner[:] = -1
    _subsequence(a, b[low:high], partner, low)
    if (partner >= 0).sum() < _WHOLE * len(a):  # `a` does not lie in one stretch of `b`: search all of it
        anywhere = np.full(len(a), -1, np.int64)
        _subsequence(a, b, anywhere, 0)
        if (anywhere >= 0).sum() > (partner >= 0).sum():
            return anywhere
    return partner


def _equal(a: Names, b: Names) -> int:
    """Length of the common prefix."""
    n, length, block = min(len(a), len(b)), 0, 64
    while length < n:
        end = min(length + block, n)
        differs = np.flatnonzero(a[length:end] != b[length:end])
        if len(differs):
            return length + int(differs[0])
        length, block = end, 4 * block
    return n


def _stretch(a: Names, b: Names) -> tuple[int, int]:
    """The part of `b` that `a` covers, by the offsets at which the first and the last runs of `a` recur in `b`."""
    spare = len(b) - len(a)
    if spare <= max(len(a) // 4, _RUN):
        return 0, len(b)
    half = max(min(len(a) // 2, 4096), _RUN)
    first = _offset(a[:half], b)
    if first is None:
        return 0, len(b)
    low = max(first - _RUN, 0)
    tail = b[low:]
    last = _offset(a[-half:], tail[: len(a) * 2])
    high = low + last + half + _RUN if last is not None and last + half >= len(a) // 2 else low + 2 * len(a)
    return low, min(max(high, low + len(a) + len(a) // 8), len(b))


def _offset(part: Names, b: Names) -> int | None:
    """The offset in `b` at which most runs of `part` recur: the first one with nine tenths of the most votes."""
    places: dict[bytes, list[int]] = {}
    for i in range(len(part) - _RUN + 1):
        places.setdefault(part[i : i + _RUN].tobytes(), []).append(i)
    votes: Counter[int] = Counter()
    for j in range(len(b) - _RUN + 1):
        for i in places.get(b[j : j + _RUN].tobytes(), ())[:64]:
            votes[j - i] += 1
    if not votes:
        return None
    # An extra or missing label moves the offset by a few, so the earliest of several offsets that come close counts.
    best = max(votes.values())
    return min(offset for offset, count in votes.items() if count >= 0.9 * best)


def _subsequence(a: Names, b: Names, partner: Int64, shift: int) -> None:
    """Write the leftmost longest common subsequence into `partner`, with `shift` added to positions in `b`."""
    if not len(a) or not len(b):
        return
    reached = _along_runs(a, b, min(_FEW, (len(a) + len(b)) // _RARE))
    if reached:
        _walk_runs(a, b, reached, partner, shift)
    elif len(a) * len(b) > MOST_BITS:
        _divide(a, b, partner, shift)
    else:
        _walk_table(a, b, partner, shift)


def _along_runs(a: Names, b: Names, most: int) -> list[Reach]:
    """How far the last entries align with 0, 1, 2, … differences, up to the number with which all do; empty where that is above `most`."""
    n, m = len(a), len(b)
    if abs(n - m) > most:
        return []
    backwards_a, backwards_b = a[::-1], b[::-1]
    reached: list[Reach] = []
    for differences in range(most + 1):
        before, reach = (reached[-1] if reached else {1: 0}), {}
        for diagonal in range(-differences, differences + 1, 2):
            # One entry more of b, or of a, than with one difference less.
            x = max(before.get(diagonal + 1, -1), before[diagonal - 1] + 1 if diagonal - 1 in before else -1)
            x = min(x, n, m + diagonal)
            if x >= max(0, diagonal):
                reach[diagonal] = x + _equal(backwards_a[x:], backwards_b[x - diagonal :])
        reached.append(reach)
        if reach.get(n - m) == n:
            return reached
    return []


def _walk_runs(a: Names, b: Names, reached: list[Reach], partner: Int64, shift: int) -> None:
    """Write the leftmost longest common subsequence, whose differences `_along_runs` counted. An entry of `a` that adds nothing is passed
    over, as in `_walk_table`: without it, the entries that are left align with one difference less."""
    x, y, left = len(a), len(b), len(reached) - 1
    while x and y:
        i, j = len(a) - x, len(b) - y
        passed = reached[left - 1].get(x - y - 1, -1) if left else -1
        if passed >= x - 1:
            x, left = x - 1, left - 1
            continue
        run = min(_equal(a[i:], b[j:]), x - 1 - passed)
        if run:
            partner[i : i + run] = np.arange(shift + j, shift + j + run)
            x, y = x - run, y - run
        else:
            y, left = y - 1, left - 1


def _walk_table(a: Names, b: Names, partner: Int64, shift: int) -> None:
    """Write the leftmost longest common subsequence by the bit-parallel recurrence of Hyyrö (2004), from the last entries to the first, so
    that the walk back through the table goes left to right."""
    n = len(a)
    masks: dict[int, int] = {}
    for i, name in enumerate(a[::-1].tolist()):
        masks[name] = masks.get(name, 0) | 1 << i
    full = (1 << n) - 1
    row = full
    rows = [row]
    for name in b[::-1].tolist():
        common = row & masks.get(name, 0)
        row = ((row + common) | (row - common)) & full
        rows.append(row)
    # Bit i of rows[j] is 0 where the last i + 1 entries of a have a longer common subsequence with the last j of b than
    # the last i entries of a have.
    i, j = n - 1, len(b)
    names = b.tolist()
    while i >= 0 and j > 0:
        if rows[j] >> i & 1:  # this entry of a adds nothing
            i -= 1
        elif a[n - 1 - i] == names[len(b) - j]:
            partner[n - 1 - i] = shift + len(b) - j
            i -= 1
            j -= 1
        else:
            j -= 1


def _divide(a: Names, b: Names, partner: Int64, shift: int) -> None:
    """Align both halves of `a` separately; the votes of the runs after its middle say where to cut `b`."""
    middle = len(a) // 2
    offset = _offset(a[middle : middle + 4096], b)
    cut = min(max(offset if offset is not None else len(b) * middle // len(a), 0), len(b))
    _subsequence(a[:middle], b[:cut], partner[:middle], shift)
    _subsequence(a[middle:], b[cut:], partner[middle:], shift + cut)
