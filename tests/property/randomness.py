"""Where random jobs take their numbers from: choices that Hypothesis can make smaller, or a seed where very many jobs are wanted.

Hypothesis keeps a record of every choice, which takes it several times longer than all simulations of the job together. That is worth it
as long as a counterexample shall become small. The profile `fuzz` of `tests/conftest.py` wants many jobs instead: there Hypothesis chooses
a seed alone, and the failure that it prints has the seed in it.
"""

from random import Random

from hypothesis import settings
from hypothesis import strategies as st

#: Examples of a property from which on a job is made of a seed.
MANY = 10_000


@st.composite
def randoms(draw: st.DrawFn) -> Random:
    """A source of random numbers, whose every choice Hypothesis makes unless the profile asks for MANY examples."""
    if settings().max_examples >= MANY:
        return Seeded(draw(st.integers(0, 2**63 - 1)))
    return draw(st.randoms())


class Seeded(Random):
    """Random numbers that print as their seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._seed = seed

    def __repr__(self) -> str:
        return f"Seeded({self._seed})"
