"""The interval of an answer: how much steps differ, and what it is where a trace cannot show that."""

from types import SimpleNamespace

import numpy as np
import pytest

from lumos.analyze.loop.noise import FEW_STEPS, NORMAL, Z80, noise_unknown, step_spread, step_times_of
from lumos.analyze.loop.steps import members
from lumos.changes.changes import Changes
from lumos.changes.durations import Durations
from lumos.changes.whatif import answer_changes
from lumos.graph.build import build
from lumos.plan.configuration import Settings, job_from
from lumos.prediction.predict import predict_job
from lumos.reports.export.kineto import write_kineto
from lumos.trace import read


def test_the_noise_is_that_between_the_steps(example):
    times = step_times_of(example[1], members(example[1]))
    lengths = np.array([step.length_ns for step in times.counted], float)
    expected = Z80 * NORMAL * np.median(np.abs(lengths - np.median(lengths))) / np.median(lengths)
    assert step_spread(times) == pytest.approx(expected)
    assert expected > 0
    assert noise_unknown(times) == ()


def test_two_steps_show_their_noise_by_their_difference():
    """Of 99 and 101 ms the standard deviation is √2 ms, and Student's t of 80 % with one degree of freedom 3.0777: 4.3525 % of 100 ms."""
    two = steps_of(99, 101)
    assert step_spread(two) == pytest.approx(0.043525, rel=1e-4)
    assert noise_unknown(two) == ()


def test_steps_that_come_round_differ_from_those_a_cycle_before_alone():
    """Steps of 50 and 150 ms in turn, each 1 ms from the one before it of its kind: 1 / √2 ms of a mean of 100 is their deviation."""
    assert step_spread(steps_of(50, 150, 51, 151, cycle=2)) == pytest.approx(Z80 / 2**0.5 / 100.5)
    assert step_spread(steps_of(50, 150, cycle=2)) == FEW_STEPS


def steps_of(*ms, cycle=0):
    return SimpleNamespace(counted=[SimpleNamespace(length_ns=each * 1_000_000) for each in ms], owners=SimpleNamespace(cycle=cycle))


def test_one_step_says_that_its_noise_is_unknown(tmp_path):
    prediction = predict_job(job_from(Settings(model="gpt3-126m", cluster="h100", gpus=1, global_batch=1, seq=256)), coarse=False)
    write_kineto(str(tmp_path), prediction)
    job = read(str(tmp_path))
    graph = build(job)
    found = answer_changes(job, graph, Changes(durations=Durations.parse(["gemm*=0.5"], (), (), ())))
    assert "step-noise-unknown" in {d.code for d in found.diagnostics}
    base = found.base
    assert base.basis == "latency"
    assert base.step_time_high_s / base.step_time_s - 1 >= FEW_STEPS
    assert 1 - base.step_time_low_s / base.step_time_s >= FEW_STEPS
