"""Which span of the training loop a task belongs to, on jobs drawn by hand (µs) and small recordings."""

import json
from dataclasses import replace

import pytest

from lumos.analyze.loop.steps import members, step_times
from lumos.graph.build import build
from lumos.graph.table import Dependency, Kind, Processor, Step
from lumos.simulation.timeline import measured
from lumos.trace import read

US = 1000


@pytest.fixture
def loop(draw_graph):
    """Two marked steps of 80, at 0 and 100, on thread 1: operator A 0–10 and launch 10–12, operator B 100–110 and launch 110–112. Their
    kernels run 12–30 and 112–130. Given are more tasks, on more processors.
    """

    def job(*more, others=(), edges=()):
        processors = [Processor(0, False, "thread 1", lane=1), Processor(0, True, "stream 7", 0, 7), *others]
        tasks = [
            (0, Kind.OPERATOR, "op", 0, 10),
            (0, Kind.LAUNCH, "launch", 10, 12),
            (0, Kind.OPERATOR, "op", 100, 110),
            (0, Kind.LAUNCH, "launch", 110, 112),
            (1, Kind.KERNEL, "k", 12, 30),
            (1, Kind.KERNEL, "k", 112, 130),
            *more,
        ]
        marks = [Step(0, f"ProfilerStep#{i}", 100 * i * US, (100 * i + 80) * US, lane=1) for i in range(2)]
        known = [(1, 4, Dependency.LAUNCH), (3, 5, Dependency.LAUNCH), *edges]
        return draw_graph(processors, tasks, known, marks)

    return job


def completions(graph):
    return [t.completion_ns // US for t in step_times(measured(graph), members(graph)).job]


def test_a_span_lasts_to_the_next_mark(loop):
    """The mark of step 0 ends at 80; a task at 90 still belongs to it, one at 190 is after the last mark (100 to 180) and to none."""
    graph = loop((2, Kind.OPERATOR, "C", 90, 95), (2, Kind.OPERATOR, "D", 190, 195), others=[Processor(0, False, "thread 2", lane=2)])
    assert members(graph).step.tolist() == [0, 0, 1, 1, 0, 1, 0, -1]


def test_device_work_belongs_to_the_step_of_its_launch_whenever_it_runs(loop):
    late = loop()
    start, end = late.measured_start.copy(), late.measured_end.copy()
    start[4], end[4] = 101 * US, 111 * US
    assert members(replace(late, measured_start=start, measured_end=end)).step.tolist() == [0, 0, 1, 1, 0, 1]


def test_work_of_another_thread_belongs_to_the_step_that_handed_it_over(loop):
    """Thread 2 runs a backward pass that A hands over from 90 to 99 (step 0), with a second operator and a launch at 105 and 120, in the
    time of step 1; its kernel ends at 150. All of it is work of step 0."""
    backward = [
        (2, Kind.OPERATOR, "A backward", 90, 99),
        (2, Kind.OPERATOR, "more", 105, 115),
        (2, Kind.LAUNCH, "launch", 120, 122),
        (3, Kind.KERNEL, "k backward", 122, 150),
    ]
    others = [Processor(0, False, "thread 2", lane=2), Processor(0, True, "stream 8", 0, 8)]
    edges = [(0, 6, Dependency.HAND_OFF), (8, 9, Dependency.LAUNCH)]
    graph = loop(*backward, others=others, edges=edges)
    assert members(graph).step[6:].tolist() == [0, 0, 0, 0]
    alone = loop(*backward, others=others, edges=edges[1:])
    assert members(alone).step[6:].tolist() == [0, 1, 1, 1]  # without a known hand-off, by the clock


def test_a_chain_of_hand_offs_leads_to_the_marked_thread(loop):
    """Thread 2 has its work of A, and hands some on to thread 3, both in the time of step 1: it is all of step 0."""
    graph = loop(
        (2, Kind.OPERATOR, "A backward", 105, 109),
        (3, Kind.OPERATOR, "hook", 115, 119),
        others=[Processor(0, False, f"thread {i}", lane=i) for i in (2, 3)],
        edges=[(0, 6, Dependency.HAND_OFF), (6, 7, Dependency.HAND_OFF)],
    )
    assert members(graph).step[6:].tolist() == [0, 0]


@pytest.mark.parametrize("name", ["pt_data_worker 5", "pt_data_pin", "thread 9"])
def test_a_thread_beside_the_loop_completes_nothing(loop, name):
    """It loads data from 20 to 95 and from 120 to 170, but hands nothing over: the steps are complete with their kernels, at 30 and 130."""
    rows = [(2, Kind.OPERATOR, "load", 20, 95), (2, Kind.OPERATOR, "load", 120, 170)]
    graph = loop(*rows, others=[Processor(0, False, name, lane=2)])
    assert completions(graph) == [30, 130]


@pytest.mark.parametrize(("awaits", "expected"), [(1, [95, 170]), (2, [30, 130])], ids=["its own step", "the next step"])
def test_a_thread_that_only_later_steps_wait_for_completes_nothing(loop, awaits, expected):
    """Each step hands it work, from 20 to 95 and from 120 to 170. The end of a recording cuts what a loader does ahead of the loop."""
    rows = [(2, Kind.OPERATOR, "load", 20, 95), (2, Kind.OPERATOR, "load", 120, 170)]
    edges = [(0, 6, Dependency.HAND_OFF), (2, 7, Dependency.HAND_OFF), (6, awaits, Dependency.HAND_OFF)]
    assert completions(loop(*rows, others=[Processor(0, False, "thread 2", lane=2)], edges=edges)) == expected


def test_a_data_loading_thread_stays_beside_the_loop_though_it_copies_to_the_device(loop):
    """A pin-memory thread launches a copy that ends at 99, and that the next step waits for; an equal thread of another name is part of
    the loop."""
    rows = [(2, Kind.LAUNCH, "launch", 20, 22), (3, Kind.MEMCPY, "copy", 22, 99)]
    edges = [(6, 7, Dependency.LAUNCH), (7, 5, Dependency.STREAM_WAIT)]
    stream = Processor(0, True, "stream 8", 0, 8)
    beside = loop(*rows, others=[Processor(0, False, "pt_data_pin", lane=2), stream], edges=edges)
    assert completions(beside) == [30, 130]
    inside = loop(*rows, others=[Processor(0, False, "thread 2", lane=2), stream], edges=edges)
    assert completions(inside) == [99, 130]


def recorded(tmp_path, kernels=(20, 20, 20), cut=None):
    """The graph of a recording of steps of 1000 µs, each with so many forwards, as many backwards and an optimizer step at 700 µs, every
    one with a kernel of its own; what starts at `cut` µs or later is not recorded."""
    rows = []
    for step, number in enumerate(kernels):
        zero = 1000 * step
        names = [*(f"forward{i}" for i in range(number)), *(f"backward{i}" for i in reversed(range(number))), "zero_grad", "optimizer.step"]
        starts = [*(10 * i for i in range(2 * number)), 690, 700]
        for name, start in zip(names, starts, strict=True):
            thread, stream, at, link = {"pid": 1, "tid": 1}, {"pid": 0, "tid": 7}, zero + start, {"correlation": len(rows) + 1}
            rows += [
                {"cat": "cpu_op", "name": name, **thread, "ts": at, "dur": 8},
                {"cat": "cuda_runtime", "name": "cudaLaunchKernel", **thread, "ts": at + 2, "dur": 2, "args": link},
                {"cat": "kernel", "name": f"k{name}", **stream, "ts": at + 5, "dur": 5, "args": {**link, "device": 0, "stream": 7}},
            ]
    stop = 1000 * len(kernels) if cut is None else cut
    rows = [row for row in rows if row["ts"] < stop]
    for step in range(len(kernels)):
        length = min(1000, stop - 1000 * step)
        rows.append({"cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1, "ts": 1000 * step, "dur": length})
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [{"ph": "X", **row} for row in rows]}))
    return build(read(path))


def test_whole_steps_are_kept(tmp_path):
    assert completions(recorded(tmp_path)) == [710, 1710, 2710]


def test_a_last_step_that_the_end_of_the_recording_cut_is_none(tmp_path):
    """Two marks, the second of a step that was recorded for 200 µs of 1000, in its forward: the job has one step, and not two."""
    graph = recorded(tmp_path, (20, 20), cut=1200)
    owners = members(graph)
    assert [step.name for step in graph.steps] == ["ProfilerStep#0", "ProfilerStep#1"]
    assert [step.name for step in owners.job] == ["ProfilerStep#0"]
    assert (owners.step[graph.measured_start >= 1000 * US + graph.measured_start.min()] == -1).all()
    assert step_times(measured(graph), owners).headline[:3] == (710 * US, 710 * US, "latency")


def test_a_whole_last_step_with_less_to_do_is_kept(tmp_path):
    """In a model that does not do the same in every step, the last does 15 forwards of 20: it has less work, but ends as the others do."""
    assert completions(recorded(tmp_path, (20, 20, 15))) == [710, 1710, 2710]


def test_the_profilers_stop_within_the_last_mark_is_no_work_of_the_step(loop):
    """The last mark holds a call that waits until 175, which the first lacks: step 1 is complete with its kernel, at 130. Where every step
    ends with such a call, it is the loop's."""
    stop = [(0, Kind.SYNC, "sync", 112, 115), (0, Kind.RETURN, "sync", 175, 175)]
    assert completions(loop(*stop)) == [30, 130]
    assert completions(loop((0, Kind.SYNC, "sync", 13, 14), (0, Kind.RETURN, "sync", 60, 60), *stop)) == [60, 175]
