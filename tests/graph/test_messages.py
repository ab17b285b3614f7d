"""Sends and receives: which row states them, and what meets. All times in the drawings are us."""

import numpy as np

from lumos.graph.build import build
from lumos.graph.one_rank import rank_graph
from lumos.simulation import simulate

US = 1000
KERNEL = "ncclDevKernel_SendRecv(x)"


def stated(side, peer, world=2, nelems=1000, **more):
    """The arguments of the `record_param_comms` row of one send or receive."""
    return {
        "Collective name": side,
        "dtype": "Float",
        "In msg nelems": nelems,
        "Out msg nelems": nelems,
        "Group size": world,
        "Process Group Name": "0",
        "Process Group Ranks": str(list(range(world))),
        ("Dst Rank" if side == "send" else "Src Rank"): peer,
        **more,
    }


def batch(drawing, at, sides, kernel, world=2, seq=None):
    """Sends and receives stated from `at` on, 5 us each, and their one launch 5 us after the last, inside no row."""
    for i, (side, peer) in enumerate(sides):
        number = {} if seq is None else {"Seq": seq + i, "Comms Id": str(1000 * drawing.rank + seq + i)}
        drawing.op("record_param_comms", at + 5 * i, 5, **stated(side, peer, world, **number))
    return drawing.launch((at + 5 * len(sides) + 5, 5), kernel, 9, KERNEL)


def messages(graph):
    """The diagnostics, by code."""
    return {d.code: d.message for d in graph.diagnostics}


def meetings(graph):
    """The ranks of each rendezvous."""
    ranks = graph.rank_of_task[graph.rendezvous_task].tolist()
    return [ranks[low:high] for low, high in zip(graph.rendezvous_offset[:-1], graph.rendezvous_offset[1:], strict=True)]


def test_a_grouped_launch_carries_the_rows_before_it(draw, trace):
    """A send of 4,000 bytes and a receive, launched together: one task that exchanges, with 4,000 bytes of input."""
    graph = rank_graph(trace(batch(draw(0, 2), 0, [("send", 1), ("recv", 1)], (22, 50))))
    found = graph.collectives
    assert [found.kinds[k] for k in found.kind] == ["send-receive"]
    assert found.nbytes.tolist() == [4000]
    assert [(sends, peer) for _, sends, peer, _, _ in found.messages] == [(True, 1), (False, 1)]


def test_batched_sends_and_receives_meet(draw, job):
    """Rank 0 exchanges from 20, rank 1 from 120; both end at 150. The transfer takes 30, of which rank 0 waits 100. With rank 1
    another 500 later, both end 500 later."""
    drawings = [batch(draw(0, 2), 0, [("send", 1), ("recv", 1)], (20, 130), seq=0)]
    drawings.append(batch(draw(1, 2).op("forward", 0, 100), 100, [("recv", 0), ("send", 0)], (120, 30), seq=4))
    graph = build(job(*drawings))
    assert meetings(graph) == [[0, 1]]
    assert (graph.duration[graph.rendezvous_task] == 30 * US).all()
    late = graph.duration.copy()
    late[[i for i in range(len(graph)) if graph.names[graph.name[i]] == "forward"]] += 500 * US
    assert (simulate(graph, late).end - simulate(graph).end)[graph.rendezvous_task].tolist() == [500 * US, 500 * US]


def test_an_exchange_with_several_ranks_meets_where_all_were_under_way(draw, job):
    """Rank 1 receives from 0 and sends to 2 in one kernel. From 60 on all three run, and so they meet: the transfer takes 20."""
    drawings = [batch(draw(0, 3), 0, [("send", 1)], (20, 60), 3)]
    drawings.append(batch(draw(1, 3), 20, [("recv", 0), ("send", 2)], (40, 40), 3))
    drawings.append(batch(draw(2, 3), 40, [("recv", 1)], (60, 20), 3))
    graph = build(job(*drawings))
    assert meetings(graph) == [[0, 1, 2]]
    assert (graph.duration[graph.rendezvous_task] == 20 * US).all()


def test_an_exchange_with_several_ranks_that_were_not_under_way_together_stays_alone(draw, job):
    """The same, but rank 0 has ended before rank 2 begins."""
    drawings = [batch(draw(0, 3), 0, [("send", 1)], (20, 30), 3)]
    drawings.append(batch(draw(1, 3), 20, [("recv", 0), ("send", 2)], (40, 40), 3))
    drawings.append(batch(draw(2, 3), 40, [("recv", 1)], (60, 20), 3))
    graph = build(job(*drawings))
    assert meetings(graph) == []
    assert "because each exchanges with several ranks that were not under way together" in messages(graph)["waiting-unknown"]


def test_messages_of_one_step_meet(draw, job):
    """Rank 0 recorded the steps 3 and 4, rank 1 the steps 4 and 5, on a clock that is 0.3 s ahead. The messages of step 4 meet, and
    their ends say how the clocks differ."""
    drawings = [draw(rank, 2) for rank in (0, 1)]
    for rank, drawing in enumerate(drawings):
        for number in (3 + rank, 4 + rank):
            at = 1000 * number + 300_000 * rank
            drawing.row("user_annotation", f"ProfilerStep#{number}", at, 1000)
            batch(drawing, at + 10, [("recv" if rank else "send", 1 - rank)], (at + 30, 50))
    graph = build(job(*drawings))
    assert meetings(graph) == [[0, 1]]
    assert "rank 1 +300000.0 us" in messages(graph)["clocks-aligned"]
    assert (graph.duration[graph.rendezvous_task] == 50 * US).all()


def test_a_send_on_a_cpu_thread_goes_to_the_rank_that_its_operator_states(draw, job):
    """Gloo: rank 0 sends from 105 to 140, rank 1 receives from 10. The operator that issues the message names the other rank."""
    drawings = []
    for rank, (issue, row, begin) in enumerate((("c10d::send", "gloo:send", 105), ("c10d::recv_", "gloo:recv", 10))):
        drawing = draw(rank, 2).op("forward", 0, begin - 5)
        shapes = {"Input Dims": [[[100]], [], [], []], "Input type": ["TensorList", "", "Scalar", "Scalar"]}
        drawing.op(issue, begin - 5, 4, **shapes, **{"Concrete Inputs": ["", "", str(1 - rank), "0"]})
        drawing.row("user_annotation", row, begin, 140 - begin, **{"Input Dims": [[100]], "Input type": ["float"]})
        drawings.append(drawing)
    graph = build(job(*drawings))
    assert meetings(graph) == [[0, 1]]
    assert (graph.duration[graph.rendezvous_task] == 35 * US).all()
    assert np.unique(graph.collectives.nbytes).tolist() == [400]
