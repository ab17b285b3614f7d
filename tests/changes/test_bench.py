from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import lumos
from lumos.analyze.loop.steps import step_times
from lumos.changes.bench import Bench
from lumos.changes.changes import Changes
from lumos.changes.durations import Durations
from lumos.changes.whatif import answer_changes
from lumos.errors import LumosError, UsageError

EXAMPLE = Path(__file__).parents[2] / "examples" / "gpt-2rank-cpu"
CHANGES = [
    Durations.parse(["aten::mm=0.5"], (), (), ()),
    Durations.parse(["*all_reduce*=3"], (), (), ["1=1.25"]),
    Durations.parse((), ["aten::sqrt"], (), ()),
]


@pytest.fixture(scope="module")
def bench():
    job = lumos.read(EXAMPLE)
    graph = lumos.build(job)
    return Bench(job, graph, lumos.simulate(graph))


@pytest.mark.parametrize("changes", CHANGES, ids=lambda c: "; ".join(c.described()))
def test_it_gives_the_answer_of_a_separate_what_if(bench, changes):
    slow = answer_changes(bench.job, bench.graph, Changes(durations=changes))
    found = bench.outcome(bench.changed(changes))
    assert found.step_time_s == pytest.approx(slow.outcome.step_time_s, abs=1e-12)
    assert found.breakdown == pytest.approx(slow.outcome.breakdown, abs=1e-12)
    # The interval of the bench has only the replay's own error; that of a separate what-if adds the uncertainty of scaled work.
    assert slow.outcome.step_time_low_s <= found.step_time_low_s + 1e-12 <= found.step_time_s + 2e-12
    assert found.step_time_s <= found.step_time_high_s + 1e-12 <= slow.outcome.step_time_high_s + 2e-12
    assert bench.measured_step_s == slow.measured_step_s
    assert bench.moved(bench.changed(changes)) == slow.moved


def test_no_change_is_the_base(bench):
    assert bench.outcome(bench.changed(Durations())) == bench.outcome(bench.graph)


def test_the_parts_sum_to_the_step(bench):
    found = bench.outcome(bench.graph)
    assert sum(found.breakdown) == pytest.approx(found.step_time_s, abs=1e-12)


def test_the_loop_takes_what_the_recorded_steps_took(bench):
    found = bench.outcome(bench.graph)
    assert found.basis == "period"
    assert found.step_time_s == pytest.approx(step_times(bench.base, bench.owners).mean_ns * 1e-9, rel=0.01)


def test_a_step_that_is_not_there_is_named(bench):
    with pytest.raises(UsageError, match=r"no step 'nine'; it has ProfilerStep#10"):
        bench.check_step("nine")


def test_a_pattern_that_matches_nothing_is_an_error(bench):
    with pytest.raises(LumosError, match="no task matches"):
        bench.changed(Durations.parse(["nothing*=2"], (), (), ()))


def test_the_causes_of_an_interval_make_up_its_width(bench):
    """The gpt example has three periods, and nothing of it is unknown: its half-width is the replay's error and the steps' spread."""
    found, causes = bench.outcome(bench.graph), bench.interval_causes(bench.graph)
    assert not causes.few_steps
    assert (causes.unknown_s, causes.gaps_s) == (0, 0)
    half = (causes.base_error**2 + causes.step_spread**2) ** 0.5
    assert found.step_time_high_s / found.step_time_s - 1 == pytest.approx(max(half, 0.001), rel=1e-6)


def test_what_the_interval_of_a_changed_plan_consists_of(bench):
    """A base of 10 s, 10 % either way; the changed step between 7.2 and 13.2 s. Without those 10 % it is between 8 and 12 s, which is what
    the costs of its work leave open. With 1 % of the base unknown, each end lies another 0.1 s out."""
    base, changed = step_of(10, 9, 11), step_of(10.5, 7.2, 13.2)
    causes = bench.causes_of(SimpleNamespace(base=base, outcome=changed, trust=SimpleNamespace(unknown=0.0), altered=True))
    assert causes.prices_s == pytest.approx(4)
    assert (causes.unknown_s, causes.gaps_s) == (0, 0)
    assert causes[:3] == bench.interval_causes(bench.graph)[:3]
    changed = step_of(10.5, 7.1, 13.3)
    causes = bench.causes_of(SimpleNamespace(base=base, outcome=changed, trust=SimpleNamespace(unknown=0.01), altered=True))
    assert (causes.unknown_s, causes.prices_s) == (pytest.approx(0.1), pytest.approx(4))


def step_of(time, low, high):
    return SimpleNamespace(step_time_s=time, step_time_low_s=low, step_time_high_s=high)
