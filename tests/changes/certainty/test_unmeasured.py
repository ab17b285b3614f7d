"""What a recording does not show of a job, on jobs of a few tasks (µs)."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.analyze.conftest import draw

import lumos
from lumos.analyze.loop.steady import altered, steady
from lumos.analyze.loop.steps import members
from lumos.changes.answer import LoopFigures, StepWork, outcome
from lumos.changes.certainty.unmeasured import unmeasured
from lumos.graph.table import Kind, Processor, Step

US = 1000


def beside(stacks, *, timer=False):
    """The members of a job in whose steps thread 1 works for 20 µs, and thread 2 for so many beside it, or not at all."""
    threads = [Processor(0, False, "thread 1", lane=1), Processor(0, False, "thread 2", lane=2, timer=timer)]
    tasks, marks = [], []
    for i, us in enumerate(stacks):
        marks.append(Step(0, f"ProfilerStep#{i}", 20 * i * US, (20 * i + 20) * US, lane=1))
        tasks.append((0, Kind.OPERATOR, "work", 20 * i, 20 * i + 20))
        tasks += [(1, Kind.OPERATOR, "stack", 20 * i, 20 * i + us)] if us else []
    return members(draw(threads, tasks, [], marks))


def with_work_of(owners, us):
    graph = owners.graph
    work = np.array([graph.names[name] == "work" for name in graph.name])
    return altered(steady(owners), replace(owners, graph=replace(graph, duration=np.where(work, us * US, graph.duration))))


@pytest.mark.parametrize(
    ("stacks", "us", "high"),
    [
        ((8, 8, 8, 8), 10, 10),
        ((8, 8, 8, 8), 5, 20),  # its pauses may be work of which no row tells
        ((8, 8, 8, None), 7, 20),  # what runs when the recording ends has no row
        ((8, None, 8, None, 8), 3, 20),  # work for every second step
        ((8, None, 8, None, 8), 5, 5),
    ],
)
def test_a_thread_beside_the_loop_cannot_lag_behind_without_end(stacks, us, high):
    found = unmeasured(steady(owners := beside(stacks)), with_work_of(owners, us))
    assert (found.low_ns, found.high_ns) == (us * US, high * US)
    assert [each.code for each in found.evidence] == ["thread-beside"] * (high > us)


def test_a_thread_beside_the_loop_adds_what_its_work_does():
    """Of a thread that works for 8 of 20 µs and then for 24, the other 12 may be work too."""
    owners = beside((8, 8, 8, 8))
    stacks = np.array([owners.graph.names[name] == "stack" for name in owners.graph.name])
    longer = replace(owners, graph=replace(owners.graph, duration=np.where(stacks, 24 * US, owners.graph.duration)))
    assert unmeasured(steady(owners), altered(steady(owners), longer)).high_ns == 36 * US


def test_a_timer_goes_by_the_clock():
    owners = beside((8, 8, 8, 8), timer=True)
    assert unmeasured(steady(owners), with_work_of(owners, 5)).high_ns == 5 * US


def test_a_step_takes_no_less_than_nothing_however_much_steps_differ():
    figures = LoopFigures(with_work_of(beside((8, 8, 8, 8)), 10))
    found = outcome(figures, (-0.5, 2.5), StepWork())
    assert (found.step_time_low_s, found.step_time_high_s) == (0, 25e-6)


def test_an_answer_that_models_mostly_price_is_limited():
    """Four replicas of a recommender exchange its tables, which nobody recorded; of a transformer they hide behind the backward pass."""
    examples = Path(__file__).parents[3] / "examples" / "foreign"
    tables, layers = (lumos.whatif(examples / name, dp=4) for name in ("DLRM__tf32", "nn_Transformer__tf32"))
    assert tables.share.modelled > 0.1 and [reason.code for reason in tables.trust.reasons] == ["mostly-modelled"]
    assert layers.share.modelled < 0.1 and not layers.trust.reasons
