"""Replicas of a recorded single process: exchanges of gradients that the recording does not have."""

import pytest
from tests.changes import drawn_views
from tests.drawn_rank import DrawnRank
from tests.graph_contract import check_graph

from lumos.changes.changes import Changes
from lumos.changes.layout.measured_layout import measured_layout
from lumos.changes.layout.place import assemble_pieces
from lumos.changes.layout.placed import add_work
from lumos.changes.layout.replicated import buckets_of, replicate
from lumos.changes.machine import Machine
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.cost.cluster import load_cluster
from lumos.cost.collective_model import collective
from lumos.cost.memory_bound_model import moved
from lumos.errors import LumosError
from lumos.graph.build import build
from lumos.operators.calls import BACKWARD_NODE, GATHERS
from lumos.segment.rank import recordings_of
from lumos.segment.segment import segment
from lumos.trace import read
from lumos.vocabulary import CollectiveKind

NODE = "autograd::engine::evaluate_function: AddmmBackward0"
#: Weights of two linear layers, and their bytes.
SMALL, LARGE = (64, 512), (4096, 512)
BYTES = {SMALL: 4 * (64 * 512 + 64), LARGE: 4 * (4096 * 512 + 4096)}


def job_of(tmp_path, *weights, training=True, gathers=False):
    """A step of linear layers: each 1 ms forward and 2 ms backward on one stream, then 0.5 ms of optimizer; launches take no time to
    speak of, and the step ends with the last kernel. gathers: autograd gathers the gradient of each layer's matrix behind its node."""
    forward = [("aten::linear", [[16, w[1]], list(w), [w[0]]], 1000, i) for i, w in enumerate(weights, 10)]
    backward = [(NODE, [], 2000, i) for i in reversed(range(10, 10 + len(weights)))] if training else []
    rank, free = DrawnRank(), 1000
    for i, (name, dims, us, number) in enumerate([*forward, *backward, *([("aten::add_", [], 500, -1)] if training else [])], 1):
        at = 1000 + 10 * i
        known = {"Input Dims": dims, "Input type": ["float"] * len(dims)} if dims else {}
        known |= {"Sequence number": number} if number >= 0 else {}
        free = max(free, at + 5)
        rank.launching(name, at, 8, (f"kernel of {name}", free, us), 2 if name == NODE else 1, **known)
        if gathers and name == NODE:
            shape = {"Input Dims": [list(weights[number - 10])], "Input type": ["float"]}
            rank.operator(f"{BACKWARD_NODE}: {GATHERS}", at + 8.5, 1, 2)
            rank.operator(GATHERS, at + 8.5, 1, 2, **shape)
        residual = name == "aten::linear" and dims[1][0] == dims[1][1]
        views = drawn_views.events([drawn_views.added(16, dims[1][0])] if residual else [], at + 8.5)
        rank.rows += [{**row, "pid": 1} for row in views]
        free += us
    if training:
        rank.range("Optimizer.step#SGD.step", 1000 + 10 * (2 * len(weights) + 1) - 0.5, 9)
    job = read(str(rank.write(tmp_path / "rank0.json", deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3"}])))
    return job, build(job)


def longer(found, *words):
    """By how much the step becomes longer, ns."""
    answer = answer_changes(*found, Changes(parse_settings(words)), force=True)
    return 1e9 * (answer.outcome.step_time_s - answer.base.step_time_s), answer


def exchange(nbytes, ranks):
    return int(collective(CollectiveKind.ALL_REDUCE, ranks, nbytes, load_cluster("h100")).time)


def copies(*weights):
    """The gradients are copied into buckets, and back."""
    h100 = load_cluster("h100").accelerator
    return sum(2 * int(moved(2 * BYTES[w], h100, "pointwise").time) for w in weights)


def test_an_exchange_that_nothing_hides_is_added_to_the_step(tmp_path):
    by, answer = longer(job_of(tmp_path, SMALL), "dp=8")
    assert by == pytest.approx(exchange(BYTES[SMALL], 8) + copies(SMALL), abs=5_000)
    assert answer.changes == ("dp = 8 (measured: 1)",)
    said = next(d.message for d in answer.diagnostics if d.code == "exchange-assumed")
    assert "1 bucket" in said and "links of h100" in said


@pytest.mark.parametrize("layers", [1, 9])
def test_an_exchange_beside_the_backward_pass_is_hidden(tmp_path, layers):
    """Each large layer's gradients are ready 2 ms before the next ones, longer than their exchange; they are copied back beside it."""
    end, once = exchange(BYTES[SMALL], 8), layers * copies(LARGE) / 2
    assert longer(job_of(tmp_path, SMALL, *[LARGE] * layers), "dp=8")[0] == pytest.approx(copies(SMALL) + once + max(end, once), abs=1_000)


def test_only_the_last_microbatch_exchanges(tmp_path):
    found = job_of(tmp_path, SMALL, LARGE)
    both = longer(found, "dp=8", "microbatches=3")[0]
    assert both - longer(found, "microbatches=3")[0] == pytest.approx(exchange(BYTES[SMALL], 8) + copies(SMALL, LARGE), abs=5_000)


def test_a_layer_of_other_sizes_exchanges_gradients_of_other_sizes(tmp_path):
    """Two layers from 512 to 512 that become ones from 1024 to 1024. The second's exchange is hidden behind the first's backward pass."""
    found = job_of(tmp_path, (512, 512), (512, 512))
    wider = longer(found, "dp=8", "hidden=1024")[0] - longer(found, "hidden=1024")[0]
    h100 = load_cluster("h100").accelerator
    nbytes = 4 * (1024 * 1024 + 1024)
    assert wider == pytest.approx(exchange(nbytes, 8) + 4 * int(moved(2 * nbytes, h100, "pointwise").time), abs=5_000)


def test_gradients_are_ready_where_autograd_gathers_them(tmp_path):
    """Not at the end of a layer, and of the sizes that it gathers."""
    job, graph = job_of(tmp_path, SMALL, LARGE, gathers=True)
    layout = measured_layout(segment(graph, job))
    kernels = [i for i in range(len(graph)) if graph.names[graph.name[i]] == f"kernel of {NODE}"]
    buckets = [(b.task, b.nbytes, b.last) for b in buckets_of(layout, recordings_of(layout.segmentation, job)[0])]
    assert buckets == [(kernels[0], 4 * 4096 * 512, False), (kernels[1], 4 * 64 * 512, True)]


def test_links_that_nobody_stated_are_known_to_a_factor(tmp_path):
    found, by = job_of(tmp_path, SMALL), exchange(BYTES[SMALL], 8)
    usual, stated = (
        answer_changes(*found, Changes(parse_settings(["dp=8"]), base_cluster=cluster), force=True) for cluster in (None, "h100")
    )
    width = [1e9 * (a.outcome.step_time_high_s - a.outcome.step_time_low_s) for a in (usual, stated)]
    assert usual.outcome.step_time_s == stated.outcome.step_time_s
    assert width[0] > width[1] + by / 2
    assert "usual links" in next(d.message for d in usual.diagnostics if d.code == "exchange-assumed")


def test_the_graph_with_exchanges_is_one(tmp_path):
    job, graph = job_of(tmp_path, SMALL, LARGE)
    layout = measured_layout(segment(graph, job))
    (exchanged,) = replicate(layout, job, job, (4, 1), Machine(job, graph, cluster="h100")).assumed
    placed = assemble_pieces(layout)
    placed = add_work(placed, list(exchanged(placed)))
    check_graph(placed.graph)
    assert len(placed.graph) == len(graph) + 2
    assert (placed.source[-2:] == -1).all()


def test_one_replica_is_the_recorded_job(tmp_path):
    assert longer(job_of(tmp_path, SMALL), "dp=1")[0] == 0


def test_without_a_backward_pass_nothing_is_exchanged(tmp_path):
    with pytest.raises(LumosError, match="shows no backward pass with the shapes of its weights"):
        longer(job_of(tmp_path, SMALL, training=False), "dp=8")
