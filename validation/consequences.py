"""What a change of the code does to Lumos' answers: each compared with the one that was frozen.

    LUMOS_TRACES=... python -m validation.consequences            # prints the answers that differ
    LUMOS_TRACES=... python -m validation.consequences --write    # freezes today's answers, and empties the notes

The questions stand in `validation.consequences_asked`, the frozen answers in validation/results/consequences.csv. An answer differs where
a figure moved by more than 0.05 %, or where the grade, the first finding, or whether it is refused is another. Each difference that is
meant gets a note in validation/results/consequences-accepted.toml: whether it is better or worse, and why. Exit status 1 where an answer
differs without a note. Questions about recordings that are not here are left out, and counted.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from validation.consequences_asked import Consequence, answers

RESULTS = Path(__file__).resolve().parent / "results"
FROZEN = RESULTS / "consequences.csv"
ACCEPTED = RESULTS / "consequences-accepted.toml"

#: How far a figure may move and still be the same: rounding, and sums in another order.
SAME = 0.0005
FIGURES = ("step_s", "low_s", "high_s", "base_s", "measured_s")
_VERDICTS = ("better", "worse")

NO_NOTES = """# Answers that differ from those in consequences.csv, and are meant to: one table each.
#
# [[accepted]]
# job = "resnet-v100/rank0.json.gz"
# question = "--scale cpu:*=0.5"
# step_s = 0.0712     # what the answer is now; another change of it needs another note. Left out where it is refused.
# verdict = "better"  # or "worse"
# why = "the step ends where the next one's first kernel can start"
#
# python -m validation.consequences --write freezes today's answers and empties this file.
"""


class Note(NamedTuple):
    """Why an answer is meant to be another. step_s: the answer that the note is about, None where it is a refusal or has no such figure."""

    verdict: str
    why: str
    step_s: float | None = None


class Difference(NamedTuple):
    """A frozen answer and today's; None where there is none. note: what explains it."""

    old: Consequence | None
    new: Consequence | None
    note: Note | None = None

    @property
    def key(self) -> tuple[str, str]:
        either = self.old or self.new
        assert either is not None
        return either.key


def moved(old: float | None, new: float | None) -> bool:
    """Whether a figure is another by more than what counts as the same."""
    if old is None or new is None:
        return old is not new
    return abs(new - old) > SAME * abs(old)


def differs(old: Consequence, new: Consequence) -> bool:
    """Whether two answers to one question are different. How a refusal is worded does not count."""
    words = (old.grade, old.finding, bool(old.refused)) != (new.grade, new.finding, bool(new.refused))
    return words or any(moved(getattr(old, figure), getattr(new, figure)) for figure in FIGURES)


def compared(
    frozen: Iterable[Consequence], now: Iterable[Consequence], notes: Mapping[tuple[str, str], Note]
) -> tuple[list[Difference], int]:
    """The answers that differ, and how many are equal. A question that only one side has differs; jobs that `now` has nothing about are
    left out."""
    today = {each.key: each for each in now}
    jobs = {job for job, _ in today}
    before = {each.key: each for each in frozen if each.job in jobs}
    pairs = [(before.get(key), today.get(key)) for key in dict.fromkeys((*before, *today))]
    different = [Difference(old, new, _explained(new, notes)) for old, new in pairs if old is None or new is None or differs(old, new)]
    return different, len(pairs) - len(different)


def _explained(new: Consequence | None, notes: Mapping[tuple[str, str], Note]) -> Note | None:
    """The note that explains today's answer: one of its question, about the figure that it has."""
    note = notes.get(new.key) if new else None
    return None if new is None or note is None or moved(note.step_s, new.step_s) else note


def distance(answer: Consequence | None) -> str:
    """How far the simulated job is from the measured one, in per cent of this."""
    if answer is None or answer.base_s is None or not answer.measured_s:
        return "–"
    return f"{answer.base_s / answer.measured_s - 1:+.2%}"


def said(answer: Consequence | None) -> str:
    """An answer in a few words."""
    if answer is None:
        return "not asked"
    if answer.refused:
        return f"refused: {answer.refused}"
    step = "–" if answer.step_s is None else f"{answer.step_s:.6g} s"
    interval = "" if answer.low_s is None or answer.high_s is None else f" ({answer.low_s:.4g} to {answer.high_s:.4g})"
    return " ".join(word for word in (step + interval, answer.finding, answer.grade) if word)


def table(differences: Iterable[Difference]) -> str:
    """The differences as text: old, new, and how far each is from the measurement."""
    lines = []
    for each in differences:
        verdict = f"{each.note.verdict}: {each.note.why}" if each.note else "NOT EXPLAINED"
        lines += [
            f"{each.key[0]}  {each.key[1]}  [{verdict}]",
            f"    old  {said(each.old)}; simulated against measured {distance(each.old)}",
            f"    new  {said(each.new)}; simulated against measured {distance(each.new)}",
        ]
    return "\n".join(lines)


def frozen_answers(path: Path = FROZEN) -> list[Consequence]:
    """The answers as they were last frozen."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [Consequence(**{key: _figure(text) if key in FIGURES else text for key, text in row.items()}) for row in rows]


def _figure(text: str) -> float | None:
    return float(text) if text else None


def write(found: Iterable[Consequence], path: Path = FROZEN) -> None:
    """Freeze answers."""
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(Consequence._fields)
        rows.writerows(["" if value is None else value for value in each] for each in found)


def noted(path: Path = ACCEPTED) -> dict[tuple[str, str], Note]:
    """The notes by job and question. Raises ValueError where a verdict is neither better nor worse, or no reason is given."""
    found = {}
    for each in tomllib.loads(path.read_text(encoding="utf-8")).get("accepted", []):
        if each["verdict"] not in _VERDICTS or not each["why"].strip():
            raise ValueError(f"{path}: {each['job']}, {each['question']}: the verdict is one of {', '.join(_VERDICTS)}, with a reason")
        found[each["job"], each["question"]] = Note(each["verdict"], each["why"], each.get("step_s"))
    return found


def main() -> int:
    """Compare, or freeze."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="freeze today's answers, and empty the notes")
    options = parser.parse_args()
    root = os.environ.get("LUMOS_TRACES")
    if options.write and not root:
        print("LUMOS_TRACES is not set: without the public traces their frozen answers would be lost", file=sys.stderr)
        return 1
    now = list(answers(Path(root) if root else None))
    if options.write:
        write(now)
        ACCEPTED.write_text(NO_NOTES, encoding="utf-8")
        print(f"{len(now)} answers frozen")
        return 0
    frozen = frozen_answers()
    differences, equal = compared(frozen, now, noted())
    unexplained = sum(each.note is None for each in differences)
    absent = sum(each.job not in {here.job for here in now} for each in frozen)
    if differences:
        print(table(differences))
    print(f"{equal} answers equal, {len(differences)} differ, {unexplained} of them not explained, {absent} not asked")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
