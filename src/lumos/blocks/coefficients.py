"""The global coefficients of a whole step: what kernels measured alone do not show.

At most 25, none per row or source. `shipped` are those fitted by tools/fit_step.py over the published runs; docs/accuracy.md
lists them with how they score on runs left out.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import msgspec

DATA = Path(__file__).parent / "data" / "step.toml"


class StepCoefficients(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Factors are on the cost models' times; 1 = as measured alone.

    gemm, attention, traffic (element-wise kernels), collective: kernels inside a step / alone.
    throttle: clock lost in a step, beyond the clusters' sustained clock, for every 16-bit peak of an A100 that a device has
    more than one (denser arithmetic at a power that grows far less). host: factor on the profiles' host times. contention:
    share of the time of communication beside compute that the compute loses (SMs and memory bandwidth taken). jitter:
    growth of the step per doubling of the nodes beyond one (the slowest of many). step: factor on the profiles' step_us.
    spread: half-width of the 80 % interval that the cost models' own intervals lack.
    """

    gemm: float = 1.0
    attention: float = 1.0
    collective: float = 1.0
    throttle: float = 0.02
    traffic: float = 1.0
    host: float = 1.0
    contention: float = 0.3
    jitter: float = 0.002
    step: float = 1.0
    spread: float = 0.08


@cache
def shipped() -> StepCoefficients:
    """The coefficients that ship with Lumos."""
    if not DATA.exists():
        return StepCoefficients()
    return msgspec.convert(tomllib.loads(DATA.read_text(encoding="utf-8")), StepCoefficients)
