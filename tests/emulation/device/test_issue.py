"""From a record to tasks: host time, streams, waits and threads, on records drawn by hand."""

import pytest

from lumos.emulation.record import CallKind, Group, Tensor
from lumos.graph.table import Dependency, Kind
from lumos.vocabulary import CollectiveKind

WORLD = Group("world", "default", [0, 1], 0)


def host(program, thread=0):
    """Kind and ns of the tasks of a thread."""
    return [(program.tasks[i].kind, program.tasks[i].ns) for i in program.by_thread[thread]]


def edges(program, kind):
    return [(before, after) for before, after, found in program.edges if found is kind]


def device(program):
    """Name and stream of the device work, by task."""
    return {i: (task.name, program.stream_names[task.lane]) for i, task in enumerate(program.tasks) if task.on_device}


def test_an_operator_takes_python_and_its_own_time_and_then_launches(drawn):
    record = drawn()
    record.operator()
    program = record.program()
    assert host(program) == [(Kind.OPERATOR, 12_000 + 10_000), (Kind.LAUNCH, 3_000)]
    assert edges(program, Dependency.LAUNCH) == [(1, 2)]
    assert program.tasks[2].kind is Kind.KERNEL


def test_an_operator_that_calls_others_takes_its_own_time_before_them(drawn):
    record = drawn()
    record.operator("aten::linear", leaf=False, inside=[record.operator, record.operator])
    program = record.program()
    assert host(program) == [(Kind.OPERATOR, 12_000 + 4_000 + 10_000), (Kind.LAUNCH, 3_000), (Kind.OPERATOR, 10_000), (Kind.LAUNCH, 3_000)]
    assert [task.operator for task in program.tasks if task.kind == Kind.LAUNCH] == [0, 1]


def test_an_operator_that_clears_its_result_by_another_launches_after_it(drawn):
    record = drawn()
    record.operator("aten::sum", inside=[lambda: record.operator("aten::zero_")])
    program = record.program()
    assert [task.operator for task in program.tasks if task.kind is Kind.KERNEL] == [0, 1], "the inner one is first in the record"


def test_the_backward_thread_goes_on_where_the_main_thread_stopped_and_the_reverse(drawn):
    record = drawn()
    record.operator()
    node = "autograd::engine::evaluate_function: NegBackward0"
    record.operator(node, thread=1, leaf=False, inside=[lambda: record.operator(thread=1)])
    record.operator()
    program = record.program()
    assert host(program, 1) == [(Kind.OPERATOR, 6_000 + 5_000 + 10_000), (Kind.LAUNCH, 3_000)]
    first, back = program.by_thread
    assert edges(program, Dependency.HAND_OFF) == [(first[1], back[0]), (back[-1], first[2])]


def test_a_stream_waits_for_the_work_that_an_event_marks(drawn):
    record = drawn()
    record.operator()
    record.call(CallKind.RECORD_EVENT, stream=0, event=3)
    record.operator()
    record.call(CallKind.STREAM_WAITS_EVENT, stream=5, event=3)
    record.operator(stream=5)
    record.operator(stream=5)
    program = record.program()
    first, _, on_five, _ = device(program)
    assert edges(program, Dependency.STREAM_WAIT) == [(first, on_five)]
    assert [task.name for task in program.tasks if task.kind == Kind.RUNTIME] == ["cudaEventRecord", "cudaStreamWaitEvent"]


def test_a_read_value_is_copied_and_waited_for(drawn):
    record = drawn()
    record.operator()
    record.call(CallKind.READ_VALUE, bytes=4)
    program = record.program()
    copy = max(device(program))
    assert program.tasks[copy].kind == Kind.MEMCPY and program.tasks[copy].work.ns == 1500
    assert [kind for kind, _ in host(program)][-3:] == [Kind.LAUNCH, Kind.SYNC, Kind.RETURN]
    assert edges(program, Dependency.SYNC) == [(copy, program.by_thread[0][-1])]


def test_a_copy_that_its_operator_made_is_not_made_again(drawn):

    target = Tensor((1000,), "float32", (1,), 2, "cpu")
    vector = Tensor((1000,), "float32", (1,), 1, "cuda")
    record = drawn()
    record.operator("aten::copy_", inputs=[target, vector], outputs=[target], inside=[lambda: record.call(CallKind.READ_VALUE, bytes=4000)])
    assert [kind for kind, _ in host(record.program())] == [Kind.OPERATOR, Kind.LAUNCH, Kind.SYNC, Kind.RETURN]


@pytest.mark.parametrize(
    ("kind", "more", "awaited"),
    [
        (CallKind.SYNCHRONIZE_STREAM, {"stream": 5}, [1]),
        (CallKind.SYNCHRONIZE_DEVICE, {}, [0, 1]),
        (CallKind.SYNCHRONIZE_EVENT, {"event": 9}, [0]),
    ],
)
def test_a_synchronising_call_ends_with_the_work_that_it_waits_for(drawn, kind, more, awaited):
    record = drawn()
    record.operator()
    record.call(CallKind.RECORD_EVENT, stream=0, event=9)
    record.operator(stream=5)
    record.call(kind, **more)
    program = record.program()
    work = list(device(program))
    assert sorted(before for before, _ in edges(program, Dependency.SYNC)) == [work[i] for i in awaited]


def test_an_asynchronous_collective_runs_on_its_groups_stream_between_two_waits(drawn):
    record = drawn(world=2, groups=[WORLD])
    record.operator()
    record.exchange(asynchronous=True)
    record.operator()
    record.call(CallKind.STREAM_WAITS_EXCHANGE, stream=0, exchange=0)
    record.operator()
    program = record.program()
    first, collective, _, last = device(program)
    assert device(program)[collective] == ("allreduce", ("world",))
    assert edges(program, Dependency.STREAM_WAIT) == [(first, collective), (collective, last)]


def test_a_collective_that_is_waited_for_runs_on_the_callers_stream(drawn):
    record = drawn(world=2, groups=[WORLD])
    record.operator(stream=4)
    record.exchange(stream=4)
    record.call(CallKind.STREAM_WAITS_EXCHANGE, stream=4, exchange=0)
    record.operator(stream=4)
    program = record.program()
    assert {stream for _, stream in device(program).values()} == {4}
    assert not edges(program, Dependency.STREAM_WAIT)


def test_messages_of_each_direction_and_peer_have_a_stream(drawn):
    record = drawn(world=3, groups=[Group("pipeline", "", [0, 1, 2], 0)])
    for kind, peer in ((CollectiveKind.SEND, 1), (CollectiveKind.RECEIVE, 1), (CollectiveKind.SEND, 2), (CollectiveKind.SEND, 1)):
        record.exchange(kind, "pipeline", peer=peer, asynchronous=True)
    streams = [stream for _, stream in device(record.program()).values()]
    assert len(set(streams)) == 3 and streams[0] == streams[3]
