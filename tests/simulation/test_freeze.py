"""The columns of a frozen graph, and the arguments that its native form refuses. (tests/property/ compares its sweeps with the
event loop.)"""

import gc
from dataclasses import replace

import numpy as np
import pytest
from tests.drawn_graph import drawn_graph

from lumos.graph.table import Dependency, Graph, Kind, Processor
from lumos.simulation import freeze


@pytest.fixture
def graph() -> Graph:
    """Two tasks on a thread, of 5 and 7 ns; the second launches a kernel of 11 ns on a stream."""
    processors = Processor(0, False, "thread 1", -1), Processor(0, True, "stream 7", 0)
    tasks = [(0, Kind.OPERATOR, "task", 5), (0, Kind.LAUNCH, "task", 7), (1, Kind.KERNEL, "task", 11)]
    return drawn_graph(processors, tasks, [(1, 2, Dependency.LAUNCH)])


def test_columns_are_read_only_and_outlive_what_they_came_from(graph):
    order, pred = (edges := freeze(graph).edges).order, edges.pred
    assert pred.tolist() == [0, 1]
    assert edges.pred_kind.tolist() == [Dependency.THREAD_ORDER, Dependency.LAUNCH]
    assert edges.pred_offset.tolist() == [0, 0, 1, 2]
    with pytest.raises(ValueError, match="read-only"):
        order[0] = 2
    del edges
    gc.collect()
    assert order.tolist() == [0, 1, 2]


def test_the_native_form_keeps_its_tables(graph):
    edges = freeze(replace(graph, lag=np.full((1, len(Dependency)), 3))).edges
    gc.collect()
    start, end = np.empty(3, np.int64), np.empty(3, np.int64)
    edges.sweep(graph.duration, start, end)
    assert end.tolist() == [5, 15, 29]


@pytest.mark.parametrize("short", ["duration", "start", "end"])
def test_a_sweep_refuses_columns_that_do_not_fit(graph, short):
    columns = {name: np.zeros(3 - (name == short), np.int64) for name in ("duration", "start", "end")}
    with pytest.raises(ValueError, match="differ in length"):
        freeze(graph).edges.sweep(**columns)


def test_batches_refuse_room_that_does_not_fit(graph):
    edges, rows = freeze(graph).edges, np.zeros((2, 3), np.int64)
    for makespan, ends in ((np.zeros(1, np.int64), rows), (np.zeros(2, np.int64), rows[:1]), (np.zeros(2, np.int64), rows[:, :2].copy())):
        with pytest.raises(ValueError, match="differ in length"):
            edges.sweep_many(rows, makespan, ends)
