"""Operation-level jobs small enough to replay on paper; ms."""

import json

import pytest

from lumos.errors import GraphError
from lumos.graph.build import build
from lumos.graph.operations.graph import operation_constants, operations_graph
from lumos.graph.table import Kind
from lumos.simulation import measured, simulate
from lumos.trace import read

MS = 1_000_000


@pytest.fixture
def table(operation_jobs, tmp_path):
    pytest.importorskip("pyarrow", reason="reading Parquet needs pyarrow")
    return lambda operations, **replaced: read(operation_jobs.write_table(tmp_path / "trace.parquet", operations, **replaced))


def tasks(graph, name, rank=None):
    """Tasks of an operation, by measured start."""
    of_rank = [rank in (None, p.rank) for p in graph.processors]
    found = [i for i in range(len(graph)) if graph.names[graph.name[i]] == name and of_rank[graph.processor[i]]]
    return sorted(found, key=lambda i: graph.measured_start[i])


def test_a_pipeline_replays_as_measured_with_the_waiting_left_out(table, operation_jobs):
    graph = build(table(operation_jobs.pipeline()))
    timeline = simulate(graph)
    assert timeline.end.tolist() == measured(graph).end.tolist() and timeline.end.max() == 93 * MS
    # Each transfer takes 1 ms from its last arrival, however long a rank waited in it: stage 0 sent from 21 to 42.
    sends = tasks(graph, "forward-send", 0)
    assert graph.duration[sends].tolist() == [MS, MS] and timeline.end[sends[1]] - timeline.start[sends[1]] == 21 * MS


@pytest.mark.parametrize(("slower", "step"), [(5, 93), (20, 93), (25, 98)])
def test_waiting_emerges(table, operation_jobs, slower, step):
    """Stage 0's second forward ends at 21 and waits for stage 1 until 41: 20 ms more are free, 25 cost 5."""
    graph = build(table(operation_jobs.pipeline()))
    duration = graph.duration.copy()
    duration[tasks(graph, "forward-compute", 0)[1]] += slower * MS
    assert simulate(graph, duration).end.max() == step * MS


def data_parallel(operation_jobs, step=0, forward=(10, 14)):
    """Two ranks of one stage: a forward each, then gradients that meet when the later one is there, for 2 ms."""
    o, last = operation_jobs.Operation, max(forward)
    return [
        row
        for rank, time in enumerate(forward)
        for row in (
            o(rank, 0, rank, step, "forward-compute", 0, 0, time),
            o(rank, 0, rank, step, "grads-reduce-scatter", 0, time, last + 2),
        )
    ]


@pytest.mark.parametrize(("slower", "step"), [(3, 16), (6, 18)])
def test_collectives_meet_over_the_data_parallel_ranks(table, operation_jobs, slower, step):
    """Rank 0 arrives at 10, rank 1 at 14: 3 ms more on rank 0 are free, 6 make it the last, at 16."""
    graph = build(table(data_parallel(operation_jobs)))
    duration = graph.duration.copy()
    duration[tasks(graph, "forward-compute", 0)] += slower * MS
    timeline = simulate(graph, duration)
    assert timeline.end[tasks(graph, "grads-reduce-scatter")].tolist() == [step * MS] * 2


def delayed(operation_jobs, gaps):
    """One step for each gap: parameters are gathered (0 to 4), and the forward starts a gap later, for 10 ms."""
    o = operation_jobs.Operation
    return [
        row
        for step, gap in enumerate(gaps)
        for row in (o(0, 0, 0, step, "params-all-gather", 0, 0, 4), o(0, 0, 0, step, "forward-compute", 0, 4 + gap, 14 + gap))
    ]


def test_launch_delays_are_one_constant_a_kind(table, operation_jobs):
    """Gaps of 1, 2 and 6 ms after the gather: each step replays with the median, 2 ms."""
    graph = build(table(delayed(operation_jobs, (1, 2, 6))))
    assert operation_constants(graph) == {"launch_delay_behind_params_all_gather_ns": (2 * MS,)}
    forward = tasks(graph, "forward-compute")
    timeline = simulate(graph)
    gathered = timeline.end[tasks(graph, "params-all-gather")]
    assert (timeline.start[forward] - gathered).tolist() == [2 * MS] * 3
    assert [d.code for d in graph.diagnostics] == ["launch-delay"]


def test_constants_are_estimated_on_the_steps_asked_for(table, operation_jobs):
    job = table(delayed(operation_jobs, (1, 2, 6)))
    assert operation_constants(operations_graph(job, fitted_on=[2])) == {"launch_delay_behind_params_all_gather_ns": (6 * MS,)}
    with pytest.raises(GraphError, match="none of the steps to fit on is in the recording; it has steps 0 to 2"):
        operations_graph(job, fitted_on=[9])


def test_a_step_starts_when_the_last_rank_has_ended_and_each_rank_as_late_as_it_did(table, operation_jobs):
    """Steps of 16 ms on two ranks. Rank 0 slowed by 10 in the first: it ends at 22, and the second begins there."""
    graph = build(table([*data_parallel(operation_jobs, 0), *data_parallel(operation_jobs, 1)]))
    duration = graph.duration.copy()
    duration[tasks(graph, "forward-compute", 0)[0]] += 10 * MS
    timeline = simulate(graph, duration)
    assert timeline.start[tasks(graph, "forward-compute")].tolist() == [0, 0, 22 * MS, 22 * MS]


def test_overlapped_gradients_do_not_hold_the_passes_back(table, operation_jobs):
    """With separate-grads-all-reduce the job overlaps its reduce-scatter, which then runs between the last backward pass of its
    chunk and the first all-reduce of the step; parameters are gathered before the first forward pass."""
    o = operation_jobs.Operation
    rows = [
        o(0, 0, 0, 0, "params-all-gather", 0, 0, 5),
        o(0, 0, 0, 0, "forward-compute", 0, 5, 15),
        o(0, 0, 0, 0, "backward-compute", 0, 15, 35),
        o(0, 0, 0, 0, "grads-reduce-scatter", 0, 35, 45),
        o(0, 0, 0, 0, "gc", 0, 35, 36),
        o(0, 0, 0, 0, "separate-grads-all-reduce", 0, 45, 46),
    ]
    graph = build(table(rows, mc=[0, 0, 0, 0, -1, -1]))
    timeline = simulate(graph)
    assert timeline.end[tasks(graph, "separate-grads-all-reduce")].tolist() == [46 * MS]
    assert timeline.start[tasks(graph, "gc")].tolist() == [35 * MS]
    longer = graph.duration.copy()
    longer[tasks(graph, "params-all-gather")] += 3 * MS
    assert simulate(graph, longer).start[tasks(graph, "forward-compute")].tolist() == [8 * MS]


def test_what_meets_an_absent_rank_keeps_its_duration(table, operation_jobs):
    """Without stage 1, stage 0's transfers last as measured: 1, 21 (fused, both ends) and 11 ms; the step still takes 93."""
    rows = [*[o for o in operation_jobs.pipeline() if o.stage == 0], operation_jobs.Operation(9, 1, 0, 0, "gc", 0, 0, 0)]
    graph = build(table(rows))
    assert simulate(graph).end.max() == 93 * MS
    assert sorted(graph.duration[graph.kind == Kind.COLLECTIVE].tolist()) == [MS, 11 * MS, 21 * MS, 21 * MS]
    found = {d.code: d.message for d in graph.diagnostics}
    assert "4 transfers" in found["waiting-unknown"]


def test_a_transfer_that_ends_before_its_last_rank_arrives_takes_the_usual_time(table, operation_jobs):
    """In one of three steps rank 0's clock puts the end of the gradients before rank 1's arrival: 2 ms, as in the others."""
    rows = [row for step in range(3) for row in data_parallel(operation_jobs, step)]
    rows[1] = rows[1]._replace(end=13)
    graph = build(table(rows))
    assert graph.duration[tasks(graph, "grads-reduce-scatter")].tolist() == [2 * MS] * 6
    assert "transfer-negative" in {d.code for d in graph.diagnostics}


def test_passes_alone_get_the_transfers_that_their_order_implies(operation_jobs, tmp_path):
    """The same pipeline without its transfers: those between the passes take 1 ms, as the gaps say, and the step 93."""
    graph = build(read(operation_jobs.write_passes(tmp_path)))
    assert operation_constants(graph) == {"transfer_ns": (MS, MS)}
    timeline = simulate(graph)
    for name in ("forward-compute", "backward-compute"):
        assert timeline.start[tasks(graph, name)].tolist() == measured(graph).start[tasks(graph, name)].tolist()
    slower = graph.duration.copy()
    slower[tasks(graph, "forward-compute", 0)[1]] += 25 * MS  # 20 ms of waiting and 5 more
    assert simulate(graph, slower).end[tasks(graph, "backward-compute", 0)[-1]] == 98 * MS
    assert "transfers-implied" in {d.code for d in graph.diagnostics}


def test_interleaved_passes_wait_for_their_input_and_their_sends_overlap(operation_jobs, tmp_path):
    """Two stages of two chunks, one microbatch, passes of 10 ms, 1 ms from stage to stage: 0, 11, 22, 33 forwards."""
    for stage in range(2):
        start = [11.0 * stage, 22.0 + 11 * stage]
        back = [43.0 + 11 * (1 - stage), 65.0 + 11 * (1 - stage)]
        lists = {"fwd_start": start, "fwd_end": [t + 10 for t in start], "bwd_start": back, "bwd_end": [t + 10 for t in back]}
        extra = {f"{p}_minibatch": [1, 1] for p in ("fwd", "bwd")}
        document = {"1": {**lists, **extra, "fwd_chunk": [0, 1], "bwd_chunk": [1, 0]}}
        (tmp_path / f"pp_rank_{stage}.json").write_text(json.dumps(document))
    (tmp_path / "config.json").write_text('{"world_size": 2, "pp_size": 2, "vp_size": 2}')
    graph = build(read(tmp_path))
    assert operation_constants(graph) == {"transfer_ns": (MS, MS)}
    timeline = simulate(graph)
    passes = [i for name in ("forward-compute", "backward-compute") for i in tasks(graph, name)]
    assert timeline.start[passes].tolist() == measured(graph).start[passes].tolist()
    longer = graph.duration.copy()
    longer[tasks(graph, "forward-compute", 0)[0]] += 4 * MS
    assert (simulate(graph, longer).start[passes[1:]] - timeline.start[passes[1:]] == 4 * MS).all()
