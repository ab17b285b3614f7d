"""The answers for changed scripts, against recordings of these whose kernels take times that no model says."""

import sys

import msgspec
import pytest
from tests.scripted.conftest import STEPS

import lumos
from lumos.analyze.loop.noise import step_times_of
from lumos.analyze.loop.steps import members
from lumos.cost.cluster import load_cluster
from lumos.emulation.device.files import write_traces
from lumos.errors import LumosError
from lumos.scripted.answer import Asked, Base, memory_scale
from lumos.scripted.command import parse
from lumos.scripted.script import script
from lumos.vocabulary import Grade

#: Multiplications and activations take other times than the models say, so that a step is as long as its device works.
FACTORS = {"addmm": 50.0, "mm": 30.0, "threshold_backward": 90.0, "relu": 20.0, "tanh": 40.0}


def measured_s(job):
    graph = lumos.build(job)
    return step_times_of(graph, members(graph)).mean_ns * 1e-9


def test_the_script_as_recorded_takes_the_recorded_step(scripts, slower, tmp_path):
    job = scripts.job(tmp_path, slower(**FACTORS), 3, 4096)
    base = scripts.base(job, 3, 4096)
    assert base.matched.device.part == pytest.approx(1.0) and not base.matched.only_recorded
    found = base.answer(scripts.command(3, 4096))
    assert found.base.step_time_s == pytest.approx(measured_s(job), rel=1e-3) == found.outcome.step_time_s
    assert not found.altered and found.trust.grade is Grade.LIMITED  # no device ran this recording


@pytest.mark.parametrize("changed", [(5, 4096), (3, 8192)], ids=["more layers", "another batch"])
def test_what_is_changed_costs_what_it_does_in_a_recording_of_the_change(scripts, slower, tmp_path, changed):
    job, truth = (scripts.job(tmp_path / str(i), slower(**FACTORS), *words) for i, words in enumerate(((3, 4096), changed)))
    found = scripts.base(job, 3, 4096).answer(scripts.command(*changed))
    assert found.outcome.step_time_s == pytest.approx(measured_s(truth), rel=5e-3)
    assert found.outcome.step_time_low_s < measured_s(truth) < found.outcome.step_time_high_s
    assert found.share.measured > 0.9 if changed[0] == 5 else found.share.scaled > 0.5
    assert found.outcome.memory.fits and found.outcome.memory.peak_bytes > found.base.memory.peak_bytes
    held = [each.message for each in found.diagnostics if each.code == "memory-held"]
    assert len(held) == 2 and all("activation layers.*" in message for message in held)


def test_what_only_the_changed_script_does_is_modelled_and_named(scripts, slower, tmp_path):
    job, truth = scripts.job(tmp_path / "a", slower(**FACTORS), 3, 4096), scripts.job(tmp_path / "b", slower(**FACTORS), 3, 4096, "tanh")
    found = scripts.base(job, 3, 4096).answer(scripts.command(3, 4096, "tanh"))
    (new,) = (each.message for each in found.diagnostics if each.code == "new-operators")
    assert "aten::tanh (3 calls" in new and "aten::tanh_backward (3 calls" in new
    other = scripts.base(job, 3, 4096, "tanh", force=True).answer(scripts.command(3, 4096))
    assert "aten::tanh (3 calls" in next(each.message for each in other.diagnostics if each.code == "only-emulated")
    assert found.outcome.step_time_low_s < measured_s(truth) < found.outcome.step_time_high_s


def test_a_value_that_is_read_no_more_is_waited_for_no_more(scripts, slower, tmp_path):
    job, truth = scripts.job(tmp_path / "a", slower(), 3, 64, "item"), scripts.job(tmp_path / "b", slower(), 3, 64)
    found = scripts.base(job, 3, 64, "item").answer(scripts.command(3, 64))
    assert found.outcome.step_time_s < found.base.step_time_s
    assert found.outcome.step_time_s == pytest.approx(measured_s(truth), rel=5e-3)


def test_a_script_that_is_not_the_recorded_one_is_refused_with_the_first_difference(scripts, slower, tmp_path):
    job = scripts.job(tmp_path, slower(**FACTORS), 6, 4096, "tanh")
    with pytest.raises(LumosError, match=r"explains \d\d% of the recorded time.*first: .*only in the recording: .*--force"):
        scripts.base(job, 1, 4096)
    assert scripts.base(job, 1, 4096, force=True).share.part < 0.7


def test_a_script_that_does_something_else_in_another_run_is_refused_with_the_place(scripts, slower, tmp_path):
    job = scripts.job(tmp_path, slower(), 3, 64)
    with pytest.raises(LumosError, match=r"--before .* two runs .*aten::tanh of .* \(layers.0 at .*train.py:11\)"):
        scripts.base(job, 3, 64, again=(3, 64, "tanh"))
    assert scripts.base(job, 3, 64, again=(3, 64, "tanh"), force=True)


def test_a_changed_script_is_run_again_only_where_its_steps_differ(scripts, slower, tmp_path):
    base = scripts.base(scripts.job(tmp_path, slower(), 3, 64), 3, 64)
    base.again = lambda script, steps, _: pytest.fail(f"run again, for {steps} steps")
    base.answer(scripts.command(4, 64))
    with pytest.raises(pytest.fail.Exception, match=f"for {STEPS} steps"):
        base.answer(scripts.command(3, 64, "late"))


def test_a_launcher_of_another_number_of_ranks_is_not_that_of_the_recording(scripts, slower, tmp_path):
    job = scripts.job(tmp_path, slower(), 3, 64)
    before = parse(f"{sys.executable} -m torch.distributed.run --nproc-per-node 4 train.py", "--before")
    with pytest.raises(LumosError, match="--before starts 4 ranks, and the recording is of a job of 1"):
        Base(job, lumos.build(job), before, Asked())


def test_a_script_whose_last_rank_did_what_rank_0_does_is_not_run_again(scripts, tmp_path):
    (process,) = scripts.records(scripts.command(3, 64).words)
    both = msgspec.structs.replace(process, world=2, copies=[1])
    write_traces(tmp_path, [both], load_cluster("h100"))
    job = lumos.read(tmp_path)
    one = script(scripts.command(3, 64), [both], load_cluster("h100"))
    base = Base(job, lumos.build(job), one.command, Asked(), lambda *_: one, lambda *_: pytest.fail("run again"))
    assert base.answer(one.command).trust.grade is Grade.LIMITED


def test_memory_is_scaled_by_the_peak_that_the_recording_shows(scripts, slower, tmp_path):
    job = scripts.job(tmp_path, slower(), 3, 64)
    base = scripts.base(job, 3, 64)
    assert base.memory == pytest.approx(1.0)
    (peak,) = base.script.peaks
    assert memory_scale(job, [peak._replace(steps_bytes=peak.steps_bytes // 2)], on_host=False) == pytest.approx(2.0, rel=1e-3)
    assert memory_scale(lumos.read("examples/gpt-2rank-cpu"), [peak], on_host=True) == 1.0
