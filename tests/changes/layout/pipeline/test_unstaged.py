"""A recorded pipeline on one rank: a microbatch takes the sum of all layers' passes, and nothing waits for a message.

The pipelines are those of `test_recut`: layers of 10 ms forward and 20 ms backward.
"""

import numpy as np
import pytest
from tests.changes.layout.pipeline.test_recut import GPIPE, INTERLEAVED, ONE_F_ONE_B, pipeline, step, step_ms

from lumos.graph.table import Kind


@pytest.mark.parametrize("orders", [ONE_F_ONE_B, GPIPE])
@pytest.mark.parametrize(
    ("words", "ms"),
    [
        (["pp=1"], 4 * 4 * 30),
        (["pp=1", "microbatches=2"], 2 * 4 * 30),
        (["pp=1", "microbatches=7"], 7 * 4 * 30),
        (["pp=1", "layers=8"], 4 * 8 * 30),
        (["pp=1", "vpp=1"], 4 * 4 * 30),
    ],
)
def test_the_layers_of_all_stages_follow_one_another(tmp_path, orders, words, ms):
    assert step_ms(pipeline(tmp_path, orders), *words) == pytest.approx(ms, rel=0.005)


def test_the_chunks_of_all_stages_do_too(tmp_path):
    """Four chunks of two layers each."""
    assert step_ms(pipeline(tmp_path, INTERLEAVED), "pp=1") == pytest.approx(4 * 8 * 30, rel=0.005)


def test_four_stages_become_one(tmp_path):
    assert step_ms(pipeline(tmp_path, ["FFFFBBBB"] * 4), "pp=1") == pytest.approx(4 * 8 * 30, rel=0.005)


def test_embedding_and_head_remain_once_and_messages_go(tmp_path):
    """Every pass begins with one embedding, of the first stage, and ends with one loss, of the last."""
    answer = step(pipeline(tmp_path, ONE_F_ONE_B), "pp=1")
    graph = answer.graph
    kernels = [graph.names[name] for name in graph.name[graph.kind == Kind.KERNEL].tolist()]
    passes = kernels.count("aten::linear kernel") / 4
    assert kernels.count("aten::embedding kernel") == kernels.count("aten::nll_loss kernel") == passes
    assert not (graph.kind == Kind.COLLECTIVE).any()
    assert len({p.rank for p in graph.processors}) == 1
    assert len(np.unique(graph.processor[graph.kind == Kind.KERNEL])) == 1


def test_every_stage_updates_its_weights(tmp_path):
    """Two optimizers of 10 us each in a step of two stages."""
    graph = step(pipeline(tmp_path, ONE_F_ONE_B), "pp=1").graph
    kernels = [graph.names[name] for name in graph.name[graph.kind == Kind.KERNEL].tolist()]
    assert kernels.count("sgd_update kernel") * 4 * 4 == kernels.count("aten::linear kernel") * 2


def test_one_rank_is_assumed(tmp_path):
    answer = step(pipeline(tmp_path, ONE_F_ONE_B), "pp=1", "microbatches=2")
    assert answer.changes == ("pp = 1 (measured: 2)", "microbatches = 2 (measured: 4)")
    assert "one rank runs their layers one after the other" in next(d.message for d in answer.diagnostics if d.code == "stages-assumed")
