"""What-ifs on public traces of other people's jobs, as far as their answers can be reasoned about."""

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lumos import export
from lumos.analyze.trust import trust
from lumos.changes.changes import Changes
from lumos.changes.durations import Durations
from lumos.changes.settings import SETTINGS, parse_settings
from lumos.changes.whatif import answer_changes, unchecked_answer
from lumos.errors import LumosError
from lumos.graph.build import build
from lumos.graph.places import is_step_mark
from lumos.segment.readings import readings_of_sizes
from lumos.trace import read
from lumos.trace.table import Category, Job
from lumos.vocabulary import Grade

ROOT = os.environ.get("LUMOS_TRACES")
pytestmark = pytest.mark.skipif(ROOT is None, reason="LUMOS_TRACES is not set: the public traces are not here")


@cache
def recording(name):
    job = read(str(Path(ROOT or "") / name))
    return job, build(job)


def answered(name, *words, scale=(), **changes):
    durations = Durations.parse(scale, (), (), ())
    return answer_changes(*recording(name), Changes(parse_settings(words), durations, **changes))


@pytest.mark.parametrize(("lost", "grade"), [("kernels", Grade.LIMITED), ("marks", Grade.SOUND)])
def test_a_few_lost_rows_make_no_device_work_the_cpus(lost, grade):
    """Half of all device work, without five of 4,350 kernels, or without one of five step marks: as of the whole recording."""
    scale, trace = ["device:*=0.5"], recording("resnet-v100")[0].traces[0]
    rows = np.flatnonzero(trace.category == Category.KERNEL)[::900][:5] if lost == "kernels" else np.flatnonzero(is_step_mark(trace))[2:3]
    job = Job((trace.without(rows),))
    found = answer_changes(job, build(job), Changes(durations=Durations.parse(scale, (), (), ())))
    assert found.outcome.step_time_s == pytest.approx(answered("resnet-v100", scale=scale).outcome.step_time_s, rel=0.01)
    assert found.trust.grade is grade


def test_waits_without_their_calls_are_refused():
    """Without its three synchronisations, 83 % of the step is waiting of which nothing tells what it is for."""
    trace = recording("vgg13-h100/kineto.json.gz")[0].traces[0]
    job = Job((trace.without(np.flatnonzero(trace.named(lambda name: "Synchronize" in name))),))
    with pytest.raises(LumosError, match="is waiting that no rule explains"):
        answer_changes(job, build(job), Changes(durations=Durations.parse(["device:*=0.5"], (), (), ())))


def test_the_start_of_the_driver_is_no_part_of_a_step():
    """Of 43.4 s, 29.9 go to the first call of the driver, 6.0 and 0.7 to first calls of its libraries, and 3.1 to the loading of code."""
    base = answered("critical-path/alexnet.json.gz", "cuda_graphs=on").base
    assert 3.4 < base.step_time_s < 3.9


@pytest.mark.parametrize("name", ["resnet-v100", "mi210-gpu-only", "mi300-vllm-graph", "critical-path/alexnet.json.gz"])
def test_parameters_that_are_not_shown_are_not_shared(name):
    with pytest.raises(LumosError, match="does not show the shapes of the weights"):
        answered(name, "dp=8", "zero=3")


@pytest.mark.parametrize(("cluster", "memory", "arithmetic"), [("a100-80gb", 5.3 / 2.039, 1307 / 312), ("h100", 5.3 / 3.35, 1307 / 989)])
def test_decoding_on_another_device_takes_as_much_longer_as_memory_and_arithmetic(cluster, memory, arithmetic):
    """Kernels in bf16 on an MI300X whose shapes no row shows."""
    name = "mi300-vllm-graph"
    host_s = answered(name, scale=["device:*=0"]).outcome.step_time_s
    found = answered(name, cluster=cluster, host_factor=1.0)
    longer = (found.outcome.step_time_s - host_s) / (found.base.step_time_s - host_s)
    assert min(memory, arithmetic) <= longer <= max(memory, arithmetic)


def test_convolutions_in_fp32_take_their_arithmetic_at_least():
    """34.3 TFLOP of VGG-13 at an H100's 66.9 TFLOP/s, and 194 ms of other work; at the efficiency of tf32 they would take 1.4 s."""
    found = answered("vgg13-h100/kineto.json.gz", "precision=fp32").outcome
    assert 34.3 / 66.9 + 0.194 < found.step_time_s < 1.4
    assert found.step_time_low_s < 34.3 / 66.9 + 0.194 < 1.4 < found.step_time_high_s


@pytest.mark.parametrize("name", ["h100-inference/bert-small.json.gz", "h100-inference/vit-nsfw.json.gz", "vgg13-h100/kineto.json.gz"])
def test_every_size_at_its_recorded_value_is_the_identity(name):
    """Stated or not. A statement of another value is refused."""
    job, graph = recording(name)
    known = {key: of for key, of in readings_of_sizes(job.traces[0]).items() if key in SETTINGS}
    assert known
    for key, readings in known.items():
        for reading in readings:
            same = {key: str(reading.value)}
            for base in ({key: reading.name}, *([{}, same] if len(readings) == 1 else [])):
                found = unchecked_answer(job, graph, Changes(same, base=base))
                assert found.outcome.step_time_s == found.base.step_time_s, (key, base)
        with pytest.raises(LumosError, match=f"--base {key}={readings[0].value + 1}: the recording shows {key}"):
            unchecked_answer(job, graph, Changes({key: str(readings[0].value)}, base={key: str(readings[0].value + 1)}))


def test_captured_passes_as_profiler_files(tmp_path):
    """VGG-13 runs on one stream: its file replays to the answer, and no launch is without its kernel. In DDP's passes streams wait for
    each other, which rows of one graph launch do not show."""
    found = answered("vgg13-h100/kineto.json.gz", "cuda_graphs=on")
    export(found, kineto=str(tmp_path / "vgg"))
    graph = build(read(str(tmp_path / "vgg")))
    step = answer_changes(read(str(tmp_path / "vgg")), graph, Changes()).base.step_time_s
    assert step == pytest.approx(found.outcome.step_time_s, rel=1e-3)
    assert trust(graph).grade is not Grade.UNSOUND
    with pytest.raises(LumosError, match="shows other layers than another"):
        answered("dlrm-8xv100", "pp=2")
    with pytest.raises(LumosError, match="one stream waits for another"):
        export(answered("resnet-ddp-a100", "cuda_graphs=on"), kineto=str(tmp_path / "ddp"))
