"""Graphs drawn by hand, each with a comment that works out the expected times."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.drawn_graph import drawn_graph

from lumos.errors import GraphError
from lumos.graph.table import Dependency, Graph, Kind, Occupancy, Processor, Waits
from lumos.simulation import freeze, simulate, sweep, sweep_many
from lumos.simulation.durations import with_durations

D, K = Dependency, Kind
THREAD, OTHER, S7, S8 = 0, 1, 2, 3  # processors of the hand-drawn rank
ONE_RANK = (
    Processor(0, False, "thread 1"),
    Processor(0, False, "thread 2"),
    Processor(0, True, "stream 7", 0, 7),
    Processor(0, True, "stream 8", 0, 8),
)
Row = tuple[int, Kind, int, Sequence[tuple[int, Dependency]]]


def draw(
    rows: Sequence[Row],
    lag: dict[Dependency, int] | None = None,
    waits: Sequence[tuple[int, int]] = (),
    sets: Sequence[Sequence[int]] = (),
    occupancy: Sequence[tuple[int, float, int]] = (),
    processors: tuple[Processor, ...] = ONE_RANK,
    **columns: Any,
) -> Graph:
    """Rows: (processor, kind, duration, predecessors)."""
    ranks = tuple(sorted({p.rank for p in processors}))
    table = np.zeros((len(ranks), len(D)), np.int64)
    for kind, value in (lag or {}).items():
        table[:, kind] = value
    return drawn_graph(
        processors,
        [(row[0], row[1], f"op{i}", row[2]) for i, row in enumerate(rows)],
        [(before, after, kind) for after, row in enumerate(rows) for before, kind in row[3]],
        sets,
        waits,
        occupancy,
        lag=table,
        **columns,
    )


def times(graph: Graph) -> list[tuple[int, int]]:
    timeline = simulate(graph)
    assert timeline.source == "replayed"
    return list(zip(timeline.start.tolist(), timeline.end.tolist(), strict=True))


def swept(graph: Graph) -> list[tuple[int, int]]:
    timeline = sweep(freeze(graph))
    return list(zip(timeline.start.tolist(), timeline.end.tolist(), strict=True))


def launches_then_sync() -> Graph:
    return draw(
        [
            (THREAD, K.LAUNCH, 10, ()),
            (S7, K.KERNEL, 100, [(0, D.LAUNCH)]),
            (THREAD, K.LAUNCH, 10, ()),
            (S7, K.KERNEL, 50, [(2, D.LAUNCH)]),
            (THREAD, K.SYNC, 5, ()),
            (THREAD, K.RETURN, 0, ()),
            (THREAD, K.HOST, 7, ()),
        ],
        lag={D.LAUNCH: 2, D.STREAM_ORDER: 1, D.SYNC: 3},
        waits=[(5, S7)],
    )


def test_launches_queue_on_a_stream_and_a_synchronise_returns_behind_them() -> None:
    # Kernel 1 starts 2 after its launch, kernel 3 is 1 behind kernel 1 (112 + 1), the return 3 behind kernel 3 (163 + 3).
    expected = [(0, 10), (12, 112), (10, 20), (113, 163), (20, 25), (166, 166), (166, 173)]
    assert times(launches_then_sync()) == expected
    assert swept(launches_then_sync()) == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (D.SYNC, [(0, 10), (12, 112), (10, 20), (113, 163), (20, 25), (25, 25), (25, 32)]),
        # Without stream order the kernels overlap; the return still waits for the last one enqueued, kernel 3.
        (D.STREAM_ORDER, [(0, 10), (12, 112), (10, 20), (22, 72), (20, 25), (75, 75), (75, 82)]),
        # Without launches kernel 1 starts at once and kernel 3 is 1 behind it.
        (D.LAUNCH, [(0, 10), (0, 100), (10, 20), (101, 151), (20, 25), (154, 154), (154, 161)]),
    ],
)
def test_an_ignored_kind_is_switched_off(kind: Dependency, expected: list[tuple[int, int]]) -> None:
    graph = replace(launches_then_sync(), ignored=frozenset({kind}))
    assert times(graph) == expected
    assert swept(graph) == expected


def test_streams_run_work_in_the_order_of_launching_not_of_ids() -> None:
    # Thread 2 launches task 3 at 5, thread 1 launches task 1 at 20: live, task 3 goes first. Frozen, the lower id does.
    graph = draw(
        [
            (THREAD, K.LAUNCH, 20, ()),
            (S7, K.KERNEL, 30, [(0, D.LAUNCH)]),
            (OTHER, K.LAUNCH, 5, ()),
            (S7, K.KERNEL, 30, [(2, D.LAUNCH)]),
        ]
    )
    assert times(graph) == [(0, 20), (35, 65), (0, 5), (5, 35)]
    assert swept(graph) == [(0, 20), (20, 50), (0, 5), (50, 80)]


def test_orphans_follow_the_work_before_them_and_a_release_holds() -> None:
    # Orphan 0 starts at 0; orphan 3 is enqueued right behind task 2, so before task 5, whose launch comes later.
    graph = draw(
        [
            (S7, K.KERNEL, 8, ()),
            (THREAD, K.LAUNCH, 10, ()),
            (S7, K.KERNEL, 20, [(1, D.LAUNCH)]),
            (S7, K.KERNEL, 4, ()),
            (THREAD, K.LAUNCH, 10, ()),
            (S7, K.KERNEL, 5, [(4, D.LAUNCH)]),
        ],
        release_task=np.array([4, 0], np.int32),
        release_time=np.array([50, -3], np.int64),
    )
    expected = [(-3, 5), (0, 10), (10, 30), (30, 34), (50, 60), (60, 65)]
    assert times(graph) == expected
    assert swept(graph) == expected
    # Makespan: from -3 to 65.
    assert sweep_many(freeze(graph), graph.duration[None]).tolist() == [68]


def test_a_device_synchronise_waits_for_every_stream_but_not_for_later_launches() -> None:
    # The call starts at 20: kernels 1 (10..50) and 3 (20..40) are enqueued by then; kernel 7, launched at 30, is not.
    graph = draw(
        [
            (THREAD, K.LAUNCH, 10, ()),
            (S7, K.KERNEL, 40, [(0, D.LAUNCH)]),
            (THREAD, K.LAUNCH, 10, ()),
            (S8, K.KERNEL, 20, [(2, D.LAUNCH)]),
            (THREAD, K.SYNC, 5, ()),
            (THREAD, K.RETURN, 0, ()),
            (OTHER, K.LAUNCH, 30, ()),
            (S8, K.KERNEL, 90, [(6, D.LAUNCH)]),
        ],
        waits=[(5, -1)],
    )
    assert times(graph)[5] == (50, 50)
    assert times(graph)[7] == (40, 130)
    assert swept(graph) == times(graph)


def test_a_full_queue_blocks_the_next_launch() -> None:
    # Depth 1: launch 2 starts when kernel 1 ends (1 + 50 = 51) and launch 4 when kernel 3 does (52 + 50), each plus 2.
    rows: list[Row] = []
    for i in range(3):
        rows += [(THREAD, K.LAUNCH, 1, ()), (S7, K.KERNEL, 50, [(2 * i, D.LAUNCH)])]
    graph = draw(rows, lag={D.QUEUE_DEPTH: 2}, queue_depth=np.array([1], np.int32))
    expected = [(0, 1), (1, 51), (53, 54), (54, 104), (106, 107), (107, 157)]
    assert times(graph) == expected
    assert swept(graph) == expected


def test_a_kernel_that_fills_the_device_holds_back_other_streams_until_its_last_wave() -> None:
    # Kernel 1 (2..102) fills the device until 2 + 60; kernel 3 (share 0.5) is ready at 4 and starts at 62.
    rows: list[Row] = [
        (THREAD, K.LAUNCH, 2, ()),
        (S7, K.KERNEL, 100, [(0, D.LAUNCH)]),
        (THREAD, K.LAUNCH, 2, ()),
        (S8, K.KERNEL, 10, [(2, D.LAUNCH)]),
    ]
    graph = draw(rows, occupancy=[(1, 1.0, 60), (3, 0.5, 10)])
    assert times(graph) == [(0, 2), (2, 102), (2, 4), (62, 72)]
    assert not freeze(graph).exact
    # Half as long, the kernel holds half as long: 2 + 30.
    assert simulate(graph, np.array([2, 50, 2, 10], np.int64)).start[3] == 32
    assert times(with_durations(graph, np.array([2, 50, 2, 10], np.int64)))[3] == (32, 42)
    # Half of the device leaves room.
    assert times(draw(rows, occupancy=[(1, 0.5, 60), (3, 0.5, 10)]))[3] == (4, 14)
    ignored = replace(graph, ignored=frozenset({D.OCCUPANCY}))
    assert times(ignored)[3] == (4, 14)
    assert freeze(ignored).exact


def two_ranks() -> Graph:
    processors = tuple(p for r in (0, 1) for p in (Processor(r, False, "thread 1"), Processor(r, True, "stream 20", 0, 20)))
    rows: list[Row] = []
    for r in (0, 1):
        for i in range(2):
            launch = len(rows)
            rows += [(2 * r, K.LAUNCH, 10 + 30 * r, ()), (2 * r + 1, K.COLLECTIVE, 5 + i, [(launch, D.LAUNCH)])]
    return draw(rows, sets=[(1, 5), (3, 7)], processors=processors)


def test_a_collective_waits_for_its_last_rank() -> None:
    # Rank 0 arrives at 10, rank 1 at 40: both end at 45. The second is ready at 45 and at 80, and ends at 86.
    expected = [(0, 10), (10, 45), (10, 20), (45, 86), (0, 40), (40, 45), (40, 80), (80, 86)]
    assert times(two_ranks()) == expected
    assert swept(two_ranks()) == expected
    alone = replace(two_ranks(), ignored=frozenset({D.RENDEZVOUS}))
    assert times(alone)[1] == swept(alone)[1] == (10, 15)


@pytest.mark.parametrize("solve", [simulate, freeze])
def test_a_cycle_names_its_tasks_and_nothing_else(solve: Any) -> None:
    graph = draw(
        [
            (THREAD, K.HOST, 1, ()),
            (THREAD, K.HOST, 1, [(3, D.HAND_OFF)]),
            (THREAD, K.HOST, 1, ()),
            (OTHER, K.HOST, 1, [(2, D.DATA)]),
            (OTHER, K.HOST, 1, ()),
        ]
    )
    with pytest.raises(GraphError) as caught:
        solve(graph)
    message = str(caught.value)
    assert "3 tasks wait for each other" in message
    assert all(f"waits ({kind}) for " in message for kind in ("hand-off", "data", "thread-order"))
    assert all(f"op{t}" in message for t in (1, 2, 3))
    assert "op0" not in message
    assert "op4" not in message


def test_a_task_that_waits_for_itself_is_a_cycle() -> None:
    with pytest.raises(GraphError, match=r"1 tasks wait(.|\n)*  waits \(data\) for itself\n"):
        simulate(draw([(THREAD, K.HOST, 1, [(0, D.DATA)])]))


def test_a_queue_that_can_never_drain_is_reported() -> None:
    # The only outstanding launch's kernel waits for a host task that comes after the blocked launch.
    graph = draw(
        [
            (THREAD, K.LAUNCH, 1, ()),
            (S7, K.KERNEL, 1, [(0, D.LAUNCH), (4, D.DATA)]),
            (THREAD, K.LAUNCH, 1, ()),
            (S7, K.KERNEL, 1, [(2, D.LAUNCH)]),
            (THREAD, K.HOST, 1, ()),
        ],
        queue_depth=np.array([1], np.int32),
    )
    for solve in (simulate, freeze):
        with pytest.raises(GraphError, match="queue-depth"):
            solve(graph)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"duration": np.array([1.0, 2.0])}, r"duration is float64\[2\]"),
        ({"duration": np.array([1, -2])}, r"duration\[1\] is negative"),
        (
            {"duration": np.array([2**62, 2**62])},
            "more than 4e18 ns.*: the job would take .* ask for smaller sizes",
        ),
        ({"processor": np.array([0], np.int32)}, r"processor is int32\[1\], expected int32\[2\]"),
        ({"processor": np.array([0, 9], np.int32)}, r"processor\[1\] is 9, outside 0..3"),
        ({"pred": np.array([7], np.int32)}, r"pred\[0\] is 7, outside 0..1"),
        ({"pred": np.array([-1], np.int32)}, r"pred\[0\] is -1"),
        ({"pred_kind": np.array([11], np.uint8)}, r"pred_kind\[0\] is 11"),
        ({"pred_offset": np.array([0, 2, 1], np.int64)}, r"pred_offset\[2\] is less"),
        ({"pred_offset": np.array([0, 0, 5], np.int64)}, r"pred is int32\[1\], expected int32\[5\]"),
        ({"pred_offset": np.array([1, 1, 1], np.int64)}, r"pred_offset\[0\] is not 0"),
        ({"lag": np.zeros((1, 3), np.int64)}, r"lag is int64\[1, 3\], expected int64\[1, 11\]"),
        ({"lag": np.full((1, 11), -1, np.int64)}, "negative constant"),
        ({"ranks": (5,)}, "of a rank that the graph does not list"),
        ({"release_task": np.array([2], np.int32), "release_time": np.array([0])}, r"release_task\[0\] is 2"),
        ({"release_task": np.array([0], np.int32)}, "differ in length"),
        ({"rendezvous_offset": np.array([0, 2]), "rendezvous_task": np.array([1, 1], np.int32)}, "into a second rendezvous"),
        ({"rendezvous_offset": np.array([0, 1]), "rendezvous_task": np.array([5], np.int32)}, r"rendezvous_task\[0\] is 5"),
        ({"queue_depth": np.zeros(2, np.int32)}, r"queue_depth is int32\[2\]"),
        ({"waits": Waits(np.array([0], np.int32), np.array([0], np.int32))}, "only streams can be awaited"),
        ({"waits": Waits(np.array([1], np.int32), np.array([2], np.int32))}, "only CPU tasks wait"),
        ({"waits": Waits(np.array([9], np.int32), np.array([2], np.int32))}, r"waits.task\[0\] is 9"),
        ({"waits": Waits(np.array([0], np.int32), np.array([4], np.int32))}, r"waits.target\[0\] is 4"),
        ({"occupancy": Occupancy(np.array([0], np.int32), np.array([1], np.float32), np.array([0]))}, "only device tasks take SMs"),
        ({"occupancy": Occupancy(np.array([1], np.int32), np.array([2], np.float32), np.array([0]))}, r"outside \(0, 1\]"),
        ({"occupancy": Occupancy(np.array([1], np.int32), np.array([1], np.float32), np.array([99]))}, "outside 0..duration"),
        ({"occupancy": Occupancy(np.array([1, 1], np.int32), np.array([1, 1], np.float32), np.array([0, 0]))}, "a second time"),
    ],
)
def test_a_malformed_graph_is_an_error_that_names_the_column(change: dict[str, Any], message: str) -> None:
    graph = draw([(THREAD, K.LAUNCH, 1, ()), (S7, K.KERNEL, 2, [(0, D.LAUNCH)])])
    for solve in (simulate, freeze):
        with pytest.raises(GraphError, match=message):
            solve(replace(graph, **change))


def test_a_device_task_with_two_launches_is_malformed() -> None:
    graph = draw([(THREAD, K.LAUNCH, 1, ()), (THREAD, K.LAUNCH, 1, ()), (S7, K.KERNEL, 2, [(0, D.LAUNCH), (1, D.LAUNCH)])])
    with pytest.raises(GraphError, match="a second launch"):
        simulate(graph)


@pytest.mark.parametrize(
    ("durations", "message"),
    [
        (np.array([1, 2, 3]), r"expected int64\[2\]"),
        (np.array([1, 2], np.int32), r"durations is int32\[2\]"),
        (np.array([1, -2]), r"durations\[1\] is negative"),
        (np.array([2**62, 2**62]), "more than 4e18 ns"),
    ],
)
def test_durations_that_do_not_fit_the_graph_are_an_error(durations: np.ndarray[Any, Any], message: str) -> None:
    graph = draw([(THREAD, K.LAUNCH, 1, ()), (S7, K.KERNEL, 2, [(0, D.LAUNCH)])])
    with pytest.raises(GraphError, match=message):
        simulate(graph, durations)
    with pytest.raises(GraphError, match=message):
        sweep(freeze(graph), durations)


def test_a_batch_of_the_wrong_shape_is_an_error() -> None:
    frozen = freeze(draw([(THREAD, K.HOST, 1, ())]))
    with pytest.raises(GraphError, match=r"int64\[k, 1\]"):
        sweep_many(frozen, np.zeros(1, np.int64))
    with pytest.raises(GraphError, match="negative"):
        sweep_many(frozen, np.full((2, 1), -1, np.int64))
    assert sweep_many(frozen, np.empty((0, 1), np.int64)).tolist() == []
