"""Ranks that share sequences: what a rank's attention, exchanges and merging take."""

from pathlib import Path

import numpy as np
import pytest

from lumos.changes.changes import Changes
from lumos.changes.layout.measured_layout import measured_layout
from lumos.changes.layout.parallel.context import _times, sequence_ranks
from lumos.changes.layout.rates import Rates
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.cost.cluster import load_cluster
from lumos.cost.collective_model import collective
from lumos.cost.memory_bound_model import moved
from lumos.errors import UsageError
from lumos.graph.build import build
from lumos.segment.segment import segment
from lumos.trace import read
from lumos.vocabulary import CollectiveKind

#: A language model of six layers, recorded in one process with sequences of 256 tokens.
RECORDED = Path(__file__).parents[4] / "examples" / "foreign" / "GPT-2__fp32__host-bound"
A100 = load_cluster("a100-40gb")
RATES = Rates(A100.accelerator, A100, {}, None)


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
    assert answer.trust.grade == "limited"
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


def test_attention_to_a_ranks_own_keys_hides_the_gather():
    """1 MiB of keys and values a rank, on four ranks."""
    gather = int(collective(CollectiveKind.ALL_GATHER, 4, 4 << 20, A100).time)
    for part, exposed in ((0, gather), (gather // 2, gather - gather // 2), (2 * gather, 0)):
        times, _, kernels = _times(False, 1 << 20, 1e6, 4, part, RATES)
        assert (times.best, times.low) == (exposed, 0)
        assert times.high >= gather
        assert kernels == 10 * 3


def test_the_last_gradients_go_round_the_ring_unhidden():
    """In fp32, twice the bytes; of the two others none is hidden by attention that takes no time."""
    hop = int(collective(CollectiveKind.SEND_RECEIVE, 2, 2 << 20, A100).time)
    gather = int(collective(CollectiveKind.ALL_GATHER, 3, 3 << 20, A100).time)
    assert _times(True, 1 << 20, 1e6, 3, 0, RATES)[0].best == gather + 3 * hop
    assert _times(True, 1 << 20, 1e6, 3, 10**9, RATES)[0].best == hop


def test_merging_reads_and_writes_what_the_ring_does():
    """Of two ranks, forward: 12 bytes an element once, and for the second part 8 + (38 + 27) / 2. Backward: 30 once, 8 to join keys and
    values for the other rank, 20 + 10 and 23 + 11.5 for the gradients of the two parts, and 16 twice to send them around."""
    for backward, nbytes in ((False, 52.5), (True, 134.5)):
        merging = _times(backward, 1 << 20, 1e6, 2, 0, RATES)[1]
        assert merging.best == int(moved(round(1e6 * nbytes), A100.accelerator, "pointwise").time)
        assert (merging.low, merging.high) == (0, 2 * merging.best)
