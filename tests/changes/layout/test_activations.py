"""Jobs of several ranks changed through their measured blocks, whose exchanges of activations follow the change."""

from dataclasses import replace

import numpy as np
import pytest
from tests.like_recorded import like_recorded

from lumos.changes.changes import Changes
from lumos.changes.layout.activations import exchanged, in_embedding, in_forward, of_stream
from lumos.changes.layout.change import pipeline_stages
from lumos.changes.layout.measured_layout import measured_layout
from lumos.changes.layout.regroup import reexchange
from lumos.changes.predicted import with_settings
from lumos.changes.settings import parse_settings
from lumos.changes.structure import changed_layout
from lumos.changes.whatif import answer_changes
from lumos.errors import LumosError
from lumos.graph.build import build
from lumos.plan.configuration import Settings, job_from
from lumos.prediction.predict import predict_job
from lumos.segment.segment import segment
from lumos.segment.sizes import sizes
from lumos.vocabulary import CollectiveKind


class Recorded:
    """The files of a predicted job, cut into blocks."""

    def __init__(self, folder, **plan):
        self.job = job_from(Settings(model="gpt3-6.7b", cluster="h100", global_batch=8, seq=2048, **plan))
        self.job = replace(self.job, model=replace(self.job.model, layers=4))
        self.traces = like_recorded(folder, predict_job(self.job, coarse=False), ranks="all")
        self.graph = build(self.traces)
        self.layout = measured_layout(segment(self.graph, self.traces))


@pytest.fixture(scope="module")
def tensor(tmp_path_factory):
    return Recorded(tmp_path_factory.mktemp("tensor"), gpus=4, tp=2)


@pytest.mark.parametrize(
    ("change", "within"),
    [
        ("layers=8", 0.01),
        ("microbatches=8", 0.01),
        ("recompute=full", 0.01),
        ("dp=4", 0.03),
    ],
)
def test_measured_blocks_say_what_predict_says(tensor, change, within):
    wanted = parse_settings([change])
    truth = predict_job(with_settings(tensor.job, wanted, None), coarse=False).time.time_s
    found = answer_changes(tensor.traces, tensor.graph, Changes(wanted), force=True)
    assert found.outcome.step_time_s == pytest.approx(truth, rel=within)


def test_exchanges_of_the_stream_are_told_from_those_of_gradients_and_weights(tensor):
    facts = tensor.graph.collectives
    stream = of_stream(tensor.layout, tensor.traces)
    tokens, hidden = 2048, tensor.job.model.hidden
    assert {int(facts.size[i]) for i in stream} == {2}
    assert {facts.kinds[facts.kind[i]].buffer_bytes(int(facts.nbytes[i]), 2) for i in stream} == {2 * tokens * hidden}
    gradients = {facts.kinds[k] for k in facts.kind[~in_forward(tensor.layout.segmentation)]}
    assert CollectiveKind.REDUCE_SCATTER in gradients


def test_unknown_links_take_time_as_their_bytes(tensor):
    stream = of_stream(tensor.layout, tensor.traces)
    wanted = {"seq": 2 * sizes(tensor.traces.traces[0]).seq}
    wider = reexchange(exchanged(tensor.layout, tensor.traces, wanted, {}), tensor.traces, None)
    assert (wider.prices.best[tensor.graph.collectives.task[stream]] == 2).all()
    assert [d.code for d in wider.diagnostics] == ["exchange-in-proportion"]


def test_the_layers_of_a_pipeline_are_those_of_all_stages(tmp_path):
    pipeline = Recorded(tmp_path, gpus=2, pp=2)
    assert pipeline_stages(pipeline.graph, pipeline.traces) == 2
    assert pipeline.layout.segmentation.layers == 2
    messages = of_stream(pipeline.layout, pipeline.traces)
    pieces = pipeline.layout.segmentation.piece[pipeline.graph.collectives.task[messages]]
    assert "embedding" in {pipeline.layout.pieces[piece].label.name for piece in pieces}
    assert not in_embedding(pipeline.layout, messages)  # they arrive before the first layer, and say nothing of the vocabulary
    same, more = (answer_changes(pipeline.traces, pipeline.graph, Changes(parse_settings([f"layers={n}"])), force=True) for n in (4, 8))
    assert same.outcome.step_time_s == same.base.step_time_s
    assert more.changes == ("layers = 8 (measured: 4)",)
    assert more.outcome.step_time_s > 1.3 * more.base.step_time_s
    with pytest.raises(LumosError, match="multiple of the 2 pipeline stages"):
        answer_changes(pipeline.traces, pipeline.graph, Changes(parse_settings(["layers=5"])), force=True)


def test_the_replicas_of_a_stage_are_fewer_than_the_ranks(tmp_path):
    """Two stages of two replicas each, which become four: their gradients then take longer to exchange."""
    pipeline = Recorded(tmp_path, gpus=4, pp=2)
    layout = changed_layout(pipeline.layout, pipeline.traces, Changes(parse_settings(["dp=4"])))
    assert layout.changes == ("dp = 4 (measured: 2)",)
    facts = pipeline.graph.collectives
    messages = np.array([kind.is_transfer for kind in facts.kinds], bool)[facts.kind]
    assert (layout.prices.best[facts.task[messages]] == 1).all()
    assert (layout.prices.best[facts.task[~messages]] > 1).any()


def test_stages_that_become_one_rank_sum_the_norm_of_their_gradients_alone(tmp_path):
    """The two stages exchange the norm of their gradients, which one rank has of itself; the model says the same of one stage."""
    pipeline, wanted = Recorded(tmp_path, gpus=2, pp=2), parse_settings(["pp=1"])
    facts = pipeline.graph.collectives
    assert CollectiveKind.ALL_REDUCE in {facts.kinds[k] for k in facts.kind[facts.size == 2]}
    answer = answer_changes(pipeline.traces, pipeline.graph, Changes(wanted), force=True)
    truth = predict_job(with_settings(pipeline.job, wanted, None), coarse=False).time.time_s
    assert answer.outcome.step_time_s == pytest.approx(truth, rel=0.03)


def test_sizes_are_those_of_the_model_of_which_ranks_hold_a_part(tensor):
    answer = answer_changes(tensor.traces, tensor.graph, Changes(parse_settings(["ffn=16384"])), force=True)
    assert answer.changes == ("ffn = 16384 (measured: 16384)",)
    assert answer.outcome.step_time_s == answer.base.step_time_s
    with pytest.raises(LumosError, match="ffn=1001: the 2 tensor-parallel ranks of the recording cannot share it equally"):
        answer_changes(tensor.traces, tensor.graph, Changes(parse_settings(["ffn=1001"])), force=True)


def test_ranks_that_share_all_layers_are_one_replica(tmp_path):
    """Nothing exchanges gradients, and the exchanges of the stream are none of replicas."""
    tensor = Recorded(tmp_path, gpus=2, tp=2)
    same = answer_changes(tensor.traces, tensor.graph, Changes(parse_settings(["dp=1"])), force=True)
    assert same.outcome.step_time_s == same.base.step_time_s
    with pytest.raises(LumosError, match="the 2 ranks of a stage share the layers, so they are one replica"):
        answer_changes(tensor.traces, tensor.graph, Changes(parse_settings(["dp=2"])), force=True)
