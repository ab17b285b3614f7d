"""What native code is given is checked where it is given, whatever Python did before: a wrong index is a message, never a crash."""

import numpy as np
import pytest
from tests.drawn_graph import drawn_graph

from lumos import _engine, _pipeline
from lumos.errors import GraphError
from lumos.graph.table import Dependency, Kind, Processor
from lumos.plan.schedules import _NUMBER
from lumos.simulation import simulate
from lumos.simulation.tables import tables
from lumos.vocabulary import Schedule

THREADS = (Processor(0, False, "thread 1"), Processor(1, False, "thread 1"))


def drawn(edges=()):
    """Two operators of 5 ns, each on the thread of its rank, and edges (from, to, kind)."""
    return drawn_graph(THREADS, [(0, Kind.OPERATOR, "a", 5), (1, Kind.OPERATOR, "b", 5)], edges)


@pytest.fixture
def graph():
    return drawn()


def test_a_cycle_through_an_edge_of_the_kind_rendezvous_is_named():
    """Such an edge is of no set of tasks that meet: looking for its set read before the first one."""
    with pytest.raises(GraphError, match="wait"):
        simulate(drawn([(0, 1, Dependency.RENDEZVOUS), (1, 0, Dependency.RENDEZVOUS)]))


def columns(graph):
    """The arguments of native tables for a graph without waits, rendezvous or limits."""
    none, processors = np.empty(0, np.int32), len(graph.processors)
    return {
        "duration": graph.duration,
        "processor": graph.processor,
        "kind": graph.kind,
        "pred_offset": graph.pred_offset,
        "pred": graph.pred,
        "pred_kind": graph.pred_kind,
        "rank_of": np.arange(processors, dtype=np.int32),
        "is_stream": np.zeros(processors, np.uint8),
        "device_of": np.full(processors, -1, np.int32),
        "devices": 0,
        "lag": np.zeros(processors * len(Dependency), np.int64),
        "release_task": none,
        "release_time": np.empty(0, np.int64),
        "rendezvous_offset": np.zeros(1, np.int64),
        "rendezvous_task": none,
        "queue_depth": np.zeros(processors, np.int32),
        "wait_task": none,
        "wait_target": none,
        "occupancy_task": none,
        "occupancy_share": np.empty(0, np.float32),
        "occupancy_hold": np.empty(0, np.int64),
        "ignored": 0,
    }


def test_tables_are_read_only_after_they_were_found_sound(graph):
    room = np.empty(len(graph), np.int64)
    unchecked = _engine.Tables(**columns(graph))
    for read in (lambda: _engine.freeze(unchecked), lambda: _engine.simulate(unchecked, graph.duration, room, room.copy())):
        with pytest.raises(ValueError, match="has not found sound"):
            read()
    assert unchecked.check() == "" and not _engine.simulate(unchecked, graph.duration, room, room.copy())


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("rank_of", np.array([0, 2], np.int32), "rank_of[1] is 2, outside 0..1"),
        ("is_stream", np.array([0, 1], np.uint8), "device_of[1] is -1, outside"),
    ],
)
def test_a_processor_of_no_rank_or_device_is_named(graph, column, value, said):
    assert said in _engine.Tables(**columns(graph) | {column: value}).check()


@pytest.mark.parametrize("column", ["processor", "pred_offset", "pred_kind", "device_of", "lag", "wait_target", "rendezvous_offset"])
def test_columns_of_other_lengths_are_refused(graph, column):
    given = columns(graph)
    with pytest.raises(ValueError, match="differ in length"):
        _engine.Tables(**given | {column: np.append(given[column], given[column].dtype.type(9))})


def test_indices_beyond_a_frozen_graph_are_refused(graph):
    view = tables(graph)
    frozen, n = _engine.freeze(view), len(graph)
    times = [np.zeros(n, np.int64) for _ in range(5)]
    index, beyond = np.zeros(n, np.int32), np.full(n, n, np.int32)
    for sequence, holder, name in ((beyond, index, "sequence"), (index, beyond, "holder")):
        with pytest.raises(ValueError, match=rf"{name}\[0\] is {n}, outside"):
            frozen.latest_ends(sequence, index, holder, *times)
    out = np.zeros((2, 1, 1), np.int64)
    with pytest.raises(ValueError, match=r"scaled\[0\] is 1, outside"):
        frozen.sweep_scaled(np.ones(n, np.uint16), np.ones((1, 1)), index, *out)
    with pytest.raises(ValueError, match=r"group\[0\] is 2, outside"):
        frozen.sweep_scaled(np.zeros(n, np.uint16), np.ones((1, 1)), beyond, *out)
    for source, group in ((beyond, index), (index, beyond)):
        with pytest.raises(ValueError, match="source or group is out of range"):
            frozen.sweep_groups(graph.duration, source, group, *out[:, 0])


ONE_F_ONE_B, GPIPE, DUALPIPE = (_NUMBER[s] for s in (Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.DUALPIPE))


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((-1, 2, 1, 4), "no such schedule"),
        ((99, 2, 1, 4), "no such schedule"),
        ((ONE_F_ONE_B, 0, 1, 4), "at least 1"),
        ((ONE_F_ONE_B, 2, 1, -4), "at least 1"),
        ((ONE_F_ONE_B, 1 << 20, 1, 1 << 20), "more passes"),
        ((ONE_F_ONE_B, 4, 2, 6), "multiple of the stages"),
        ((GPIPE, 4, 2, 8), "has no chunks"),
        ((DUALPIPE, 3, 1, 8), "dualpipe needs"),
        ((DUALPIPE, 4, 1, 6), "dualpipe needs"),
    ],
)
def test_a_schedule_has_no_order_for_such_sizes(sizes, said):
    schedule, stages, chunks, microbatches = sizes
    layers = np.zeros((max(stages % 1024, 1), chunks), np.int64)
    for ask in (
        lambda: _pipeline.Passes(*sizes, False, False),
        lambda: _pipeline.actions(schedule, 0, stages, microbatches, chunks),
        lambda: _pipeline.worst(*sizes, layers, layers),
    ):
        with pytest.raises(ValueError, match=said):
            ask()


def test_there_is_no_stage_beyond_the_last():
    with pytest.raises(ValueError, match="no such stage"):
        _pipeline.actions(ONE_F_ONE_B, 2, 2, 4, 1)


def test_plans_and_layers_beyond_their_tables_are_refused():
    passes = _pipeline.Passes(ONE_F_ONE_B, 2, 1, 4, False, False)
    table, layers, out = np.ones((3, _pipeline.WIDTH)), np.ones((2, 1), np.int64), np.zeros(3)
    for rows in ([3], [-1], [0, 1 << 40]):
        with pytest.raises(ValueError, match="beyond the table"):
            passes.time(table, np.array(rows), layers, layers, out)
    with pytest.raises(ValueError, match="differ in length"):
        passes.time(table, np.array([0]), layers, layers, np.zeros(2))
    with pytest.raises(ValueError, match="do not fit"):
        passes.time(table, np.array([0]), layers, layers[:1], out)
    with pytest.raises(ValueError, match="do not fit"):
        _pipeline.worst(ONE_F_ONE_B, 2, 1, 4, layers[:1], layers)
