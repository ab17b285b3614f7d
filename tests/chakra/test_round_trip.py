"""A job that is exported, checked, imported and replayed has the same times."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.chakra import two_stages
from tests.chakra.conftest import write_nodes
from tests.drawn_graph import drawn_collectives, drawn_graph

import lumos
from lumos.analyze.loop.steps import members, step_times
from lumos.chakra.checks import check
from lumos.chakra.exporting import export_graph
from lumos.errors import GraphError, TraceError, UsageError
from lumos.graph.table import Dependency, Graph, Kind, Processor
from lumos.simulation import simulate
from lumos.trace.chakra.et import stream
from lumos.trace.chakra.schema import ChakraNode


@st.composite
def jobs(draw: st.DrawFn) -> Graph:
    """Random graphs of two ranks: a thread and two streams each, launches, waits, lags, collectives, odd nanoseconds."""
    count = draw(st.integers(2, 12))
    rows, edges, facts = [], [], []
    for step in range(count):
        meets = draw(st.booleans()) if step else False
        members = []
        for rank in range(2):
            host, kernel = len(rows), len(rows) + 1
            rows.append((Kind.LAUNCH, 3 * rank, draw(st.integers(0, 5_000))))
            rows.append((Kind.COLLECTIVE if meets else Kind.KERNEL, 3 * rank + 1 + draw(st.integers(0, 1)), draw(st.integers(1, 20_000))))
            edges.append((host, kernel, Dependency.LAUNCH))
            members.append(kernel)
            others = [t for t in range(host) if rows[t][1] // 3 == rank]
            if others and draw(st.booleans()):
                edges.append((draw(st.sampled_from(others)), kernel, Dependency.STREAM_WAIT))
        if meets:
            facts += members
    return _graph(rows, edges, facts, draw(st.integers(0, 2_500)))


def _graph(rows: list[tuple[Kind, int, int]], edges: list[tuple[int, int, Dependency]], facts: list[int], after_ns: int) -> Graph:
    """Two ranks, each with a thread and two streams. rows: kind, processor and ns of each task. facts: the tasks of the collectives,
    in pairs. after_ns: the lag after launches and between the tasks of a stream."""
    edges = [*{(a, b): (a, b, k) for a, b, k in sorted(edges, key=lambda e: (e[1], e[0]))}.values()]
    lag = np.zeros((2, len(Dependency)), np.int64)
    lag[:, (Dependency.LAUNCH, Dependency.STREAM_ORDER)] = after_ns
    return drawn_graph(
        [Processor(r, s > 0, f"{s}", 0 if s else -1, s if s else -1) for r in range(2) for s in range(3)],
        [(processor, kind, "a", ns) for kind, processor, ns in rows],
        edges,
        sets=list(zip(facts[::2], facts[1::2], strict=True)),
        lag=lag,
        collectives=drawn_collectives([(task, "all-reduce", 64, -1, -1, -1) for task in facts]),
    )


@given(jobs(), st.booleans())
@example(_graph([(Kind.KERNEL, 1, 500), (Kind.KERNEL, 2, 500), (Kind.KERNEL, 4, 500)], [], [], 0), False)  # all begin at 0: still measured
def test_a_set_replays_to_the_times_of_its_graph(tmp_path_factory: pytest.TempPathFactory, job: Graph, exact: bool) -> None:
    folder = tmp_path_factory.mktemp("set")
    wanted = simulate(job).end.max()
    export_graph(job, folder, exact_ns=exact)
    found = simulate(lumos.build(lumos.read(folder))).end.max()
    assert found == wanted if exact else abs(int(found) - int(wanted)) <= 1_000  # however many nodes: one microsecond
    assert check(folder).violations == ()


def test_roundings_cancel_along_a_chain(tmp_path: Path) -> None:
    """A thousand kernels of 1.4 us take 1,400 us; if each were rounded by itself they would take 1,000."""
    chain = drawn_graph([Processor(0, True, "stream 7", 0, 7)], [(0, Kind.KERNEL, "k", 1_400)] * 1000)
    export_graph(chain, tmp_path, astra_sim=True)
    assert check(tmp_path).ok  # a simulator runs two ranks at least: the file of an idle one stands beside it
    nodes = list(stream(tmp_path / "job.0.et")[1])
    assert sum(n.duration_micros for n in nodes) == 1_400
    assert {n.duration_micros for n in nodes} == {1, 2}
    assert [n.data_deps for n in nodes[:3]] == [(), (1,), (2,)]  # the stream's order, for simulators without streams


def steps_of(job: Graph) -> list[tuple[str, str, int, int]]:
    """Name, basis, time and latency of every step of the replayed job, µs."""
    times = step_times(simulate(job), members(job)).job
    return [(t.name, t.basis, round(t.length_ns / 1000), round(t.latency_ns / 1000)) for t in times]


def test_steps_that_stand_alone_come_back_alone(operation_jobs: Any, tmp_path: Path) -> None:
    """Two steps of a pipeline as whole operations, whose times hold within a step only."""
    table = operation_jobs.write_table(tmp_path / "trace.parquet", operation_jobs.pipeline((3, 4)))
    job = lumos.build(lumos.read(table))
    export_graph(job, tmp_path / "set", exact_ns=True)
    assert [basis for _, basis, *_ in steps_of(job)] == ["latency", "latency"]
    assert steps_of(lumos.build(lumos.read(tmp_path / "set"))) == steps_of(job)


@pytest.mark.parametrize("name", ["other.0.et", "job.9.et"])
def test_a_folder_of_another_set_or_of_a_larger_one_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(UsageError, match=re.escape(name)):
        export_graph(two_stages.two_stages(), tmp_path)


@pytest.mark.parametrize(
    ("without", "node", "deps", "reason"),
    [
        (None, 6, (99,), "depends on node 99"),
        (None, 4, (6,), "wait for one another in a cycle"),
        (3, 4, (2,), "waits for ever|sends 1 messages"),
    ],
)
def test_import_refuses_what_has_no_schedule(stages: Path, rewrite: Any, without: Any, node: int, deps: Any, reason: str) -> None:
    def change(nodes: dict[int, Any]) -> None:
        nodes.pop(without, None)
        nodes[node].data_deps = deps

    rewrite(stages / "job.0.et", change)
    with pytest.raises((TraceError, GraphError), match=reason):
        lumos.build(lumos.read(stages))


def test_control_dependencies_that_contradict_are_reported(tmp_path: Path) -> None:
    nodes = [ChakraNode(1, "a", ctrl_deps=(2,), duration_micros=3), ChakraNode(2, "b", data_deps=(1,), duration_micros=4)]
    write_nodes(tmp_path / "job.0.et", nodes)
    job = lumos.build(lumos.read(tmp_path))
    assert [d.code for d in job.diagnostics] == ["control-dependencies-ignored", "never-measured"]
    assert simulate(job).end.max() == 7_000
