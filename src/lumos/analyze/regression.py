"""Whether one job is slower than another by more than a share, as far as the steps of their recordings can tell.

The time of a step is a mean over the steps that count, and is known as well as these agree. The difference of two such means has the
interval of Welch's t-test (B. L. Welch, Biometrika 34, 1947), which assumes neither as many steps nor the same spread on both sides. It
holds what differs between steps of a recording; what differs between runs (another node, a hotter device) no single recording shows.
"""

from __future__ import annotations

from enum import StrEnum
from math import ceil, inf, sqrt
from statistics import mean, variance
from typing import TYPE_CHECKING, NamedTuple

from lumos.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The 97.5th percentile of Student's t with 1, 2, … degrees of freedom (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2).
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
#: The same of a normal distribution, and how fast t comes down to it: t - Z95 is nearly this number divided by the degrees of freedom.
_Z95, _APPROACH = 1.95996, 2.5


class Verdict(StrEnum):
    """What the recordings show of a slowdown: that it is more than allowed, that it is not, or neither, because noise hides it."""

    SLOWER = "slower"
    WITHIN = "within"
    UNDECIDED = "undecided"


class Regression(NamedTuple):
    """How much longer the step takes after than before, against what is allowed; all are fractions of the step before.

    noise: half-width of the 95 % interval of `change`. steps_needed: about how many steps of each job would make the noise as small as
    what is allowed; None where it is, or where nothing is allowed.
    """

    allowed: float
    change: float
    noise: float
    verdict: Verdict
    steps_needed: int | None


def regression(before: Sequence[int], after: Sequence[int], allowed: float) -> Regression:
    """Whether steps of these lengths (ns) became longer by more than a fraction. GraphError with fewer than two steps of either."""
    for letter, lengths in (("A", before), ("B", after)):
        if len(lengths) < 2:
            raise GraphError(
                f"{letter} has {len(lengths)} step that counts, which does not show how much steps differ, so no slowdown can be told from"
                " noise; record three steps or more that follow one another"
            )
    base = mean(before)
    change, noise = mean(after) / base - 1, _half_width(before, after) / base
    verdict = Verdict.SLOWER if change - noise > allowed else Verdict.WITHIN if change + noise <= allowed else Verdict.UNDECIDED
    needed = ceil(max(len(before), len(after)) * (noise / allowed) ** 2) if 0 < allowed < noise else None
    return Regression(allowed, change, noise, verdict, needed)


def _half_width(before: Sequence[int], after: Sequence[int]) -> float:
    """Half-width of the 95 % interval of the difference of the means, ns."""
    errors = [(variance(map(float, lengths)) / len(lengths), len(lengths) - 1) for lengths in (before, after)]
    total = sum(error for error, _ in errors)
    freedom = total**2 / sum(error**2 / degrees for error, degrees in errors) if total else inf
    known = max(int(freedom), 1) if freedom < len(_T95) + 1 else None
    return sqrt(total) * (_Z95 + _APPROACH / freedom if known is None else _T95[known - 1])
