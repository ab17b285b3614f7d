"""Ask Lumos about programs whose times are known, before and after a change.

    python -m validation.truth [NAME]
    python -m validation.truth --seed 7 --score    # programs that nobody has read
    python -m validation.truth --seed 7 --write    # the first score of a seed, validation/results/truth-7.md

Every program runs on a small simulated machine (`validation.machine`) that knows nothing of Lumos, once as it is and once for every
change. The recording of the unchanged run is all that Lumos gets, once with and once without the rows that profilers may leave out. Its
answers, to be right, must be what the changed program takes on the machine. Some programs are so simple that a person can work that out on
paper (`validation.programs_by_hand`).

Lumos may refuse a question, or call its answer unsound; that counts as no answer, with the reason it gives.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tools.document import markdown_table
from tools.figures import write_result
from validation.machine import run
from validation.machine_trace import write_trace
from validation.program import READS, WAITS, Program, scaled, without_synchronising
from validation.programs_by_hand import BY_HAND, Case
from validation.programs_differing import DIFFERING
from validation.programs_drawn import drawn
from validation.programs_joined import JOINED
from validation.programs_one_rank import ONE_RANK
from validation.programs_ranks import RANKS

from lumos.analyze.trust import trust
from lumos.changes.changes import Changes
from lumos.changes.durations import Durations, Scale
from lumos.changes.whatif import answer_changes
from lumos.errors import LumosError
from lumos.graph.build import build
from lumos.trace import read
from lumos.vocabulary import Grade

#: The error to reach, as a fraction, and the share of the questions to answer.
REACH, ANSWERED = 0.03, 0.92

#: A program has settled where two spans of whole cycles differ by no more than this share. Until then it is run for twice as many steps, at
#: most so often.
SETTLED, MOST_TIMES = 1e-3, 5

#: So many steps follow those that are recorded: more than any thread beside the loop is ahead of it.
AFTER = 8

#: Programs that this seed draws are read, and asked like the others.
READ_SEED, READ = 1, 20

_CHOSEN = "those of the first five programs are also worked out on paper in `validation/programs_by_hand.py`"
_PICKED = "a seed that nobody had read drew these"

CASES = (*BY_HAND, *ONE_RANK, *RANKS, *JOINED, *DIFFERING, *drawn(READ_SEED, READ))


@dataclass(frozen=True)
class Answered:
    """One question, times in ms. change: "–" asks for the unchanged step. optional: whether the recording has the optional rows.

    truth: what the machine took. lumos: what Lumos says; None where it does not answer, for the `reason`. grade: how far it trusts that.
    interval: within which it says that the time lies.
    """

    program: str
    change: str
    optional: bool
    truth: float
    lumos: float | None
    grade: Grade
    reason: str = ""
    interval: tuple[float, float] = (0.0, 0.0)

    @property
    def error(self) -> float | None:
        return None if self.lumos is None else self.lumos / self.truth - 1

    @property
    def right(self) -> bool:
        return self.error is not None and abs(self.error) <= REACH

    @property
    def silent(self) -> bool:
        """Whether an answer that is not right is called sound, and its interval does not hold the truth."""
        return self.lumos is not None and not self.right and self.grade is Grade.SOUND and not self.held

    @property
    def held(self) -> bool:
        return self.interval[0] <= self.truth <= self.interval[1]

    @property
    def warned(self) -> bool:
        """Whether an answer that is not right is called limited, and its interval holds the truth."""
        return not self.right and self.grade is Grade.LIMITED and self.held


def truth_ms(case: Case, program: Program) -> float:
    """What a step of a changed program takes on the machine, once it has settled: where a few cycles of its steps take as long as as many
    before."""
    cycles, steps = case.cycle * -(-2 // case.cycle), case.warm_up + case.recorded
    for _ in range(MOST_TIMES):
        ran = run(program, max(steps, 2 * cycles + 1))
        taken, before = ran.period_ns(cycles), ran.period_ns(2 * cycles)
        if abs(taken - before) <= SETTLED * before:
            break
        steps *= 2
    return taken / 1e6


def truths(case: Case) -> list[float]:
    """What the program takes, unchanged and after every change, ms."""
    program = case.program()
    return [truth_ms(case, program), *(truth_ms(case, scaled(program, change.glob, change.factor)) for change in case.changes)]


def synchronisations(names: Iterable[str]) -> tuple[str, ...]:
    """The patterns of a recording's names with which `lumos whatif --drop` takes out what `without_synchronising` does."""
    present = set(names)
    return tuple(glob for glob in (READS, *WAITS) if glob.partition(":")[2] in present)


def answered(case: Case, folder: Path, *, optional: bool = True) -> list[Answered]:
    """The lines of one program: unchanged, and every change. folder: where its recording is written."""
    program = case.program()
    ran = run(program, case.warm_up + case.recorded + AFTER)
    job = read(*write_trace(ran, folder, case.recorded, optional=optional, after=AFTER))
    graph = build(job)
    grounds = trust(graph)
    expected = truths(case)
    lines: list[Answered] = []
    questions = [
        (f"`{change.glob}` × {change.factor:g}", Durations(scales=(Scale(change.glob, change.factor),)), after)
        for change, after in zip(case.changes, expected[1:], strict=True)
    ]
    ahead = without_synchronising(program)
    if ahead != program:
        dropped = Durations(drops=synchronisations(graph.names))
        questions.append(("no synchronisation", dropped, truth_ms(case, ahead)))
    for name, durations, after in questions:
        try:
            answer = answer_changes(job, graph, Changes(durations=durations), trust=grounds)
        except LumosError as error:
            lines.append(Answered(case.name, name, optional, after, None, grounds.grade, grounds.why or str(error)))
            continue
        if not any(line.change == "–" for line in lines):
            lines.append(Answered(case.name, "–", optional, expected[0], answer.base.step_time_s * 1e3, grounds.grade))
        if answer.trust.grade is Grade.UNSOUND:
            lines.append(Answered(case.name, name, optional, after, None, answer.trust.grade, answer.trust.why))
        else:
            outcome = answer.outcome
            ends = outcome.step_time_low_s * 1e3, outcome.step_time_high_s * 1e3
            lines.append(Answered(case.name, name, optional, after, outcome.step_time_s * 1e3, answer.trust.grade, answer.trust.why, ends))
    return lines


def section(lines: list[Answered], seed: int | None = None) -> str:
    """The text of its result file. seed: which drew the programs; None: they are `CASES`."""
    asked = [line for line in lines if line.change != "–"]
    given = [line for line in asked if line.lumos is not None]
    limited = [line for line in given if line.grade is Grade.LIMITED]
    wrong, warned = sum(not x.right for x in given), sum(x.warned for x in given)
    counterfactuals = len({(line.program, line.change) for line in asked})
    return "\n\n".join(
        [
            f"Written by `python -m validation.truth{f' --seed {seed} --write' if seed else ''}`. Programs whose times are known run on a"
            f" simulated machine that shares no code with Lumos; {_PICKED if seed else _CHOSEN}. Lumos gets the recording of the unchanged"
            " program only, once with and once without the rows that profilers may leave out: what a call waits for (`cuda_sync`), and"
            " the numbers of collectives. Times are those of a step once the loop has settled.",
            markdown_table(
                ("what", "to reach", "reached"),
                [
                    ("programs; counterfactuals", "≥ 60; ≥ 300", f"{len({x.program for x in asked})}; {counterfactuals}"),
                    ("answered", f"≥ {ANSWERED:.0%}", f"{len(given) / len(asked):.1%} of {len(asked)}"),
                    (f"answers within {REACH:.0%}", "all", f"{sum(x.right for x in given)} of {len(given)}"),
                    ("of the others, called limited with an interval that holds the truth", "all", f"{warned} of {wrong}"),
                    (f"called sound, beyond {REACH:.0%} and outside the interval", "0", str(sum(x.silent for x in given))),
                    ("of the answers, called limited", "≤ 20 %", f"{len(limited) / max(len(given), 1):.1%}"),
                    ("largest error of an unchanged step", f"≤ {REACH:.0%}", _percent(_worst(x for x in lines if x.change == "–"))),
                ],
            ),
            markdown_table(("program", "change", "machine, ms", "with the rows", "error", "without", "error"), _rows(lines)),
            *_listed("Not answered", [(line.program, line.reason) for line in lines if line.lumos is None]),
            *_listed(
                f"Further than {REACH:.0%} from the truth",
                [(f"{x.program}, {x.change}", f"called {x.grade}. {x.reason}") for x in given if not x.right],
            ),
        ]
    )


def _rows(lines: Iterable[Answered]) -> list[tuple[str, ...]]:
    """One row for every question, with both recordings."""
    both: dict[tuple[str, str], dict[bool, Answered]] = {}
    for line in lines:
        both.setdefault((line.program, line.change), {})[line.optional] = line
    return [
        (
            program,
            change,
            f"{next(iter(of.values())).truth:.3f}",
            *(cell for optional in (True, False) for cell in _cells(of.get(optional))),
        )
        for (program, change), of in both.items()
    ]


def _cells(line: Answered | None) -> tuple[str, str]:
    if line is None or line.lumos is None or line.error is None:
        return "not answered", ""
    return f"{line.lumos:.3f}", f"{100 * line.error:+.2f} %"


def _listed(title: str, found: list[tuple[str, str]]) -> list[str]:
    """What was found and the reason, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for what, reason in found:
        by_reason.setdefault(reason, []).append(what)
    lines = [f"- {'; '.join(dict.fromkeys(all_of))}: {reason.strip()}" for reason, all_of in by_reason.items()]
    return [f"{title}:", "\n".join(lines)] if lines else []


def _worst(lines: Iterable[Answered]) -> float:
    return max((abs(line.error) for line in lines if line.error is not None), default=0.0)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2f} %"


def score(lines: list[Answered]) -> str:
    """The figures of some questions, in one line."""
    asked = [line for line in lines if line.change != "–"]
    given = [line for line in asked if line.lumos is not None]
    right, silent = sum(x.right for x in given), sum(x.silent for x in given)
    limited, warned = sum(x.grade is Grade.LIMITED for x in given), sum(x.warned for x in given)
    return (
        f"{len({x.program for x in asked})} programs, {len(asked)} questions: {len(asked) - len(given)} refused, {right} of {len(given)}"
        f" within {REACH:.0%} ({right / max(len(given), 1):.1%}), {limited} limited, {warned} wrong but warned, {silent} silently wrong"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs to ask about, all where none is named")
    parser.add_argument("--seed", type=int, help="draw programs by this seed, and ask about them alone")
    parser.add_argument("--number", type=int, default=30, help="how many programs to draw")
    parser.add_argument("--score", action="store_true", help="print the score alone, so that the seed stays unread")
    parser.add_argument("--write", action="store_true", help="write the score of the seed's programs into a file of its own")
    options = parser.parse_args()
    cases = CASES if options.seed is None else drawn(options.seed, options.number)
    with tempfile.TemporaryDirectory() as folder:
        lines = [
            line
            for i, case in enumerate(cases)
            for optional in (True, False)
            if not options.names or case.name in options.names
            for line in answered(case, Path(folder) / f"{i}{optional}", optional=optional)
        ]
    if not options.score:
        _print(lines)
    print(score(lines))
    if not options.names and options.seed is None:
        write_result("validation/results/truth.md", section(lines))
    elif not options.names and options.write:
        write_result(f"validation/results/truth-{options.seed}.md", section(lines, options.seed))
    return 0 if all(line.right for line in lines) else 1


def _print(lines: list[Answered]) -> None:
    print(f"{'program':24} {'change':25} rows {'machine':>8} {'Lumos':>8} {'error':>9}")
    for line in lines:
        said = f"{line.lumos:8.3f} {100 * (line.error or 0):+7.2f} %" if line.lumos is not None else "not answered"
        held = f", wrong, {line.interval[0]:.3f} to {line.interval[1]:.3f}"
        mark = "" if line.right else f"  {line.grade}: {line.reason}" if line.lumos is None else f"  {line.grade}{held}"
        print(f"{line.program:24} {line.change.replace('`', ''):25} {'yes' if line.optional else 'no':4} {line.truth:8.3f} {said}{mark}")


if __name__ == "__main__":
    sys.exit(main())
