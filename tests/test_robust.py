"""Hostile inputs end as they must: a share of the corpus here, all of it in `make test-all`."""

import pytest
from validation.robust import run
from validation.robust_inputs import cases

CASES = list(cases())


def test_the_corpus_is_of_some_size_and_each_case_has_a_name():
    assert len(CASES) >= 120 and len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES[::12], ids=lambda case: case.name)
def test_a_share_of_the_corpus_ends_as_expected(case, tmp_path):
    assert run(case, tmp_path).fault == ""


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_ends_as_expected(case, tmp_path):
    assert run(case, tmp_path).fault == ""
