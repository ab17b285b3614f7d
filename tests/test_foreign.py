"""The shipped recordings of other people's scripts before and after a change (`validation.foreign`) are answered."""

from pathlib import Path

from validation.foreign.pairs import BASES, folder_of
from validation.foreign.score import score, section

EXAMPLES = Path(__file__).parents[1] / "examples" / "foreign"


def test_the_shipped_recordings_are_answered_and_shuffled_truths_are_not_met() -> None:
    names = {folder_of(base) for base in BASES}
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} <= names
    scores = score(EXAMPLES)
    shuffled = score(EXAMPLES, shuffle=True)
    assert scores
    answered = [abs(s.error) for s in scores if s.error is not None]
    wrong = [abs(s.error) for s in shuffled if s.error is not None]
    assert sorted(wrong)[len(wrong) // 2] > 5 * sorted(answered)[len(answered) // 2]
    assert section(scores).startswith("Written by `python -m validation.foreign DIR --held-out --write`")
    assert not any(s.pair.held_out for s in scores)
