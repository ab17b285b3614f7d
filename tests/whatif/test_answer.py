"""Windows of overlapping steps, critical paths cut at a later start, and the spread of the steps in the interval."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lumos.analyze.critical_path import critical_paths
from lumos.analyze.steps import members
from lumos.graph.build import build
from lumos.plan.configuration import Settings, job_from
from lumos.predict.predict import predict_job
from lumos.report.export.kineto import write_kineto
from lumos.simulate import simulate
from lumos.trace import read
from lumos.whatif.answer import NORMAL, Z80, StepWindow, noise_unknown, since, step_lengths, step_spread, windows
from lumos.whatif.bench import Bench
from lumos.whatif.durations import Durations
from lumos.whatif.whatif import Changes, answer_changes

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "gpt-2rank-cpu"


@pytest.fixture(scope="module")
def example():
    job = read(str(EXAMPLE))
    graph = build(job)
    return job, graph, simulate(graph), members(graph)


def test_a_step_counts_no_more_overlap_than_the_base_has():
    alone = StepWindow(start=100, end=200, previous=90)
    assert (alone.overlap, alone.begin(0), alone.length(0)) == (0, 100, 100)
    early = StepWindow(start=10, end=200, previous=90)  # begins while the one before still runs
    assert early.overlap == 80
    assert early.length(80) == 190  # as in the base
    assert early.length(0) == 110
    assert StepWindow(start=10, end=50, previous=90).length(0) == 0  # never negative


def test_steps_in_a_row_do_not_overlap(example):
    _, _, timeline, owners = example
    found = windows(timeline, owners)
    assert list(found) == list(step_lengths(timeline, owners))
    assert all(w.length(w.overlap) == w.end - w.start for w in found.values())


def test_a_path_from_a_later_start_keeps_its_sum(example):
    _, _, timeline, owners = example
    path = critical_paths(timeline, owners)[1]
    for share in (0.0, 0.1, 0.5, 0.9):
        late = since(path, path.start_ns + round(share * path.duration_ns))
        assert late.duration_ns == path.duration_ns - round(share * path.duration_ns)
        assert sum(late.by_class.values()) == late.duration_ns == sum(late.by_group.values())


def test_the_noise_is_that_between_the_steps(example):
    _, _, timeline, owners = example
    lengths = np.array(list(step_lengths(timeline, owners).values()), float)
    whole = lengths[lengths > 0.7 * np.median(lengths)]
    expected = Z80 * NORMAL * np.median(np.abs(whole - np.median(whole))) / np.median(whole)
    assert step_spread(timeline, owners) == pytest.approx(expected)
    assert expected > 0
    assert noise_unknown(timeline, owners) == ()


def test_the_explorer_and_the_command_give_one_interval(example):
    job, graph, timeline, _ = example
    faster = Durations.parse(["*addmm*=0.5"], (), (), ())
    bench, found = Bench(job, graph, timeline), answer_changes(job, graph, Changes(durations=faster)).outcome
    shown = bench.outcome(bench.changed(faster), found.step)
    assert shown.step_time_low_s == pytest.approx(found.step_time_low_s)
    assert shown.step_time_high_s == pytest.approx(found.step_time_high_s)
    assert found.step_time_low_s < found.step_time_s < found.step_time_high_s


def test_one_step_says_that_its_noise_is_unknown(tmp_path):
    prediction = predict_job(job_from(Settings(model="gpt3-126m", cluster="h100", gpus=1, global_batch=1, seq=256)), coarse=False)
    write_kineto(str(tmp_path), prediction)
    job = read(str(tmp_path))
    graph = build(job)
    found = answer_changes(job, graph, Changes(durations=Durations.parse(["gemm*=0.5"], (), (), ())))
    assert "step-noise-unknown" in {d.code for d in found.diagnostics}
