"""Ranks joined into one graph: rendezvous, clocks, missing ranks."""

import numpy as np
import pytest

from lumos.errors import GraphError
from lumos.graph.build import build
from lumos.simulation import simulate

US = 1000
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"


def facts(seq=None, group="0", ranks="[0, 1]", size=2, name="allreduce", nelems=1000):
    out = {
        "Collective name": name,
        "dtype": "Float",
        "In msg nelems": nelems,
        "Out msg nelems": nelems,
        "Group size": size,
        "Process Group Name": group,
        "Process Group Ranks": ranks,
    }
    return out if seq is None else {**out, "Seq": seq}


def messages(graph):
    """The diagnostics, by code."""
    return {d.code: d.message for d in graph.diagnostics}


def two_ranks(draw, late=100, seq=True, shift=0):
    """Rank 0 works 50 us, rank 1 50 + late; both then all-reduce for 40 us, work 30 more, and all-reduce again."""
    drawings = []
    for rank, work in ((0, 50), (1, 50 + late)):
        drawing = draw(rank, 2)
        o = shift if rank else 0
        meet = 50 + late + 15
        drawing.op("forward", o, work).launch((o + work, 10), (o + work + 12, meet + 40 - work - 12), 9, NCCL, **facts(1 if seq else None))
        drawing.op("more", o + work + 10, 30)
        begin = max(o + work + 10 + 30 + 12, o + meet + 41)
        drawing.launch((o + work + 40, 10), (begin, o + meet + 41 + 40 - begin), 9, NCCL, **facts(2 if seq else None))
        drawings.append(drawing)
    return drawings


@pytest.mark.parametrize("seq", [True, False])
def test_waiting_comes_out_of_the_simulation(draw, job, seq):
    graph = build(job(*two_ranks(draw, 100, seq)))
    assert np.diff(graph.rendezvous_offset).tolist() == [2, 2]
    first = graph.rendezvous_task[:2]
    # rank 1 arrives at 150 + 10 + 2 = 162 and both leave at 205: a transfer of 43, of which rank 0 waited 100
    assert (graph.duration[first] == 43 * US).all()
    base = simulate(graph)
    assert (base.end[first] - base.start.min() == 205 * US).all()
    late = graph.duration.copy()
    forward = [i for i in range(len(graph)) if graph.names[graph.name[i]] == "forward"]
    late[forward[1]] += 5000 * US  # 5 ms more on rank 1 alone: every collective of both ranks moves by 5 ms
    moved = simulate(graph, late)
    assert (moved.end[graph.rendezvous_task] - base.end[graph.rendezvous_task] == 5000 * US).all()
    early = graph.duration.copy()
    early[forward[0]] += 60 * US  # rank 0 had waited 100 us, so 60 us more on it move nothing
    assert (simulate(graph, early).end[graph.rendezvous_task] == base.end[graph.rendezvous_task]).all()


def test_clocks_of_different_hosts_are_aligned_by_the_ends(draw, job):
    same = build(job(*two_ranks(draw)))
    shifted = build(job(*two_ranks(draw, shift=300_000)))  # 0.3 s apart
    assert any(d.code == "clocks-aligned" and "rank 1 +300000.0 us" in d.message for d in shifted.diagnostics)
    assert (shifted.measured_start == same.measured_start).all()
    assert (simulate(shifted).start == simulate(same).start).all()
    assert not any(d.code == "clocks-aligned" for d in same.diagnostics)


def test_the_ranks_given_meet_and_the_bound_is_marked(draw, job):
    """Two of four ranks. Rank 1 arrives at 162 and both leave at 205: without the others' waiting the transfer takes 43 us at most."""
    drawings = two_ranks(draw)
    for drawing in drawings:
        for row in drawing.rows:
            if "Group size" in row["args"]:
                row["args"].update({"Group size": 4, "Process Group Ranks": "[0, 1, 2, 3]"})
    graph = build(job(*drawings))
    assert np.diff(graph.rendezvous_offset).tolist() == [2, 2]
    assert (graph.duration[graph.rendezvous_task[:2]] == 43 * US).all()
    assert graph.waiting_unknown.tolist() == sorted(graph.rendezvous_task.tolist())
    assert messages(graph)["waiting-unknown"].startswith(
        "4 collective tasks meet only those of their ranks that show them; what is left of their duration may still be waiting for"
    )
    late = graph.duration.copy()
    late[[i for i in range(len(graph)) if graph.names[graph.name[i]] == "forward" and graph.rank_of_task[i] == 1]] += 5000 * US
    moved = simulate(graph, late).end[graph.rendezvous_task] - simulate(graph).end[graph.rendezvous_task]
    assert (moved == 5000 * US).all()


def test_one_rank_alone_says_that_its_waiting_is_unknown(draw, job):
    graph = build(job(two_ranks(draw)[0]))
    assert len(graph.waiting_unknown) == 2
    assert "because not all of their ranks were given" in messages(graph)["waiting-unknown"]


def test_a_row_missing_on_one_rank_does_not_shift_the_matches_behind_it(draw, job):
    rank = []
    for number in (0, 1):
        drawing = draw(number, 2)
        for i in range(6):
            if number == 1 and i == 2:
                continue  # the profiler lost this kernel
            at = 100 * i + 10 * number
            drawing.launch((at, 5), (at + 7, 60 - 10 * number), 9, NCCL, **facts(nelems=1000 * (1 + i % 2)))
        rank.append(drawing)
    graph = build(job(*rank))
    starts = graph.measured_start[graph.rendezvous_task].reshape(-1, 2)
    assert len(starts) == 5
    assert (np.diff(starts, axis=1) == 10 * US).all()
    assert len(graph.waiting_unknown) == 1
    assert "because the other ranks' rows show no partner for them" in messages(graph)["waiting-unknown"]


def test_sends_meet_their_receives(draw, job):
    sender, receiver = draw(0, 2), draw(1, 2)
    name = "ncclDevKernel_SendRecv(x)"
    for i in range(3):
        sender.launch((100 * i, 5), (100 * i + 7, 20), 9, name, **{**facts(name="send"), "Dst Rank": 1})
        receiver.launch((100 * i - 60 if i else 1, 5), (100 * i - 50 if i else 7, 77 if i else 20), 9, name,
                        **{**facts(name="recv"), "Src Rank": 0})  # fmt: skip
    graph = build(job(sender, receiver))
    assert np.diff(graph.rendezvous_offset).tolist() == [2, 2, 2]
    assert (graph.duration[graph.rendezvous_task] == 20 * US).all()


def test_groups_are_kept_apart(draw, job):
    drawings = [draw(r, 4) for r in range(4)]
    for rank, drawing in enumerate(drawings):
        pair = "[0, 1]" if rank < 2 else "[2, 3]"
        drawing.launch((0, 5), (7, 30), 9, NCCL, **facts(1, "1" if rank < 2 else "2", pair))
        drawing.launch((20, 5), (50, 30), 9, NCCL, **facts(1, "0", "[0, 1, 2, 3]", 4))
    graph = build(job(*drawings))
    assert sorted(np.diff(graph.rendezvous_offset).tolist()) == [2, 2, 4]


def test_order_that_cannot_complete_is_reported_not_awaited(draw, job):
    # the ranks issue two groups' collectives in opposite order on one stream each: neither can begin
    drawings = [draw(r, 2) for r in range(2)]
    for rank, drawing in enumerate(drawings):
        for k, group in enumerate(("a", "b") if rank == 0 else ("b", "a")):
            drawing.launch((20 * k, 5), (100 * k + 7, 50), 9, NCCL, **facts(1, group))
    graph = build(job(*drawings))
    with pytest.raises(GraphError, match="rank"):
        simulate(graph)


def test_collectives_that_were_never_under_way_together_did_not_meet(draw, job):
    # without numbers, order alone would pair rank 0's first with rank 1's, which began after it had ended
    drawings = [draw(r, 2) for r in range(2)]
    drawings[0].launch((0, 5), (7, 20), 9, NCCL, **facts()).launch((100, 5), (107, 20), 9, NCCL, **facts())
    drawings[1].launch((50, 5), (57, 20), 9, NCCL, **facts()).launch((100, 5), (107, 20), 9, NCCL, **facts())
    graph = build(job(*drawings))
    assert np.diff(graph.rendezvous_offset).tolist() == [2]
    assert len(graph.waiting_unknown) == 2
    assert "because their partners were not under way at the same time" in messages(graph)["waiting-unknown"]
    simulate(graph)


def test_collectives_of_one_number_but_different_size_are_named(draw, job):
    drawings = [draw(r, 2) for r in range(2)]
    for rank, drawing in enumerate(drawings):
        drawing.launch((0, 5), (7, 50), 9, NCCL, **facts(1)).launch((60, 5), (67, 50), 9, NCCL, **facts(2, nelems=1000 + rank))
    graph = build(job(*drawings))
    assert np.diff(graph.rendezvous_offset).tolist() == [2]
    finding = next(d for d in graph.diagnostics if d.code == "collective-mismatch")
    assert (
        "sequence number 2" in finding.message and "4,000 bytes on rank 0" in finding.message and "4,004 bytes on rank 1" in finding.message
    )


def test_every_way_of_matching_is_counted(draw, job):
    """Two all-reduces by number, one send and its receive by order."""
    drawings = two_ranks(draw)
    for rank, (drawing, name) in enumerate(zip(drawings, ("send", "recv"), strict=True)):
        side = {"Dst Rank": 1} if rank == 0 else {"Src Rank": 0}
        drawing.launch((300, 5), (307, 20), 9, "ncclDevKernel_SendRecv(x)", **{**facts(7, name=name), **side})
    graph = build(job(*drawings))
    assert messages(graph)["ranks-joined"] == (
        "6 of 6 collective and point-to-point tasks of 2 ranks meet their peers,"
        " 4 by sequence number (confidence 1.00); 2 by order of sends and receives (confidence 0.90)"
    )


def test_step_numbers_say_which_collectives_of_different_windows_are_one(draw, job):
    """Rank 0 recorded the steps 3 to 5, rank 1 the steps 4 to 6, on a clock that is 0.3 s ahead; each has one all-reduce of one size. The
    steps 4 and 5 are common. Without their numbers the first step of each rank would meet."""
    drawings = [draw(rank, 2) for rank in (0, 1)]
    for rank, drawing in enumerate(drawings):
        for number in range(3 + rank, 6 + rank):
            at = 1000 * number + 300_000 * rank
            drawing.row("user_annotation", f"ProfilerStep#{number}", at, 1000)
            drawing.launch((at + 10, 5), (at + 20 + 20 * rank, 100 - 20 * rank), 9, NCCL, **facts())
    graph = build(job(*drawings))
    assert np.diff(graph.rendezvous_offset).tolist() == [2, 2]
    assert "rank 1 +300000.0 us" in messages(graph)["clocks-aligned"]
    assert (graph.duration[graph.rendezvous_task] == 80 * US).all()
    assert len(graph.waiting_unknown) == 2
