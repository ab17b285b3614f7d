"""Answers are compared with the frozen ones one by one, and only a note about the very answer explains a difference."""

import pytest
from validation import consequences
from validation.consequences import Note, compared, frozen_answers, noted, said, table, write
from validation.consequences_asked import EXAMPLES, PREDICTIONS, RECORDINGS, Consequence, answers

PLAIN = Consequence("job", "replay", step_s=1.0, base_s=1.0, measured_s=1.02, grade="sound")
KEY = PLAIN.key


def differing(old, new, notes=None):
    return compared([old], [new], notes or {})[0]


def test_an_answer_that_moved_by_no_more_than_rounding_is_equal():
    assert compared([PLAIN], [PLAIN._replace(step_s=1.0004, base_s=0.9996)], {}) == ([], 1)
    assert compared([PLAIN._replace(step_s=0.0)], [PLAIN._replace(step_s=0.0)], {}) == ([], 1)


@pytest.mark.parametrize(
    "changed",
    [{"step_s": 1.0006}, {"low_s": 0.9}, {"measured_s": None}, {"grade": "limited"}, {"finding": "stall"}, {"refused": "no timeline"}],
    ids=lambda changed: next(iter(changed)),
)
def test_a_figure_a_grade_a_finding_and_a_refusal_differ(changed):
    (found,) = differing(PLAIN, PLAIN._replace(**changed))
    assert found.note is None and "NOT EXPLAINED" in table([found])


def test_how_a_refusal_is_worded_does_not_count():
    refused = Consequence("job", "--set tp=2", refused="no heads")
    assert not differing(refused, refused._replace(refused="the job has no heads"))


def test_a_question_of_one_side_differs_and_a_job_that_is_not_here_is_left_out():
    other = PLAIN._replace(question="diagnose")
    assert [(each.old, each.new) for each in compared([PLAIN], [other], {})[0]] == [(PLAIN, None), (None, other)]
    assert compared([PLAIN, PLAIN._replace(job="elsewhere")], [PLAIN], {}) == ([], 1)


def test_a_note_explains_the_answer_that_it_is_about_and_no_later_one():
    note = Note("better", "the loop's own time counts", 1.02)
    (found,) = differing(PLAIN, PLAIN._replace(step_s=1.02), {KEY: note})
    assert found.note is note and "better: the loop's own time counts" in table([found])
    assert differing(PLAIN, PLAIN._replace(step_s=1.1), {KEY: note})[0].note is None


def test_a_difference_shows_old_new_and_how_far_each_is_from_the_measurement():
    text = table(differing(PLAIN, PLAIN._replace(step_s=1.02, base_s=1.02)))
    assert "old  1 s sound; simulated against measured -1.96%" in text
    assert "new  1.02 s sound; simulated against measured +0.00%" in text
    assert said(Consequence("job", "read", refused="no file")) == "refused: no file"


def test_answers_come_back_as_they_were_frozen(tmp_path):
    found = [PLAIN, Consequence("job", "--set tp=2", refused='no "heads", none')]
    write(found, tmp_path / "frozen.csv")
    assert frozen_answers(tmp_path / "frozen.csv") == found


def test_a_note_has_a_verdict_and_a_reason(tmp_path):
    path = tmp_path / "accepted.toml"
    text = '[[accepted]]\njob = "job"\nquestion = "replay"\nstep_s = 1.02\nverdict = "{}"\nwhy = "as measured"\n'
    path.write_text(text.format("better"))
    assert noted(path) == {KEY: Note("better", "as measured", 1.02)}
    path.write_text(text.format("so be it"))
    with pytest.raises(ValueError, match="job, replay: the verdict is one of better, worse"):
        noted(path)
    path.write_text(consequences.NO_NOTES)
    assert noted(path) == {}


def test_every_question_has_a_frozen_answer_and_no_other_has():
    frozen = {each.key for each in frozen_answers()}
    for job, asked in (RECORDINGS | EXAMPLES).items():
        assert {question for name, question in frozen if name == job} - {"heaviest kernel x0.5"} == {"replay", "diagnose", *asked}
    assert {job for job, _ in frozen} == {*RECORDINGS, *EXAMPLES, "predict"}
    assert {question for job, question in frozen if job == "predict"} == PREDICTIONS.keys()


def test_the_projects_own_recording_answers_as_frozen_or_as_noted():
    now = list(answers(None, frozenset({"examples/faults/plain"})))
    differences, equal = compared(frozen_answers(), now, noted())
    unexplained = [each for each in differences if each.note is None]
    assert not unexplained, table(unexplained)
    assert equal + len(differences) == len(EXAMPLES["examples/faults/plain"]) + 2
