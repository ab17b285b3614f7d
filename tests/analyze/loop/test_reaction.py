"""A step that should react to a faster device, on jobs of a few tasks (µs)."""

from dataclasses import replace

import numpy as np
import pytest
from tests.analyze.loop.test_bounds import graph_of

from lumos.analyze.loop.bounds import device_reaction
from lumos.analyze.loop.steady import altered, steady
from lumos.analyze.loop.steps import members
from lumos.graph.table import Dependency, Kind
from lumos.simulation.durations import scale
from lumos.vocabulary import Grade

SHORT = [(0, Kind.RUNTIME, "call", 1), (0, Kind.RUNTIME, "call", 1)]


def found(tasks, edges=(), faster="K", factor=0.5, **changes):
    """The finding where the work whose name begins with `faster` takes that share."""
    graph = replace(graph_of(tasks, [(3, 5, Dependency.LAUNCH), *edges]), **changes)
    loop = steady(members(graph))
    chosen = np.array([graph.names[i].startswith(faster) for i in graph.name])
    return device_reaction(loop, altered(loop, members(scale(graph, chosen, factor))))


def job(call, other=()):
    """A thread works 10, launches K of 50, which runs 14 to 64, and makes a call of 60, 14 to 74; calls of its name usually take 1."""
    return [
        (0, Kind.OPERATOR, "first", 12),
        *SHORT,
        (0, Kind.LAUNCH, "launch", 0),
        (0, *call),
        (2, Kind.KERNEL, "K", 50),
        *other,
    ]


def test_a_wait_that_is_kept_as_work_hides_the_device():
    """The call waits from 15 on. For 49 of 74 only the device works, and with half of its work the step should be 24.5 shorter."""
    (evidence,) = found(job((Kind.RUNTIME, "call", 60)))
    assert (evidence.code, evidence.grade) == ("device-unreactive", Grade.UNSOUND)
    assert "for 49.00 µs of a step of 74.00 µs devices work" in evidence.message
    assert "takes 50% less the step must become shorter by about 24.50 µs, and yet it does by 0 ns" in evidence.message
    (slower,) = found(job((Kind.RUNTIME, "call", 60)), factor=1.2)
    assert "takes 20% more the step must become longer by about 9.80 µs, and yet it does by 0 ns" in slower.message


def test_a_call_that_synchronises_waits_also_where_all_of_them_take_long():
    """It counts as a wait beyond 20: from 34 to 64."""
    (evidence,) = found(job((Kind.SYNC, "cudaStreamSynchronize", 60)))
    assert "for 30.00 µs of a step of 74.00 µs" in evidence.message


@pytest.mark.parametrize(
    ("tasks", "edges"),
    [
        (job((Kind.RETURN, "return", 0)), [(5, 4, Dependency.SYNC)]),  # the thread waits for K, and the step reacts
        (job((Kind.OPERATOR, "work", 60)), []),  # the thread works
        (job((Kind.RUNTIME, "other call", 60)), []),  # as usual
        (job((Kind.RUNTIME, "call", 60), [(1, Kind.OPERATOR, "other thread", 70)]), []),
        ([*job((Kind.RUNTIME, "call", 60))[:5], (2, Kind.COLLECTIVE, "K", 50)], []),  # other ranks may set the pace
    ],
)
def test_threads_and_devices_that_set_the_pace_need_no_word(tasks, edges):
    assert found(tasks, edges) == ()
