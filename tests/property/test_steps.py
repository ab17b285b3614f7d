"""Properties of steps and of what a loop takes, over random jobs whose step is repeated, and over the public traces that show a period."""

import os
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.property.test_engine import jobs

from lumos.analyze.loop.noise import identity
from lumos.analyze.loop.repeat import Loop, repeated
from lumos.analyze.loop.steady import AGREE, Steady, SweptLoop, altered, steady, with_other_durations
from lumos.analyze.loop.steps import Members, assigned, members, step_times
from lumos.changes.answer import Answer, parts_within, working_tasks
from lumos.changes.changes import Changes
from lumos.changes.durations import Durations
from lumos.changes.whatif import answer_changes
from lumos.errors import GraphError, LumosError
from lumos.graph.build import build
from lumos.graph.table import Graph, Step
from lumos.simulation import Timeline, freeze, measured, simulate, sweep
from lumos.simulation.durations import Mask, scale
from lumos.trace import read
from lumos.trace.table import Job

ROOT = os.environ.get("LUMOS_TRACES")
#: The public recordings that show a period.
WITH_PERIOD = (
    "dlrm-a100-rank3/rank3",
    "incomplete/sampled-rank0",
    "incomplete/sampled-rank1",
    "resnet-ddp-a100/rank0",
    "resnet-ddp-mi300x/rank0",
    "resnet-v100/rank0",
    "resnet50-v100-old-schema/workers0",
)
traces = pytest.mark.parametrize("name", WITH_PERIOD)


# ---- random jobs: one step of some tasks on threads and streams, with a queue, rendezvous and waits, repeated ----


def one_step(graph: Graph) -> Members:
    """The members of a job that is a single step on every rank."""
    marks = tuple(Step(rank, "step", 0, 1) for rank in graph.ranks)
    return assigned(graph, marks, graph.position_of_task.copy())


def loop_of(graph: Graph, copies: int = 8) -> tuple[Loop, Timeline]:
    """The step repeated, and its schedule; jobs without one are drawn again."""
    owners = one_step(graph)
    assume(owners.job)
    loop = repeated(owners, [0], copies)
    try:
        return loop, simulate(loop.graph)
    except GraphError:
        assume(False)
        raise


def in_fixed_order(graph: Graph) -> Timeline:
    """The timeline with the order of every processor fixed. Occupancy has no such form, and jobs with any are not given to this."""
    frozen = freeze(graph)
    assert frozen.exact
    return sweep(frozen)


def steady_in_fixed_order(graph: Graph) -> Steady:
    owners = one_step(graph)
    assume(owners.job)
    try:
        return steady(owners, in_fixed_order, repeat=True)
    except GraphError:
        assume(False)
        raise


@given(jobs())
def test_periods_add_up_to_the_time_between_completions(graph):
    loop, timeline = loop_of(graph)
    times = step_times(timeline, loop.owners)
    for steps in (times.job, *(tuple(t for t, s in zip(times.ranks, loop.owners.steps, strict=True) if s.rank == r) for r in graph.ranks)):
        assert [after.since_ns for after in steps[1:]] == [before.completion_ns for before in steps[:-1]]
        assert sum(step.length_ns for step in steps[1:]) == (steps[-1].completion_ns - steps[0].completion_ns if steps else 0)


@given(jobs())
def test_the_parts_of_a_step_add_up_to_it(graph):
    loop, timeline = loop_of(graph)
    for step in step_times(timeline, loop.owners).job:
        parts = parts_within(timeline, working_tasks(loop.owners), [(step.since_ns, step.completion_ns)], 1)
        assert sum(parts) == pytest.approx(step.length_ns * 1e-9, abs=1e-15)


@given(jobs())
def test_a_step_of_the_job_is_complete_with_the_last_of_its_ranks(graph):
    loop, timeline = loop_of(graph)
    times = step_times(timeline, loop.owners)
    for whole, time in zip(loop.owners.job, times.job, strict=True):
        assert time.completion_ns == max(times.ranks[part].completion_ns for part in whole.parts)


@given(jobs(fixed_order=True))
def test_the_slowest_thread_or_stream_is_no_slower_than_the_loop(graph):
    loop = steady_in_fixed_order(graph)
    assume(loop.settled)
    owners = loop.loop.owners
    mine = owners.tasks(0)[owners.completes[owners.tasks(0)]]
    busy = np.bincount(owners.graph.processor[mine], owners.graph.duration[mine])
    assert busy.max() <= loop.step_time_ns * (1 + AGREE)


@given(jobs(fixed_order=True), st.sampled_from([1, 2, 7]))
def test_a_step_that_is_swept_is_that_which_is_simulated(graph, factor):
    base, owners, cpu = steady_in_fixed_order(graph), one_step(graph), ~graph.on_device
    swept, changed = SweptLoop(base), replace(owners, graph=scale(graph, cpu, factor))
    wanted = altered(base, changed).step_time_ns
    assert factor != 1 or wanted == base.step_time_ns == with_other_durations(base, graph.duration).step_time_ns
    assert swept.holds and swept.step_time_ns(changed) == wanted
    assert swept.scaled(cpu[base.loop.source].astype(np.uint16), np.array([[1.0, factor]]))[0] in (None, wanted)


@given(jobs(fixed_order=True), st.sampled_from([1.25, 2, 7]))
def test_slower_cpu_work_never_gives_a_faster_step(graph, factor):
    """In the order of the base. Where the order may change, or kernels share SMs, slower work can make room for other work."""
    cpu = ~graph.on_device
    before, after = steady_in_fixed_order(graph), steady_in_fixed_order(scale(graph, cpu, factor))
    assume(before.settled and after.settled)
    assert after.step_time_ns >= before.step_time_ns * (1 - AGREE)


@given(jobs(fixed_order=True), st.sampled_from([0, 0.25, 0.5, 0.8]))
def test_faster_kernels_never_gain_more_than_their_own_share(graph, factor):
    """Where all kernels take `factor` of their time, so does the step at least."""
    before, after = steady_in_fixed_order(graph), steady_in_fixed_order(scale(graph, graph.on_device, factor))
    assume(before.settled and after.settled)
    # A duration of some ns is rounded by up to half of one.
    assert after.step_time_ns >= factor * before.step_time_ns * (1 - AGREE) - len(graph) / 2
    assert after.step_time_ns <= before.step_time_ns * (1 + AGREE)


@given(jobs())
def test_the_same_durations_give_the_same_loop(graph):
    owners = one_step(graph)
    assume(owners.job)
    try:
        base = steady(owners, repeat=True)
    except GraphError:
        assume(False)
        raise
    again = altered(base, replace(owners, graph=scale(graph, np.ones(len(graph), bool), 1)))
    assert (again.step_time_ns, again.cycle) == (base.step_time_ns, base.cycle)


# ---- public traces ----


@cache
def recording(name: str) -> tuple[Job, Graph]:
    if ROOT is None:
        pytest.skip("LUMOS_TRACES is not set: the public traces are not here")
    job = read(str(Path(ROOT) / f"{name}.json.gz"))
    return job, build(job)


def without_sharing(graph: Graph) -> Graph:
    """The graph in which kernels share no SMs, so that its order can be fixed exactly."""
    return replace(graph, occupancy=None)


def loop_under(graph: Graph, tasks: Mask, factor: float) -> Steady:
    owners = members(graph)
    changed = replace(owners, graph=scale(graph, tasks, factor))
    found = steady(changed, in_fixed_order)
    assert found.settled
    return found


def answer_to(name: str, changes: Changes) -> Answer:
    """The answer for a recording, also where it is known to lack rows (incomplete/*): what is asked here holds for any graph."""
    return answer_changes(*recording(name), changes, force=True)


@traces
def test_periods_of_a_recording_add_up(name):
    _, graph = recording(name)
    owners = members(graph)
    for run in (measured(graph), simulate(graph)):
        steps = step_times(run, owners).job
        following = [step for step, whole in zip(steps, owners.job, strict=True) if whole.previous >= 0]
        assert following
        assert all(owners.job[i].previous == i - 1 for i in range(1, len(steps)))
        assert sum(step.length_ns for step in following) == steps[-1].completion_ns - steps[0].completion_ns
        assert all(a.completion_ns == b.since_ns for a, b in pairwise(steps))


@traces
def test_slower_cpu_work_of_a_recording_never_gives_a_faster_step(name):
    """In the order of the recording, and without the sharing of SMs: both let slower work make room for other work."""
    graph = without_sharing(recording(name)[1])
    cpu = ~graph.on_device
    found = [loop_under(graph, cpu, factor).step_time_ns for factor in (1, 1.1, 1.5, 2)]
    assert all(slower >= faster * (1 - AGREE) for faster, slower in pairwise(found))


@traces
def test_faster_kernels_of_a_recording_never_gain_more_than_their_own_share(name):
    graph = without_sharing(recording(name)[1])
    base = loop_under(graph, graph.on_device, 1).step_time_ns
    for factor in (0.3, 0.5, 0.9):
        assert base * (1 + AGREE) >= loop_under(graph, graph.on_device, factor).step_time_ns >= factor * base * (1 - AGREE)


@traces
def test_a_change_by_the_factor_one_changes_nothing(name):
    answer = answer_to(name, Changes(durations=Durations.parse(["*=1"], (), (), ())))
    assert answer.outcome.step_time_s == answer.base.step_time_s
    assert answer.outcome.breakdown == answer.base.breakdown
    assert answer.moved == ()


@traces
def test_the_order_of_changes_does_not_matter(name):
    words = ["device:*=0.5", "cpu:*=0.8"]
    one, other = (
        answer_to(name, Changes(durations=Durations.parse(order, (), (), ()))).outcome.step_time_s for order in (words, words[::-1])
    )
    assert one == other


@traces
def test_the_parts_of_an_answer_add_up_to_its_step(name):
    answer = answer_to(name, Changes(durations=Durations.parse(["device:*=0.5"], (), (), ())))
    for outcome in (answer.base, answer.outcome):
        assert sum(outcome.breakdown) == pytest.approx(outcome.step_time_s)
    assert sum(c.delta_s for c in answer.moved) == pytest.approx(answer.outcome.step_time_s - answer.base.step_time_s, abs=1e-9)


@traces
def test_k_microbatches_take_at_most_k_times_as_long(name):
    for k in (2, 3):
        try:
            answer = answer_to(name, Changes(settings={"microbatches": str(k)}))
        except LumosError as error:
            pytest.skip(f"the trace does not support more microbatches: {error}")
        assert answer.outcome.step_time_s <= k * answer.base.step_time_s * (1 + AGREE)
        assert answer.outcome.step_time_s >= answer.base.step_time_s * (1 - AGREE)


@traces
@pytest.mark.parametrize("words", ["device:*=0.5", "device:*=3", "cpu:*=0.5", "cpu:*=2"])
def test_an_answer_stays_within_what_physics_allows_and_devices_matter(name, words):
    """No answer is beyond its bounds, and the step reacts to devices where they alone set the pace; the base is the recorded job."""
    found = answer_to(name, Changes(durations=Durations.parse([words], (), (), ())))
    assert not {"beyond-bounds", "device-unreactive", "base-off"} & {reason.code for reason in found.trust.reasons}
    assert found.base.step_time_s == pytest.approx(found.measured_step_s, rel=0.01)


@traces
def test_the_base_of_a_recording_takes_what_its_steps_took(name):
    _, graph = recording(name)
    owners = members(graph)
    base = steady(owners)
    assert base.settled and base.loop.dropped == 0
    off, evidence = identity(graph, base, step_times(measured(graph), owners))
    assert abs(off) < 0.01 and evidence == ()
