"""Record jobs with and without a cause of delay, and see whether the cause is named and what it is said to be worth.

    python -m validation.faults --record DIR [ROUNDS]     needs torch
    python -m validation.faults DIR

The worth of a cause is the difference of the job's periods with and without it, by the clock of the training script, the two run one
after the other in every round; its noise is half the range of that difference over the rounds. An answer is the median over the rounds.
A cause whose noise exceeds its worth is listed and not counted. `diagnose` is to name every cause first. One rank's cause is to be named
first by `stragglers` too; one that all ranks share, which no comparison of ranks can show, by `critical-path`, as what grew most against
the job without it.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tools.document import markdown_table
from tools.figures import write_result

from lumos.analyze.critical_path import CriticalPath, critical_paths
from lumos.analyze.loop.steps import members, step_times
from lumos.analyze.ranks.straggler_causes import StragglerFinding
from lumos.analyze.ranks.stragglers import Stragglers, stragglers
from lumos.changes.changes import Changes
from lumos.changes.durations import Durations
from lumos.changes.whatif import answer_changes
from lumos.findings.diagnose import diagnose
from lumos.findings.finding import Diagnosis, FindingCode
from lumos.graph.build import build
from lumos.graph.table import Graph
from lumos.simulation import measured
from lumos.trace import read
from lumos.trace.table import Job

#: Causes that hit one step only.
ONCE = ("outlier", "recompilation")
#: The rank that has the cause, where not all have it; the recorded step that an outlier hits, and its index among the steps that the
#: script's clock has, which lack the first.
RANK, HIT, HIT_AT = 1, "ProfilerStep#5", 2
WITHIN = 0.15


class Fault(NamedTuple):
    """A cause, and how it should be answered.

    amount: as `validation.faults_job` takes it. named: the causes of `stragglers` that name it; none where all ranks share it. part: what
    the finding's name or task must contain. drop: what a what-if leaves out, or slow: the factor by which it makes the rank faster.
    """

    cause: str
    amount: float
    named: tuple[str, ...] = ()
    part: str = ""
    drop: str = ""
    slow: float = 0.0


def both(cause: str, amounts: tuple[float, float], named: str = "", part: str = "", drop: str = "") -> tuple[Fault, Fault]:
    """A cause in two sizes."""
    small, large = amounts
    causes = (named,) if named else ()
    return Fault(cause, small, causes, part, drop), Fault(cause, large, causes, part, drop)


FAULTS = (
    *both("extra work", (4, 10), "extra-work", "aten::bmm", "operator:aten::bmm"),
    *both("sleep", (0.02, 0.05), "stall", "before aten::ones_like"),
    *both("loader stall", (0.02, 0.05), "stall", "before aten::ones", "operator:enumerate(DataLoader)*"),
    *both("slow host", (0.02, 0.05), "slow-work", "cpu between operators"),
    *both("tiny operators", (4000, 12000), "extra-work", "aten::sin_", "operator:aten::sin_"),
    Fault("slow process", 1.5, ("slow-work",), "cpu operators", slow=1.5),
    Fault("slow process", 2.2, ("slow-work",), "cpu operators", slow=2.2),
    Fault("uneven tokens", 96, ("slow-work",), "cpu operators", slow=96 / 64),
    Fault("uneven tokens", 144, ("slow-work",), "cpu operators", slow=144 / 64),
    *both("outlier", (0.02, 0.08), "stall", HIT),
    *both("large exchange", (8, 24), drop="operator:norms"),
    *both("many exchanges", (15, 45), drop="operator:norms"),
    *both("recompilation", (20, 100), "stall", HIT),
    *both("late rows", (0.02, 0.05), "stall", "before "),
)


class Answers(NamedTuple):
    """Of one recording: whether each verb names the cause, and what it says it is worth, ms (None where it does not say)."""

    first: str
    stragglers: bool
    stragglers_ms: float | None
    diagnose_first: str
    diagnose: bool
    diagnose_ms: float | None
    critical_path: bool
    critical_path_ms: float
    whatif_ms: float | None


@dataclass(frozen=True, slots=True)
class Scored:
    """A cause over all rounds. worths_ms: measured, one a round; the answers are those of the same rounds."""

    fault: Fault
    worths_ms: tuple[float, ...]
    answers: tuple[Answers, ...]

    @property
    def worth_ms(self) -> float:
        """The measured worth, ms."""
        return statistics.median(self.worths_ms)

    @property
    def noise_ms(self) -> float:
        """Half the range of the measured worth over the rounds, ms."""
        return (max(self.worths_ms) - min(self.worths_ms)) / 2

    @property
    def counted(self) -> bool:
        """Whether the worth stands out of the noise."""
        return self.worth_ms > self.noise_ms

    @property
    def verb(self) -> str:
        """The verb that should name the cause."""
        return "stragglers" if self.fault.named else "critical_path"

    @property
    def named(self) -> bool:
        """Whether the verb that should name the cause does, in most rounds."""
        votes = [a.stragglers if self.fault.named else a.critical_path for a in self.answers]
        return 2 * sum(votes) > len(votes)

    @property
    def diagnosed(self) -> bool:
        """Whether `diagnose` names the cause first, in most rounds."""
        votes = [a.diagnose for a in self.answers]
        return 2 * sum(votes) > len(votes)

    def said_ms(self, verb: str) -> float | None:
        """What a verb says the cause is worth, ms: the median of the rounds in which it says so."""
        values = [value for a in self.answers if (value := getattr(a, f"{verb}_ms")) is not None]
        return statistics.median(values) if values else None

    def off(self, verb: str) -> float | None:
        """How far that is from the measured worth, as a share of it."""
        said = self.said_ms(verb)
        return None if said is None else said / self.worth_ms - 1

    def within_noise(self, verb: str) -> bool:
        """Whether the worth that a verb says is within the noise and 15 % of the measured one."""
        said = self.said_ms(verb)
        return said is not None and abs(said - self.worth_ms) <= WITHIN * self.worth_ms + self.noise_ms


def finding_names(fault: Fault, finding: StragglerFinding) -> bool:
    """Whether a finding of `stragglers` names the cause, on the right rank."""
    where = f"{finding.name} {finding.where.task} {finding.where.step} "
    part = fault.part if fault.part.endswith(" ") else f"{fault.part} "
    return str(finding.cause) in fault.named and finding.where.rank == RANK and part in where


def by_stragglers(fault: Fault, result: Stragglers) -> tuple[str, bool, float | None]:
    """What `stragglers` says first, whether that names the cause, and its worth, ms.

    An outlier is worth what it adds to its own step.
    """
    if not result.findings:
        return "nothing", False, None
    finding = result.findings[0]
    first = f"{finding.cause}, {finding.name}, rank {finding.where.rank}"
    if not finding_names(fault, finding):
        return first, False, None
    return first, True, finding.worth_ns / 1e6 * (result.steps if fault.cause in ONCE else 1)


def growth(plain: Graph, graph: Graph) -> dict[str, float]:
    """How much more time each group of the critical path takes in the mean step of `graph` than in that of `plain`, ms."""
    before, after = _groups(plain), _groups(graph)
    return {group: after.get(group, 0) - before.get(group, 0) for group in {**before, **after}}


def _groups(graph: Graph) -> dict[str, float]:
    timeline, owners = measured(graph), members(graph)
    names = {time.name for time in step_times(timeline, owners).counted}
    paths: list[CriticalPath] = list(critical_paths(timeline, owners, names=names))
    total: dict[str, float] = defaultdict(float)
    for path in paths:
        for group, time in path.by_group.items():
            total[group] += time / 1e6 / len(paths)
    return total


#: The code of the finding of `diagnose` that names each cause, and what its title or task contains.
DIAGNOSED = {
    "extra work": ((FindingCode.EXTRA_WORK,), "aten::bmm"),
    "sleep": ((FindingCode.STALL,), "before aten::ones_like"),
    "loader stall": ((FindingCode.DATA_LOADER,), ""),
    "slow host": ((FindingCode.SLOW_HOST,), "cpu between operators"),
    "tiny operators": ((FindingCode.EXTRA_WORK,), "aten::sin_"),
    "slow process": ((FindingCode.SLOW_RANK,), "cpu operators"),
    "uneven tokens": ((FindingCode.UNEVEN_INPUT,), ""),
    "outlier": ((FindingCode.SLOW_STEPS, FindingCode.STALL), HIT),
    "recompilation": ((FindingCode.SLOW_STEPS, FindingCode.STALL), HIT),
    "large exchange": ((FindingCode.EXPOSED_COMMUNICATION,), ""),
    "many exchanges": ((FindingCode.EXPOSED_COMMUNICATION,), ""),
    "late rows": ((FindingCode.STALL,), "before "),
}


def by_diagnose(fault: Fault, result: Diagnosis, steps: int) -> tuple[str, bool, float | None]:
    """What `diagnose` says first, whether that names the cause, and its worth, ms. steps: over how many a worth is the mean, which is
    that of one step for a cause that hits one only."""
    if not result.findings:
        return "nothing", False, None
    finding = result.findings[0]
    codes, part = DIAGNOSED[fault.cause]
    right_rank = not fault.named or finding.where.ranks == (RANK,)
    words = f"{finding.title} {finding.where.task} {finding.where.step}"
    named = finding.code in codes and part in words and right_rank
    worth = 1e3 * finding.worth_s * (steps if fault.cause in ONCE else 1)
    return f"{finding.code}, {finding.title}", named, worth if named else None


#: The groups of the critical path that each cause makes longer.
GROUPS = {
    "sleep": ("CPU work",),
    "slow host": ("CPU work",),
    "loader stall": ("CPU work", "operators"),
    "tiny operators": ("CPU work", "operators"),
    "large exchange": ("communication",),
    "many exchanges": ("communication",),
    "outlier": ("CPU work",),
    "recompilation": ("CPU work", "operators"),
    "late rows": ("CPU work",),
}


def by_whatif(fault: Fault, job: Job, graph: Graph) -> float | None:
    """How much faster `whatif` says the job is without the cause, ms; None where no change of names or of a rank expresses it."""
    if not fault.drop and not fault.slow:
        return None
    changes = Durations(drops=(fault.drop,)) if fault.drop else Durations(slow=((RANK, 1 / fault.slow),))
    found = answer_changes(job, graph, Changes(durations=changes))
    return 1e3 * (found.base.step_time_s - found.outcome.step_time_s)


def answers(fault: Fault, plain: Path, recorded: Path) -> Answers:
    """What the verbs say to one recording, whose folder has one file a rank."""
    job = read(str(recorded))
    graph = build(job)
    first, named, worth = by_stragglers(fault, stragglers(graph, job))
    grown = growth(build(read(str(plain))), graph)
    group = max(grown, key=lambda g: grown[g])
    said = by_diagnose(fault, diagnose(job, graph=graph, force=True), len(members(graph).job) - 1)
    return Answers(first, named, worth, *said, group in GROUPS.get(fault.cause, ("operators",)), grown[group], by_whatif(fault, job, graph))


def measured_worth_ms(fault: Fault, seconds: dict[str, Any]) -> float:
    """The worth by the script's clock, ms; of an outlier, what its step takes more than the others of the same run."""
    recorded, typical = seconds["with"], statistics.median(seconds["with"])
    if fault.cause in ONCE:
        return float(1e3 * (recorded[HIT_AT] - typical))
    return float(1e3 * (typical - statistics.median(seconds["plain"])))


def score(folder: Path) -> list[Scored]:
    """Every cause recorded in a folder."""
    by_fault: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in json.loads((folder / "seconds.json").read_text(encoding="utf-8")):
        by_fault[row["case"]].append(row)
    out = []
    for number, rows in sorted(by_fault.items()):
        fault = FAULTS[number]
        stems = [f"{number}-{row['round']}" for row in rows]
        said = tuple(answers(fault, folder / f"{stem}-plain", folder / f"{stem}-with") for stem in stems)
        out.append(Scored(fault, tuple(measured_worth_ms(fault, row) for row in rows), said))
        print(fault.cause, f"{fault.amount:g}", f"{out[-1].worth_ms:.1f} ± {out[-1].noise_ms:.1f} ms", said, file=sys.stderr)
    return out


def section(scored: list[Scored]) -> str:
    """The text of its result file."""
    counted = [s for s in scored if s.counted]
    off = [abs(x) for s in counted if (x := s.off(s.verb)) is not None]
    near, near_asked = (sum(s.within_noise(s.verb if verb is None else verb) for s in counted) for verb in (None, "whatif"))
    told = [abs(x) for s in counted if (x := s.off("diagnose")) is not None]
    asked = [abs(x) for s in counted if (x := s.off("whatif")) is not None]
    figures = [
        ("causes and sizes; whose worth exceeds the noise", "≥ 16", f"{len(scored)}; {len(counted)}"),
        ("the cause named first, of those", "≥ 90 %", f"{sum(s.named for s in counted)} of {len(counted)}"),
        ("its worth by the verb that names it, within 15 %", "all", f"{sum(x <= WITHIN for x in off)} of {len(counted)}"),
        ("the same, within 15 % and the noise", "–", f"{near} of {len(counted)}"),
        ("`diagnose` names it first", "≥ 90 %", f"{sum(s.diagnosed for s in counted)} of {len(counted)}"),
        ("its worth by `diagnose`, within 15 %", "all", f"{sum(x <= WITHIN for x in told)} of {len(counted)}"),
        ("the same, within 15 % and the noise", "–", f"{sum(s.within_noise('diagnose') for s in counted)} of {len(counted)}"),
        ("its worth by `whatif`, within 15 %", "all that can be asked", f"{sum(x <= WITHIN for x in asked)} of {len(asked)}"),
        ("the same, within 15 % and the noise", "–", f"{near_asked} of {len(asked)}"),
    ]
    rows = [
        (
            f"{s.fault.cause}, {s.fault.amount:g}",
            f"{s.worth_ms:.1f} ± {s.noise_ms:.1f}",
            *(_cell(s, verb) for verb in ("diagnose", "stragglers", "critical_path", "whatif")),
            f"{_yes(s.diagnosed)}, {_yes(s.named)}" if s.counted else "not counted",
        )
        for s in scored
    ]
    missed = [line for s in counted for line in _missed(s)] or ["- nothing"]
    return "\n\n".join(
        [
            "Written by `python -m validation.faults`. A job of three processes (torch, gloo, DistributedDataParallel) is recorded with a"
            " cause and without, in alternation; its layers take a set time without a core. Times are ms a step. The measured worth is the"
            " difference of the periods by the script's clock, ± half its range over the rounds; a cause whose noise exceeds its worth is"
            " not counted. Causes of one rank are to be named first by `stragglers`, those that all ranks share by `critical-path`, as what"
            " grew most against the job without them; its figure is that growth. `diagnose` is to name all of them first, without the job"
            " without them. The amounts were raised above the noise of a first"
            " recording, and what counts as named was written with its findings in view, so the causes are no blind test. The recording of"
            " the table was made after all rules were written, and scored once.",
            markdown_table(("what", "to reach", "reached"), figures),
            markdown_table(("cause, amount", "measured", "`diagnose`", "`stragglers`", "`critical-path`", "`whatif`", "named"), rows),
            "\n".join(["Missed:", "", *missed]),
        ]
    )


def _missed(scored: Scored) -> list[str]:
    """What is missed of a cause that counts, a line each."""
    title, lines = f"- {scored.fault.cause}, {scored.fault.amount:g}: ", []
    if not scored.named:
        lines.append(f"{title}not named; `stragglers` says first: {scored.answers[0].first}")
    if not scored.diagnosed:
        lines.append(f"{title}`diagnose` says first: {next(a.diagnose_first for a in scored.answers if not a.diagnose)}")
    for verb in ("diagnose", scored.verb, "whatif"):
        said, off = scored.said_ms(verb), scored.off(verb)
        if said is not None and off is not None and abs(off) > WITHIN:
            lines.append(f"{title}`{verb.replace('_', '-')}` says {said:.1f} ms of {scored.worth_ms:.1f} ± {scored.noise_ms:.1f}")
    return lines


def _yes(named: bool) -> str:
    return "yes" if named else "no"


def _cell(scored: Scored, verb: str) -> str:
    said = scored.said_ms(verb)
    if said is None:
        return "–"
    return f"{said:.1f} ({scored.off(verb):+.0%})" if scored.counted else f"{said:.1f}"


def record(folder: Path, rounds: int) -> None:
    """Record every cause into a folder."""
    from torch.multiprocessing.spawn import spawn
    from validation.faults_job import PROCESSES, Case, run

    folder.mkdir(parents=True, exist_ok=True)
    cases = tuple(Case(fault.cause, fault.amount) for fault in FAULTS)
    with tempfile.TemporaryDirectory() as scratch:
        spawn(run, args=(str(Path(scratch) / "store"), str(folder), cases, rounds), nprocs=PROCESSES)  # type: ignore[no-untyped-call]


def main() -> int:
    match sys.argv[1:]:
        case ["--record", folder]:
            record(Path(folder), 3)
        case ["--record", folder, rounds]:
            record(Path(folder), int(rounds))
        case [folder]:
            write_result("validation/results/faults.md", section(score(Path(folder))))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
