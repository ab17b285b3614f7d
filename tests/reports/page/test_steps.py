import pytest

import lumos
from lumos.reports.page.document import ReportedJob, document, report_headline
from lumos.reports.page.steps import steps_shown


@pytest.fixture
def recording(ahead):
    return ReportedJob.of(lumos.read(*ahead()))


@pytest.fixture
def shown(recording):
    return steps_shown(recording.measured, recording.replayed, recording.membership, recording.job)


def test_a_step_is_its_period_with_its_latency_beside_it(shown):
    """The job completes its steps at 40, 70 and 100 µs; their operators start at 0, 10 and 20."""
    assert [(s["name"], s["basis"], s["time_ns"], s["latency_ns"], s["counts"]) for s in shown] == [
        ("ProfilerStep#0", "latency", 40_000, 40_000, False),
        ("ProfilerStep#1", "period", 30_000, 60_000, True),
        ("ProfilerStep#2", "period", 30_000, 80_000, True),
    ]


def test_the_parts_of_every_rank_and_their_mean_sum_to_the_step(shown):
    """From 70 to 100 µs only rank 0 has a kernel: one rank computes for 30 µs, the other does nothing."""
    last = shown[2]
    assert [rank["measured"]["four"]["exposed_compute_ns"] for rank in last["ranks"]] == [30_000, 0]
    assert last["measured"]["four"]["exposed_compute_ns"] == last["measured"]["four"]["other_ns"] == 15_000
    assert (last["measured"]["named"]["compute_ns"], last["measured"]["named"]["host_ns"]) == (15_000, 15_000)
    for step in shown:
        for run, length in (("measured", step["time_ns"]), ("replayed", step["replayed_ns"])):
            for parts in (step[run], *(rank[run] for rank in step["ranks"])):
                assert sum(parts["four"].values()) == sum(parts["named"].values()) == length


def test_the_report_says_one_step_time(recording):
    found = document(recording)
    assert (found["step_time_ns"], found["latency_ns"], found["basis"], found["step"]) == (30_000, 70_000, "period", "ProfilerStep#1")
    assert report_headline(recording).endswith("of 30.00 µs a step (period; latency 70.00 µs) on 2 ranks.")
    assert next(path for path in found["path"] if path["step"] == found["step"])["duration_ns"] == 30_000
    assert found["timeline"]["runs"][0]["length_ns"] == 30_000
