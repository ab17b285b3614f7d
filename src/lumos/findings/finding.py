"""What `lumos diagnose` answers: findings, each with its worth, its place, what shows it and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from lumos.result import Shown
from lumos.units import count, duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.analyze.trust import Trust
    from lumos.diagnostics import Diagnostic
    from lumos.vocabulary import Basis, Grade


class FindingCode(StrEnum):
    """The kinds of findings. The value is the `code` in JSON."""

    STARVED = "starved"
    HOST_STALLS = "host-stalls"
    EXTRA_WORK = "extra-work"
    STALL = "stall"
    SLOW_HOST = "slow-host"
    SLOW_DEVICE = "slow-device"
    SLOW_RANK = "slow-rank"
    SLOW_EXCHANGE = "slow-exchange"
    UNEVEN_INPUT = "uneven-input"
    UNEVEN_STAGES = "uneven-stages"
    UNEVEN_RANKS = "uneven-ranks"
    EXPOSED_COMMUNICATION = "exposed-communication"
    LAUNCH_BOUND = "launch-bound"
    LONG_CALL = "long-call"
    FUSIBLE_KERNELS = "fusible-kernels"
    BLOCKING_CALLS = "blocking-calls"
    DATA_LOADER = "data-loader"
    PIPELINE_BUBBLE = "pipeline-bubble"
    SLOW_STEPS = "slow-steps"
    SLOWING = "slowing"
    RECOMPUTED = "recomputed"
    CHANGED_SCRIPT = "changed-script"


class FindingPlace(NamedTuple):
    """Where a finding is worst.

    ranks: all that it concerns. start_ns: of `task`, from the first start of the job's step. task: its name. script: the module and
    the line of the script that it comes from; "" where no script is at hand.
    """

    ranks: tuple[int, ...]
    step: str
    start_ns: int
    task: str
    script: str = ""


def where_words(task: str) -> str:
    """Where in a thread something happens, by the name of its task: "in aten::mm", or before it where it is time between operators."""
    return task if task.startswith("before ") else f"in {task}"


def ranks_words(ranks: Sequence[int]) -> str:
    """Which rank, or how many: "rank 3", "2 ranks"."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to fix.

    worth_s: how much shorter the step would be without it; low, high: the ends of an 80 % interval, below 0 where it may be longer. grade:
    how far that can be trusted. All four are what `command` answers. worth_after_s: how much shorter the step would still become once all
    findings above are fixed; they sum to the step at most. evidence: what shows it, with figures. fix: what to do.
    """

    code: FindingCode
    title: str
    where: FindingPlace
    worth_s: float
    worth_low_s: float
    worth_high_s: float
    worth_after_s: float
    grade: Grade
    evidence: str
    fix: str
    command: str


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis(Shown):
    """What to fix first in a job; field names are those of `lumos diagnose --json`.

    step_time_s, latency_s, basis: of the job's step as measured. findings: the one first that is worth most when those above it are
    fixed. lacks: what the recording does not show, and what cannot be found because of it. trust: how far
    answers about the job hold.
    """

    ranks: int
    step_time_s: float
    latency_s: float
    basis: Basis
    trust: Trust
    findings: tuple[Finding, ...]
    lacks: tuple[Diagnostic, ...]
    diagnostics: tuple[Diagnostic, ...]

    def described(self) -> str:
        """The step, and the first finding."""
        step = f"{duration(1e9 * self.step_time_s)} a step"
        if not self.findings:
            return f"{step}; nothing to fix found"
        first, others = self.findings[0], len(self.findings) - 1
        more = f", and {count(others, 'more finding')}" if others else ""
        return f"{step}; first: {first.title}, worth {duration(1e9 * first.worth_s)}{more}"
