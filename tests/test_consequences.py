"""Answers are compared with the frozen ones one by one, and only a note about the very answer explains a difference."""

from validation.consequences import compared, frozen_answers, noted, table
from validation.consequences_asked import EXAMPLES, PREDICTIONS, RECORDINGS, answers


def test_every_question_has_a_frozen_answer_and_no_other_has():
    frozen = {frozen_answer.key for frozen_answer in frozen_answers()}
    for job, asked in (RECORDINGS | EXAMPLES).items():
        assert {question for name, question in frozen if name == job} - {"heaviest kernel x0.5"} == {"replay", "diagnose", *asked}
    assert {job for job, _ in frozen} == {*RECORDINGS, *EXAMPLES, "predict"}
    assert {question for job, question in frozen if job == "predict"} == PREDICTIONS.keys()


def test_the_projects_own_recording_answers_as_frozen_or_as_noted():
    now = list(answers(None, frozenset({"examples/faults/plain"})))
    differences, equal = compared(frozen_answers(), now, noted())
    unexplained = [difference for difference in differences if difference.note is None]
    assert not unexplained, table(unexplained)
    assert equal + len(differences) == len(EXAMPLES["examples/faults/plain"]) + 2
