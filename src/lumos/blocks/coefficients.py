"""The global coefficients of a whole step: effects that measurements of single kernels do not show.

There are at most 25, none for a single run or source. `validation/runs.py --fit` fits the shipped ones to published runs;
validation/results/runs.md lists them with their errors on runs that were left out of the fit.
"""

import tomllib
from functools import cache
from pathlib import Path

import msgspec

STEP_FILE = Path(__file__).parent / "data" / "step.toml"


class StepCoefficients(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Factors multiply the cost models' times; 1 leaves them as they are.

    gemm, attention, traffic (element-wise kernels), collective: time inside a step / time alone. contention: compute loses this share of
    the time of concurrent communication, which takes SMs and memory bandwidth, while it runs. step: factor on the profiles' step_us. The
    last five are half-widths of the interval, as shares of the step (`lumos.prediction.step_time.half_width`). spread: the least of a
    profile that published runs were compared with. untried: of one that was not compared on the accelerator, beyond the cost models'
    intervals. Both are calibrated on sources without the runs that stand behind their profile. unprofiled: of a framework without a
    profile, beyond those and its questions (calibrated on frameworks left out). unmeasured: of an accelerator whose kernels were not
    measured, beyond that (accelerators left out of the fit of multiplications: docs/cost-models.md). mixture: of a model with experts,
    beyond that: no table of kernels has products for many experts, permutations of tokens or DeepEP's exchanges, and frameworks differ in
    them most (calibrated on mixtures of experts that were never fitted to).
    """

    gemm: float = 1.0
    attention: float = 1.0
    collective: float = 1.0
    traffic: float = 1.0
    contention: float = 0.3
    step: float = 1.0
    spread: float = 0.07
    unprofiled: float = 0.05
    untried: float = 0.2
    unmeasured: float = 0.12
    mixture: float = 0.2


@cache
def shipped_step_coefficients() -> StepCoefficients:
    """The coefficients that ship with Lumos."""
    if not STEP_FILE.exists():
        return StepCoefficients()
    return msgspec.convert(tomllib.loads(STEP_FILE.read_text(encoding="utf-8")), StepCoefficients)


def kernel_by_kernel() -> StepCoefficients:
    """The shipped coefficients for a step whose every kernel is known, as in an emulated script.

    Multiplications, attention and element-wise kernels then take what the cost models say. The fitted factors on them also stand for
    kernels that frameworks launch and their profiles do not list, which such a step has for itself.
    """
    return msgspec.structs.replace(shipped_step_coefficients(), gemm=1.0, attention=1.0, traffic=1.0)
