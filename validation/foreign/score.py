"""The score of the pairs: every base is read and built once, changed as each of its pairs says, and the answer compared with the target."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tools.document import markdown_table
from validation.foreign.drawn import SEED
from validation.foreign.pairs import PAIRS, Pair, drawn_pairs, folder_of
from validation.goals import marked

from lumos.analyze.trust import trust
from lumos.changes.changes import Changes
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.errors import LumosError, QuestionError
from lumos.graph.build import build
from lumos.trace import read
from lumos.vocabulary import Grade

#: Figures to reach: share answered; median, 90th percentile and largest error, as fractions; bounds of what the 80 % interval holds.
ANSWERED, MEDIAN, NINETIETH, WORST, HOLDS = 0.9, 0.02, 0.06, 0.12, (0.7, 0.9)

#: Pairs held out are summed by their setting where it has at least so many.
FEWEST = 4


@dataclass(frozen=True)
class Score:
    """One pair, times in ms. answer: None where Lumos gives none, for the reason `why`. proportional: see `record`.

    low, high: of the answer's 80 % interval. asked: Lumos first asked what was recorded, and the answer is that after one statement, as far
    as there is one.
    """

    pair: Pair
    base: float
    target: float
    proportional: float
    answer: float | None = None
    low: float = 0.0
    high: float = 0.0
    grade: str = ""
    why: str = ""
    asked: bool = False

    @property
    def error(self) -> float | None:
        return None if self.answer is None else self.answer / self.target - 1

    @property
    def holds(self) -> bool:
        return self.low <= self.target <= self.high


def score(
    folder: Path, words: Sequence[str] = (), *, held_out: bool = False, shuffle: bool = False, among: Sequence[Pair] = PAIRS
) -> list[Score]:
    """Those of the pairs that were recorded in a folder, without the held-out ones unless asked for. shuffle: each against the target of
    the next pair."""
    truth = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    pairs = [p for p in among if p.name in truth and (held_out or not p.held_out) and (not words or any(word in p.name for word in words))]
    out: list[Score] = []
    for base in dict.fromkeys(pair.base for pair in pairs):
        answer = _answers(folder / folder_of(base))
        for pair in (p for p in pairs if p.base == base):
            known = truth[pair.name]
            out.append(answer(Score(pair, known["base_ms"], known["target_ms"], known["proportional_ms"])))
            print(f"{pair.name}: {_said(out[-1])}", file=sys.stderr, flush=True)
    if shuffle:
        out = [replace(a, target=b.target, proportional=b.proportional) for a, b in zip(out, [*out[1:], *out[:1]], strict=True)]
    return out


def _said(s: Score) -> str:
    """What is told of a pair while the others are scored: of one shown only in sums, nothing but that it is."""
    if s.pair.hidden:
        return "scored"
    return s.why if s.error is None else f"{s.error:+.2%} of {s.target:.2f} ms"


def _answers(recording: Path) -> Callable[[Score], Score]:
    """What Lumos says of changes of one recording."""
    job = read(str(recording))
    graph = build(job)
    grounds = trust(graph)

    def answer(asked: Score) -> Score:
        changes = Changes(parse_settings(asked.pair.change.split(",")))
        try:
            try:
                found = answer_changes(job, graph, changes, trust=grounds)
            except QuestionError as question:
                asked = replace(asked, asked=True)
                found = answer_changes(job, graph, replace(changes, base=_stated(asked.pair, question)), trust=grounds)
        except LumosError as error:
            return replace(asked, why=str(error).replace(str(recording), "").strip())
        if found.trust.grade is Grade.UNSOUND:
            return replace(asked, grade=str(found.trust.grade), why=found.trust.why)
        times = (1e3 * t for t in (found.outcome.step_time_s, found.outcome.step_time_low_s, found.outcome.step_time_high_s))
        low_to_high = dict(zip(("answer", "low", "high"), times, strict=True))
        return replace(asked, **low_to_high, grade=str(found.trust.grade))  # type: ignore[arg-type]

    return answer


def _stated(pair: Pair, question: QuestionError) -> dict[str, str]:
    """What somebody who knows the script answers to a question: the first candidate with the number that the job has."""
    known = pair.job.sizes.get(question.key, getattr(pair.job, question.key, 0))
    return {question.key: next((each.name for each in question.candidates if each.value == known), str(known))}


def section(scores: Sequence[Score]) -> str:
    """The text of its result file: the pairs looked at one by one, those held out only in sums."""
    open_ones, held = [s for s in scores if not s.pair.held_out], [s for s in scores if s.pair.held_out]
    shown = [("looked at", open_ones), ("held out", held), ("all", scores)] if held else [("looked at", open_ones)]
    heads = ("what", "to reach", *(name for name, _ in shown))
    rows = [(what, reach, *(of(each) for _, each in shown)) for what, reach, of in FIGURES]
    lines = [
        "Written by `python -m validation.foreign DIR --held-out --write`; `--record DIR` makes the recordings, of which a few are in",
        "`examples/foreign`. Scripts with models of `transformers` and `torch.nn` run on fake tensors; their operators launch kernels with",
        "a pricing of their own (tiles, waves, and factors that no formula knows) on a simulated machine that shares no code with Lumos.",
        "Base and target are both run; Lumos gets the recording of the base. Half of the pairs, chosen by a hash of their names, are held",
        "out: of these only sums are shown. Their rows have been read since, to find causes, so that the draws below are what tells of",
        "jobs unseen. In proportion: the error of an answer that knows every launch of the target and scales the times of the base's",
        "kernels in proportion to their work.",
        "",
        markdown_table(heads, rows),
        "",
        *_by_key(held),
        markdown_table(
            ("job", "change", "base, ms", "target, ms", "error", "80 % interval", "holds", "in proportion", "trust"), map(_row, open_ones)
        ),
        "",
        *_refused(open_ones),
    ]
    return "\n".join(lines)


#: What is drawn from in the first draw and in the later ones.
FIRST_FAMILIES = (
    "drawn by a seeded generator from families of `transformers` that the pairs above do not hold (OPT, Qwen2, Gemma, RoBERTa, DeiT, BART,",
    "and Llama and GPT-2 in pipelines), recorded and scored as above.",
)
LATER_FAMILIES = (
    "drawn by a seeded generator, first from families that were written after the first draw was scored (GPT-NeoX, Falcon, Qwen3 with",
    "experts, Mamba 2, Whisper and ConvNeXt of `transformers`, the U-Net of `diffusers`, a decoder with tensor parallelism by hand, a",
    "vision transformer by hand, DLRM), then from those of the first draw, recorded and scored as above.",
)
ODD_FAMILIES = (
    "drawn by a seeded generator from odd families: recommenders with tables, a cell in a loop over time, an array of latents, an encoder",
    "and a decoder of two lengths, low-rank parts with recomputed layers, preferences against a frozen reference, experts of a fixed",
    "capacity.",
    "Where Lumos asks what was recorded, the first candidate with the script's own number is stated with `--base`, once.",
)
#: What the first score of a draw said, by its seed, made before anybody read the draw's rows. Later its rows were read, and causes found in
#: them mended, so that the table of such a draw is no measure of jobs unseen any more.
UNREAD = {
    SEED: "of 33 pairs: answered 91 %, error 1.4 % in the middle, 5.6 % at the 90th percentile, 10.3 % at worst",
    2: "answered 100 %, error 0.59 % in the middle, 3.84 % at the 90th percentile, 29.98 % at worst, interval held 86 %, limited 12 %",
    3: "answered 95 %, error 0.94 % in the middle, 4.79 % at the 90th percentile, 16.88 % at worst, interval held 81 %, limited 3 %",
}


def drawn_section(scores: Sequence[Score], seed: int = SEED, *, odd: bool = False) -> str:
    """The text of the result file on the pairs of a draw: sums alone."""
    first, kind = seed == SEED and not odd, "odd" if odd else "drawn"
    unread = (
        f"The first score was made with their rows unread ({UNREAD[seed]}). Then the rows were read, and causes found in them mended."
        if seed in UNREAD and not odd
        else "Nobody has looked at their rows."
    )
    lines = [
        f"Written by `python -m validation.foreign DIR --{kind} {'' if first else f'--seed {seed} '}--write`; `--record` records.",
        "Jobs and changes are",
        *(ODD_FAMILIES if odd else FIRST_FAMILIES if first else LATER_FAMILIES),
        unread,
        f"Recorded, in the order of the draw, are {len(scores)} of {len(drawn_pairs(seed, odd=odd))}.",
        "",
        markdown_table(("what", "to reach", "drawn"), [(what, reach, of(scores)) for what, reach, of in FIGURES]),
        "",
        *_by_key(scores),
    ]
    return "\n".join(lines)


def _errors(scores: Sequence[Score]) -> list[float]:
    return sorted(abs(s.error) for s in scores if s.error is not None)


def _proportional(scores: Sequence[Score]) -> list[float]:
    return sorted(abs(s.proportional / s.target - 1) for s in scores)


def _of(errors: Sequence[float], share: float, most: float = math.inf) -> str:
    """The share-quantile of sorted errors: the smallest that at least that share of them does not exceed; most: the figure to reach."""
    if not errors:
        return "–"
    error = errors[min(len(errors) - 1, max(0, -int(-share * len(errors) // 1) - 1))]
    return marked(f"{error:.2%}", error <= most)


def _share(found: Sequence[bool], least: float = 0.0, most: float = 1.0) -> str:
    return marked(f"{statistics.mean(found):.0%} of {len(found)}", least <= statistics.mean(found) <= most) if found else "–"


Figure = tuple[str, str, Callable[[Sequence[Score]], str]]
FIGURES: tuple[Figure, ...] = (
    ("jobs; changes", "≥ 6; ≥ 80", lambda of: f"{len({s.pair.base for s in of})}; {len(of)}"),
    ("answered", f"≥ {ANSWERED:.0%}", lambda of: _share([s.answer is not None for s in of], ANSWERED)),
    ("asked, of all", "≤ 15 %", lambda of: _share([s.asked for s in of], most=0.15)),
    (
        "of those asked, answered after one `--base`",
        "≥ 95 %",
        lambda of: _share([s.answer is not None for s in of if s.asked], 0.95),
    ),
    ("absolute error: median", f"≤ {MEDIAN:.0%}", lambda of: _of(_errors(of), 0.5, MEDIAN)),
    ("90th percentile", f"≤ {NINETIETH:.0%}", lambda of: _of(_errors(of), 0.9, NINETIETH)),
    ("worst", f"≤ {WORST:.0%}", lambda of: _of(_errors(of), 1.0, WORST)),
    ("80 % interval holds", f"{HOLDS[0]:.0%} to {HOLDS[1]:.0%}", lambda of: _share([s.holds for s in of if s.answer is not None], *HOLDS)),
    (
        "of the answers, called limited",
        "≤ 20 %",
        lambda of: _share([s.grade == Grade.LIMITED for s in of if s.answer is not None], most=0.2),
    ),
    (
        "in proportion: median, 90th percentile, worst",
        "–",
        lambda of: ", ".join(_of(_proportional(of), share) for share in (0.5, 0.9, 1.0)),
    ),
)


def _by_key(held: Sequence[Score]) -> list[str]:
    """The pairs held out, summed by the setting that is changed. Settings with too few pairs to hide one are summed together."""
    by_key: dict[str, list[Score]] = {}
    for s in held:
        by_key.setdefault(_key(s.pair), []).append(s)
    few = [s for of in by_key.values() if len(of) < FEWEST for s in of]
    sums = [*((f"`{key}`", by_key[key]) for key in sorted(by_key) if len(by_key[key]) >= FEWEST), ("others", few)]
    figures = [FIGURES[at] for at in (1, 4, 7)]
    heads = ("by the setting that is changed", *(what for what, _, _ in figures))
    return [markdown_table(heads, [(name, *(of(each) for _, _, of in figures)) for name, each in sums if each]), ""] if held else []


def _key(pair: Pair) -> str:
    """The setting that a pair changes, or all of them."""
    return ", ".join(word.split("=")[0] for word in pair.change.split(","))


def _row(s: Score) -> tuple[str, ...]:
    change = s.pair.change.replace(",", ", ")
    times = f"{s.base:.2f}", f"{s.target:.2f}"
    alike = f"{s.proportional / s.target - 1:+.2%}"
    if s.error is None:
        return s.pair.base, change, *times, "not answered", "", "", alike, s.grade
    return s.pair.base, change, *times, f"{s.error:+.2%}", f"{s.low:.2f} to {s.high:.2f}", "yes" if s.holds else "no", alike, s.grade


def _refused(scores: Sequence[Score]) -> list[str]:
    """What was not answered, each reason once."""
    by_reason: dict[str, list[str]] = {}
    for s in scores:
        if s.answer is None:
            by_reason.setdefault(s.why, []).append(s.pair.name)
    return ["Not answered:", "", *(f"- {'; '.join(names)}: {why}" for why, names in by_reason.items())] if by_reason else []
