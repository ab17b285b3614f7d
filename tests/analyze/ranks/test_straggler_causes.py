"""Why ranks are slow, and ranks that do unequal work, on drawn jobs; times in µs."""

from dataclasses import replace

import numpy as np
import pytest
from tests.drawn_graph import drawn_collectives

from lumos.analyze.ranks.straggler_causes import StragglerCause, Where
from lumos.analyze.ranks.stragglers import stragglers
from lumos.graph.table import Kind, Processor, Step

US = 1000
STEP = "ProfilerStep#0"
#: What every rank does: 10 + 100 + 20 + 50 = 180 µs.
USUAL = (("add", 10), ("mm", 100), ("add", 20), ("mm", 50))


@pytest.fixture
def cpu_job(draw_graph):
    """A job of one step from what each rank's thread does, (name, µs) one after the other; then all ranks meet for 10 µs.

    "pause" is time between operators.
    """

    def job(*ranks, groups=None):
        arrived = max(sum(time for _, time in works) for works in ranks)
        processors, tasks, steps, met = [], [], [], []
        for rank, works in enumerate(ranks):
            at = 0
            for name, time in works:
                tasks.append((rank, Kind.HOST if name == "pause" else Kind.OPERATOR, name, at, at + time))
                at += time
            met.append(len(tasks))
            tasks.append((rank, Kind.COLLECTIVE, "gloo:all_reduce", arrived, arrived + 10))
            processors.append(Processor(rank, False, f"thread {rank}", lane=1))
            steps.append(Step(rank, STEP, 0, (arrived + 10) * US, lane=1))
        graph = draw_graph(processors, tasks, (), steps)
        groups = groups or [range(len(ranks))]
        return replace(
            graph,
            duration=np.where(graph.kind == Kind.COLLECTIVE, 10 * US, graph.duration),
            rendezvous_offset=np.cumsum([0, *map(len, groups)]).astype(np.int64),
            rendezvous_task=np.array([met[rank] for group in groups for rank in group], np.int32),
        )

    return job


def codes(result):
    return {d.code: d.message for d in result.diagnostics}


def test_an_operator_that_only_one_rank_has(cpu_job):
    """Rank 1 multiplies for 40 µs more, before all else: 230 instead of 190. By number its mm would be 40, 100 and 50 against 100 and
    50, and all of them would seem to be off."""
    result = stragglers(cpu_job(USUAL, (("mm", 40), *USUAL), USUAL))
    assert (result.measured_step_ns, result.ideal_step_ns, result.slowdown) == (230 * US, 190 * US, pytest.approx(230 / 190))
    assert [(r.work_ns, r.ideal_work_ns, r.worth_ns) for r in result.by_rank] == [
        (180 * US, 180 * US, 0),
        (220 * US, 180 * US, 40 * US),
        (180 * US, 180 * US, 0),
    ]
    (found,) = result.findings
    assert (found.cause, found.name, found.where) == (StragglerCause.EXTRA_WORK, "mm", Where(1, STEP, 0, "mm"))
    assert (found.excess_ns, found.worth_ns, found.slowdown) == (40 * US, 40 * US, pytest.approx(230 / 190))
    assert "rank 1 does 1 piece of work that most ranks lack (40.00 µs)" in codes(result)["unequal-work"]


def test_a_larger_batch_on_one_rank(cpu_job):
    """Rank 2 takes 1.5 times as long throughout: 270 instead of 180, and 190 in the ideal job."""
    result = stragglers(cpu_job(USUAL, USUAL, [(name, time * 3 // 2) for name, time in USUAL]))
    (found,) = result.findings
    assert (found.cause, found.name, found.where) == (StragglerCause.SLOW_WORK, "cpu operators", Where(2, STEP, 15 * US, "mm"))
    assert (found.excess_ns, found.worth_ns) == (90 * US, 90 * US)
    assert "unequal-work" not in codes(result)


def test_a_pause_on_one_rank(cpu_job):
    """All ranks pause for 5 µs before the second add, rank 1 for 300; its first mm takes 10 longer as well."""
    others = (*USUAL[:2], ("pause", 5), *USUAL[2:])
    slow = (USUAL[0], ("mm", 110), ("pause", 300), *USUAL[2:])
    result = stragglers(cpu_job(others, slow, others))
    stall, slow_work = result.findings
    assert (stall.cause, stall.name) == (StragglerCause.STALL, "before add")
    assert (stall.where, stall.worth_ns) == (Where(1, STEP, 120 * US, "before add"), 295 * US)
    assert (slow_work.cause, slow_work.where, slow_work.worth_ns) == (StragglerCause.SLOW_WORK, Where(1, STEP, 10 * US, "mm"), 10 * US)


def test_two_ranks_have_no_majority(cpu_job):
    """One mm takes 100 and 140 µs: the ideal is 120 on both. The operator that only rank 1 has keeps its 30 µs."""
    result = stragglers(cpu_job((("mm", 100),), (("mm", 140), ("extra", 30))))
    assert (result.measured_step_ns, result.ideal_step_ns) == (180 * US, 160 * US)
    assert {"no-majority", "work-not-compared"} <= codes(result).keys()
    assert "1 piece of work (30.00 µs)" in codes(result)["work-not-compared"]


def test_ranks_that_are_slow_in_turn(cpu_job):
    """Every rank takes 110 µs, but the medians of its operators are 50 each: the ideal step is 160 for 120 measured, and that is said."""
    result = stragglers(cpu_job(*([("a", a), ("b", b), ("c", c)] for a, b, c in ((50, 50, 10), (50, 10, 50), (10, 50, 50)))))
    assert (result.measured_step_ns, result.ideal_step_ns) == (120 * US, 160 * US)
    assert "160.0 µs" in codes(result)["ideal-above-measured"]


def test_an_exchange_is_compared_with_those_of_sister_groups(cpu_job):
    """Of three pairs that exchange as many bytes, one takes 30 µs and the others 10. Of twice as many bytes, it would be no slower."""
    graph = cpu_job(*[USUAL] * 6, groups=((0, 1), (2, 3), (4, 5)))
    met = graph.rendezvous_task
    slow = replace(graph, duration=np.where(np.isin(np.arange(len(graph)), met[2:4]), 30 * US, graph.duration))

    def causes(nbytes):
        facts = drawn_collectives([(task, "all-reduce", nbytes[i], i // 2, 0, 0) for i, task in enumerate(met)], "abc")
        found = stragglers(replace(slow, collectives=facts), force=True)  # it was drawn with 10 µs everywhere
        return [(f.cause, f.excess_ns, f.worth_ns) for f in found.findings]

    assert causes([8] * 6) == [(StragglerCause.SLOW_EXCHANGE, 40 * US, 20 * US)]
    assert causes([8, 8, 16, 16, 8, 8]) == []


def test_stages_may_do_unequal_work(cpu_job):
    """Where ranks send to each other, what one of them alone does may be its part of the model."""
    graph = cpu_job((("embedding", 40), *USUAL), USUAL, USUAL)
    sends = [(task, "send", 0, 0, 0, 0) for task in graph.rendezvous_task]
    result = stragglers(replace(graph, collectives=drawn_collectives(sends, [""])))
    assert (result.slowdown, result.findings) == (1, ()) and "work-not-compared" in codes(result)
