"""CUDA graphs: measured and predicted jobs with their passes captured."""

from dataclasses import replace

import numpy as np
import pytest
from tests.like_recorded import like_recorded

from lumos.changes.changes import Changes
from lumos.changes.predicted import with_settings
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.errors import LumosError, UsageError
from lumos.graph.build import build
from lumos.graph.table import Kind
from lumos.plan.configuration import Settings, job_from
from lumos.prediction.cuda_graphs import LAUNCH, graph_launch
from lumos.prediction.predict import predict_job

#: A job bound by its launches (short kernels), and one bound by the device.
SHORT = Settings(model="gpt3-126m", cluster="h100", gpus=1, global_batch=2, seq=256)
LONG = Settings(model="gpt3-1.3b", cluster="h100", gpus=1, global_batch=4, seq=2048, micro_batch=2)
PIPELINE = Settings(model="gpt3-126m", cluster="h100", gpus=4, global_batch=8, seq=256, tp=1, pp=2)


def _written(folder, settings):
    job = job_from(settings)
    prediction = predict_job(job, coarse=False)
    traces = like_recorded(folder, prediction)
    return job, traces, build(traces)


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    return _written(tmp_path_factory.mktemp("short"), SHORT)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    return _written(tmp_path_factory.mktemp("pipeline"), PIPELINE)


def _on(found, *words):
    _, traces, graph = found
    return answer_changes(traces, graph, Changes(parse_settings(["cuda_graphs=on", *words])))


def _truth(job, *words):
    return predict_job(with_settings(job, parse_settings(["cuda_graphs=on", *words]), None), coarse=False)


def _busy(graph):
    """ns of kernels of the busiest stream."""
    works = np.isin(graph.kind, (Kind.KERNEL, Kind.COLLECTIVE))
    return np.bincount(graph.processor[works], graph.duration[works]).max()


def test_a_launch_costs_a_fixed_part_and_one_for_every_node():
    time, low, high = graph_launch(100)
    assert low < time < high
    assert time == LAUNCH[0][0] + 100 * LAUNCH[0][1]


def test_a_launch_bound_step_comes_near_its_device_time(short):
    found = _on(short)
    busy = _busy(short[2]) * 1e-9
    assert busy < found.outcome.step_time_s < 0.75 * found.base.step_time_s
    assert found.share.modelled > 0
    assert found.outcome.step_time_low_s < found.outcome.step_time_s < found.outcome.step_time_high_s


def test_measured_blocks_and_the_identified_plan_agree(short):
    # the same change made twice: on the tasks of the trace, and on the blocks of the layout
    assert _on(short).outcome.step_time_s == pytest.approx(_truth(short[0]).time.time_s, rel=0.02)


def test_off_is_what_the_trace_shows(short):
    _, traces, graph = short
    found = answer_changes(traces, graph, Changes(parse_settings(["cuda_graphs=off"])))
    assert found.outcome.step_time_s == pytest.approx(found.base.step_time_s, rel=1e-3)
    with pytest.raises(UsageError, match="valid are on, off"):
        answer_changes(traces, graph, Changes(parse_settings(["cuda_graphs=yes"])))


def test_switching_off_the_graphs_of_a_trace_is_refused(short):
    _, traces, graph = short
    names = ["cudaGraphLaunch" if name == "cudaLaunchKernel" else name for name in graph.names]
    with pytest.raises(LumosError, match="without graphs"):
        answer_changes(traces, replace(graph, names=names), Changes(parse_settings(["cuda_graphs=off"])))
    with pytest.raises(LumosError, match="of its own"):
        answer_changes(traces, replace(graph, names=names), Changes(parse_settings(["cuda_graphs=on"])))
