"""The part of an interval that no model gives, `lumos.changes.certainty.trusted.REBUILT`, from what answers were observed to be off by.

Only changes that resize nothing are used, since their work keeps the measured times: what they are off by is what putting it together
leaves out. It is the share of the step that eight in ten of them stay below. A share taken from a job would hold that job's own changes,
so every job is also held against the share that the other jobs give. Answers of measured blocks, of whose intervals REBUILT is a part, and
of an identified plan, which is put together from the configuration that was read back, stand apart. Pairs that are held out are not read.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from math import ceil

from tools.document import markdown_table
from validation.foreign.score import Score

from lumos.changes.certainty.trusted import REBUILT

#: Of a hundred, how many an interval is to hold.
HELD = 80
#: Keys that scale work by a model, whose interval is that of the model.
RESIZING = frozenset({"micro_batch", "seq", "hidden", "heads", "ffn", "vocab", "tp", "precision"})


def rebuilt_to_hold(target: float, low: float, high: float, made_with: float = REBUILT) -> float:
    """The REBUILT with which an interval would just hold a target. low, high: its ends, made with the REBUILT that is, or another."""
    return max(1 - target / (low / (1 - made_with)), target / (high / (1 + made_with)) - 1, 0.0)


def rebuilds(found: Score) -> bool:
    """Whether an answer puts measured work together and resizes none."""
    return found.answer is not None and not {word.partition("=")[0] for word in found.pair.change.split(",")} & RESIZING


def needed(found: Score) -> float:
    """The share with which the interval of an answer would just hold its target."""
    return rebuilt_to_hold(found.target, found.low, found.high)


def of_others(found: Sequence[float]) -> float:
    """The share that HELD of a hundred need at most; 0 of none."""
    return sorted(found)[ceil(HELD / 100 * len(found)) - 1] if found else 0.0


def calibration(scores: Sequence[Score]) -> str:
    """What each job's changes need, and what the other jobs would give them."""
    used = [s for s in scores if rebuilds(s)]
    if not used:
        return "No change that resizes nothing is answered."
    rows, holds = [], []
    for base in dict.fromkeys(s.pair.base for s in used):
        own = [needed(s) for s in used if s.pair.base == base]
        given = of_others([needed(s) for s in used if s.pair.base != base])
        holds += [share <= given for share in own]
        rows.append(
            (base, ", ".join(f"{share:.2%}" for share in own), f"{given:.2%}", f"{sum(share <= given for share in own)} of {len(own)}")
        )
    return "\n".join(
        (
            markdown_table(("job", "needed by its changes", "given by the other jobs", "held"), rows),
            "",
            f"Changes that resize nothing: {len(used)};"
            f" {of_others([needed(s) for s in used]):.2%} holds {HELD} % of them (as it is: {REBUILT:.2%});"
            f" with each job's share taken from the others, {statistics.mean(holds):.0%}.",
        )
    )
