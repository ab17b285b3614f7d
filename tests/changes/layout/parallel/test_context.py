"""Ranks that share sequences: what a rank's attention, exchanges and merging take."""

from pathlib import Path

import numpy as np
import pytest

from lumos.changes.changes import Changes
from lumos.changes.layout.measured_layout import measured_layout
from lumos.changes.layout.parallel.context import sequence_ranks
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.errors import UsageError
from lumos.graph.build import build
from lumos.segment.segment import segment
from lumos.trace import read

#: A language model of six layers, recorded in one process with sequences of 256 tokens.
RECORDED = Path(__file__).parents[4] / "examples" / "foreign" / "GPT-2__fp32__host-bound"


@pytest.fixture(scope="module")
def job():
    return read(str(RECORDED))


@pytest.fixture(scope="module")
def graph(job):
    return build(job)


def answered(job, graph, *words):
    return answer_changes(job, graph, Changes(parse_settings(words)))


def of_name(answer, part):
    """The times of the kernels whose names have that part."""
    graph = answer.graph
    named = np.array([part in name for name in graph.names], bool)
    return graph.duration[named[graph.name] & graph.on_device]


def test_every_layer_exchanges_and_merges_once_in_each_pass(job, graph):
    answer = answered(job, graph, "cp=2")
    forward = len(of_name(answer, "exchange of keys and values"))
    backward = len(of_name(answer, "exchange of gradients of keys and values"))
    assert forward == backward == len(of_name(answer, "fmha_cutlassF"))
    assert len(of_name(answer, "merging of parts of attention")) == forward + backward
    assert len(of_name(answer, "all_reduce of gradients"))
    assert "cp = 2 (measured: 1)" in answer.changes
    assert {"sequence-assumed", "exchange-assumed"} <= {d.code for d in answer.diagnostics}


def test_attention_has_half_of_the_queries_and_all_of_the_keys(job, graph):
    """A quarter of the work twice: half of that of the whole sequence, but for the fixed time of a kernel."""
    whole, halves = (of_name(answered(job, graph, word), "fmha_cutlassF").mean() for word in ("seq=2048", "cp=2"))
    same = of_name(answered(job, graph, "seq=4096", "cp=2"), "fmha_cutlassF").mean()
    assert same == pytest.approx(2 * whole, rel=0.02)  # of 4,096 tokens half the queries and all keys: twice the work of 2,048 squared
    assert halves < of_name(answered(job, graph, "seq=512"), "fmha_cutlassF").mean()


def test_sequences_are_shared_equally(job, graph):
    with pytest.raises(UsageError, match="sequences of 256 tokens cannot be shared equally; they must be a multiple of 6"):
        answered(job, graph, "cp=3")


def test_a_recording_of_whole_sequences_has_one_rank_for_each(job, graph):
    assert sequence_ranks(measured_layout(segment(graph, job)), job) == 1
