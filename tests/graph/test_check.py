"""Checks of what `Graph` promises: the message names each thing that is wrong. The tests of every builder use these checks."""

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.checked_builders import BUILDERS
from tests.drawn_graph import drawn_graph
from tests.graph_contract import check_graph

from lumos.errors import GraphError
from lumos.graph.table import Collectives, Graph, Kind, Processor

SOURCE = Path(__file__).resolve().parents[2] / "src" / "lumos"


def two_ranks(**facts) -> Graph:
    """Each of two ranks runs one all-reduce of 64 bytes, together; facts: columns to put in place of the right ones."""
    columns = {
        "task": np.arange(2, dtype=np.int32),
        "kind": np.zeros(2, np.int32),
        "nbytes": np.full(2, 64, np.int64),
        "group": np.zeros(2, np.int32),
        "sequence": np.full(2, -1, np.int64),
        "peer": np.full(2, -1, np.int32),
        "kinds": ("all-reduce", "send", "receive", "all-gather"),
        "groups": ("[0, 1]",),
        "size": np.full(2, 2, np.int32),
    }
    return drawn_graph(
        [Processor(rank, True, "stream 7", 0, 7) for rank in (0, 1)],
        [(rank, Kind.COLLECTIVE, "nccl", 1000) for rank in (0, 1)],
        sets=[(0, 1)],
        collectives=Collectives(**(columns | facts)),
    )


def test_a_sound_graph_passes():
    check_graph(two_ranks())
    check_graph(two_ranks(kind=np.array([1, 2], np.int32), peer=np.array([1, 0], np.int32)))
    check_graph(two_ranks(kind=np.full(2, 3, np.int32), nbytes=np.array([64, 32], np.int64)))  # an all-gather's parts need not be equal


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"nbytes": np.array([64, 128], np.int64)}, "all-reduce of different bytes meet"),
        ({"nbytes": np.full(2, -2, np.int64)}, "bytes are negative"),
        ({"kind": np.array([0, 3], np.int32)}, "all-gather and all-reduce meet"),
        ({"kind": np.array([1, 2], np.int32), "peer": np.array([0, 0], np.int32)}, "a rank sends to itself"),
    ],
)
def test_facts_that_contradict_are_named(facts, message):
    with pytest.raises(GraphError, match=message):
        check_graph(two_ranks(**facts))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"duration": np.full(2, -1, np.int64)}, "a duration is negative"),
        ({"kind": np.full(2, Kind.KERNEL, np.uint8)}, "facts of a collective is none"),
        ({"processor": np.zeros(2, np.int32)}, "two tasks of one rank are in one rendezvous"),
        ({"ranks": (0, 2)}, "a processor is of a rank that the graph lacks"),
    ],
)
def test_columns_that_are_not_as_stated_are_named(columns, message):
    with pytest.raises(GraphError, match=message):
        check_graph(replace(two_ranks(), **columns))


def test_a_kind_of_no_vocabulary_is_refused_where_it_is_made():
    with pytest.raises(ValueError, match="all_reduce"):
        two_ranks(kinds=("all_reduce",))


def test_the_builders_of_all_modules_that_make_graphs_are_checked():
    made = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if _makes_graphs(path)}
    checked = {module.removeprefix("lumos.").replace(".", "/") + ".py" for module, _ in BUILDERS}
    assert made <= checked


def _makes_graphs(path: Path) -> bool:
    calls = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
    return any(isinstance(call.func, ast.Name) and call.func.id == "Graph" for call in calls)
