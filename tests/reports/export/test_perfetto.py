import gzip
import json
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from tests.drawn_graph import drawn_graph

from lumos.analyze.critical_path import critical_paths
from lumos.graph.table import Dependency, Kind, Processor
from lumos.reports.export.perfetto import write_perfetto
from lumos.simulation.timeline import Timeline, measured

BASE = 1_700_000_000_000_000_000  # an absolute time: too large for a float64 to hold its nanoseconds


@pytest.fixture
def runs():
    """Two ranks, each with a launch from 0 to 2001 ns, a kernel from 3002 to 9003 ns and a return without duration; all replayed
    7 ns later."""
    start = np.array([0, 2001, 3002] * 2, np.int64) + BASE
    end = np.array([2001, 2001, 9003] * 2, np.int64) + BASE
    processors = [p for rank in (0, 1) for p in (Processor(rank, False, "thread 5"), Processor(rank, True, "stream 7", 0, 7))]
    tasks = [
        (2 * rank + stream, kind, name, 0)
        for rank in (0, 1)
        for stream, kind, name in ((0, Kind.LAUNCH, "launch"), (0, Kind.RETURN, "return"), (1, Kind.KERNEL, "ge\ud800mm"))
    ]
    edges = [(0, 2, Dependency.LAUNCH), (3, 5, Dependency.LAUNCH)]
    graph = drawn_graph(processors, tasks, edges, duration=end - start, measured_start=start, measured_end=end)
    truth = measured(graph)
    return truth, Timeline(graph, start + 7, end + 7, "replayed")


def load(path):
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.name.endswith(".gz") else data)["traceEvents"]


@pytest.mark.parametrize("name", ["both.json", "both.json.gz"])
def test_the_runs_are_neighbouring_groups_with_the_same_threads(runs, tmp_path, name):
    write_perfetto(str(tmp_path / name), runs)
    events = load(tmp_path / name)
    order = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    groups = {e["args"]["name"]: order[e["pid"]] for e in events if e["name"] == "process_name"}
    assert sorted(groups, key=groups.get) == ["rank 0 measured", "rank 0 replayed", "rank 1 measured", "rank 1 replayed"]
    threads = defaultdict(list)
    for event in events:
        if event["name"] == "thread_name":
            threads[event["pid"]].append(event["args"]["name"])
    assert list(threads.values()) == [["thread 5", "stream 7"]] * 4


def test_times_are_exact_from_the_first_task(runs, tmp_path):
    write_perfetto(str(tmp_path / "both.json"), runs)
    rows = [e for e in load(tmp_path / "both.json") if e["ph"] == "X"]
    assert [(e["ts"], e["dur"]) for e in rows if e["pid"] == 0] == [(0.0, 2.001), (3.002, 6.001)]
    assert [(e["ts"], e["dur"]) for e in rows if e["pid"] == 1] == [(0.007, 2.001), (3.009, 6.001)]
    assert '"ts":3.002,' in (tmp_path / "both.json").read_text()


def test_structure(runs, tmp_path):
    """A Chrome trace needs every row on a named thread of a named process, and arrows in pairs whose ends lie within rows."""
    write_perfetto(str(tmp_path / "both.json"), runs)
    events = load(tmp_path / "both.json")
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    rows = [e for e in events if e["ph"] == "X"]
    assert {(e["pid"], e["tid"]) for e in rows} == named
    assert all(e["dur"] >= 0 and e["name"] and e["cat"] for e in rows)
    assert "return" not in {e["name"] for e in rows}  # it has no duration
    arrows = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            arrows[event["id"]][event["ph"]] = event
    assert len(arrows) == 4 and all(pair.keys() == {"s", "f"} for pair in arrows.values())
    for pair in arrows.values():
        for arrow in pair.values():
            assert any(e["pid"] == arrow["pid"] and e["tid"] == arrow["tid"] and e["ts"] <= arrow["ts"] <= e["ts"] + e["dur"] for e in rows)


def test_the_queue_is_a_counter_of_each_group(runs, tmp_path):
    write_perfetto(str(tmp_path / "both.json"), runs)
    counters = [e for e in load(tmp_path / "both.json") if e["name"] == "launches outstanding"]
    assert [(e["ts"], e["args"]["launches"]) for e in counters if e["pid"] == 0] == [(2.001, 1), (9.003, 0)]
    assert {e["pid"] for e in counters} == {0, 1, 2, 3}


def test_the_busy_share_is_a_counter_of_each_group(runs, tmp_path):
    """A step of one bin: its kernel works 6.001 µs of that millisecond; the counter falls to 0 at the step's end."""
    write_perfetto(str(tmp_path / "both.json"), runs)
    counters = [e for e in load(tmp_path / "both.json") if e["name"] == "busy share"]
    assert [(e["ts"], e["args"]["busy"]) for e in counters if e["pid"] == 0] == [(0.0, 0.006), (9.003, 0.0)]
    assert {e["pid"] for e in counters} == {0, 1, 2, 3}


def test_the_critical_path_is_a_track_with_arrows_from_link_to_link(runs, tmp_path):
    """Rank 0: a launch from 0 to 2001, 1001 ns that no constant explains, a kernel from 3002 to 9003. The return has no duration
    and is not shown."""
    write_perfetto(str(tmp_path / "path.json"), runs[:1], [critical_paths(runs[0])])
    events = load(tmp_path / "path.json")
    (pid,) = {e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"] == "critical path measured"}
    order = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    assert min(order, key=order.get) == pid
    track = [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == pid]
    assert track == [("step", 0.0, 9.003), ("launch", 0.0, 2.001), ("idle", 2.001, 1.001), ("ge?mm", 3.002, 6.001)]
    (step,) = (e for e in events if e["ph"] == "X" and e["name"] == "step")
    assert step["args"] == {"basis": "latency", "counts": True}
    arrows = [(e["ph"], e["pid"], e["tid"], e["ts"], e["id"]) for e in events if e["ph"] in "sf" and e["cat"] == "critical path"]
    assert arrows == [("s", 0, 0, 2.0, 0), ("f", 0, 1, 3.002, 0)]


def test_arrows_of_a_rendezvous_come_from_the_member_that_arrived_last(runs, tmp_path):
    """The two kernels are one rendezvous that rank 1 reaches 500 ns late; the path ends on rank 0."""
    graph = replace(runs[0].graph, rendezvous_offset=np.array([0, 2]), rendezvous_task=np.array([2, 5], np.int32))
    start, end = runs[0].start.copy(), runs[0].end.copy()
    start[5] += 500
    end[5] -= 1
    timeline = Timeline(graph, start, end, "measured")
    write_perfetto(str(tmp_path / "path.json"), [timeline], [critical_paths(timeline)])
    events = load(tmp_path / "path.json")
    arrows = [(e["ph"], e["pid"], e["tid"], e["ts"], e["id"]) for e in events if e["ph"] in "sf" and e["cat"] == "critical path"]
    assert arrows == [("s", 1, 2, 2.0, 0), ("f", 1, 3, 3.502, 0), ("s", 1, 3, 3.502, 1), ("f", 0, 1, 3.502, 1)]


@pytest.mark.parametrize("tasks", [4095, 4096, 4097])
def test_blocks_join_into_one_document(runs, tmp_path, tasks):
    graph = runs[0].graph
    many = {
        "duration": np.ones(tasks, np.int64),
        "processor": np.zeros(tasks, np.int32),
        "kind": np.full(tasks, Kind.OPERATOR, np.uint8),
        "name": np.zeros(tasks, np.int32),
        "pred_offset": np.zeros(tasks + 1, np.int64),
        "pred": np.empty(0, np.int32),
        "pred_kind": np.empty(0, np.uint8),
        "measured_start": None,
        "measured_end": None,
    }
    start = np.arange(tasks, dtype=np.int64)
    timeline = Timeline(replace(graph, **many), start, start + 1, "replayed")
    write_perfetto(str(tmp_path / "many.json"), [timeline])
    assert sum(e["ph"] == "X" for e in load(tmp_path / "many.json")) == tasks
