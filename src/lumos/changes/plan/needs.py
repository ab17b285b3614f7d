"""What a setting needs that only the identified plan of a job can give, and the refusal that says so for each such setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.changes.settings import needs_plan
from lumos.errors import LumosError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Why the measured blocks do not show what a setting changes.
_WHY = {
    "schedule": "it runs the two halves of a backward pass apart, which the recording shows as one",
    "precision": "kernels for this type are not those of the recorded one",
    "recompute": "which parts of a layer the framework would compute again is not in the recording",
}
_OTHERWISE = "the recording does not show what it changes"


def refusal(settings: Mapping[str, str], reason: str) -> LumosError:
    """The refusal of those settings that need the plan. reason: why the job has none that could be followed."""
    asked = [f"{key}={value}" for key, value in settings.items() if needs_plan({key: value})]
    why = "; ".join(f"{word}: {_WHY.get(word.partition('=')[0], _OTHERWISE)}" for word in asked)
    return LumosError(
        f"--set {why}. It can be answered where the plan of the job is read from its heavy work, and here it is not: {reason}. Record a job"
        " that has it, or ask lumos predict"
    )
