"""The fit recovers the coefficients that made the data, stays at its priors without data, and can leave sources out."""

import msgspec
import numpy as np
import pytest
from tests.prediction.test_rows_of_runs import row
from tools.fit_step import FITTED_COEFFICIENTS, fit, linearise, predicted, problem

from lumos.blocks.coefficients import StepCoefficients, shipped_step_coefficients

PRIOR = StepCoefficients()
ROWS = [
    row(id=str(i), source=source, gpu=gpu, tp=tp, pp=pp, micro_batch=mb, global_batch="32", hidden="2048", heads="16", layers="8")
    for source, gpu in (("a", "A100"), ("b", "H100"))
    for i, (tp, pp, mb) in enumerate((("1", "1", "1"), ("2", "1", "4"), ("4", "1", "2"), ("2", "2", "2"), ("1", "4", "4")))
]


def test_coefficients_that_made_the_data_are_found():
    p = problem(ROWS)
    truth = msgspec.structs.replace(PRIOR, gemm=1.1, collective=1.3)
    p.measured = predicted(p, truth)
    found = fit(p, PRIOR)
    assert np.abs(predicted(p, found) / p.measured - 1).max() < 0.03


def test_data_that_agree_with_the_prior_leave_it():
    p = problem(ROWS)
    p.measured = predicted(p, PRIOR)
    found = fit(p, PRIOR)
    assert all(getattr(found, key) == pytest.approx(getattr(PRIOR, key), abs=0.01) for key in FITTED_COEFFICIENTS)


def test_a_source_left_out_has_no_say():
    p = problem(ROWS)
    p.measured = predicted(p, PRIOR)
    odd = np.array([s == "b" for s in p.sources])
    p.measured[odd] *= 1.5
    start = linearise(p, PRIOR)
    without = fit(p, PRIOR, leave_out="b", start=start)
    assert without.gemm == pytest.approx(PRIOR.gemm, abs=0.01)
    assert predicted(p, fit(p, PRIOR, start=start))[odd].sum() > predicted(p, PRIOR)[odd].sum()


def test_coefficients_are_few():
    assert len(FITTED_COEFFICIENTS) <= len(StepCoefficients.__struct_fields__) <= 25
    assert all(low <= getattr(shipped_step_coefficients(), key) <= high for key, (_, low, high) in FITTED_COEFFICIENTS.items())
