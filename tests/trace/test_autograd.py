"""The numbers of autograd's nodes, which threads count each for themselves."""

import json

import pytest

from lumos.trace import read
from lumos.trace.autograd import autograd_numbers

#: name, thread, number, and the thread of a node: a pass on thread 10, whose second operator the backward pass on thread 20 runs again.
ROWS = (
    ("aten::mm", 10, 5, 0),
    ("aten::gelu", 10, 6, 0),
    ("GeluBackward0", 20, 6, 1),
    ("aten::mm", 20, 5, 0),
    ("MmBackward0", 20, 5, 1),
)
#: The same where a checkpoint makes the nodes of what it runs again: that node was made on the thread of the backward pass.
REENTRANT = (*ROWS[:4], ("MmBackward0", 20, 5, 2))


def numbers(tmp_path, rows):
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": 10 * i, "dur": 5,
         "args": {"Sequence number": number} | ({"Fwd thread id": thread} if thread is not None else {})}
        for i, (name, tid, number, thread) in enumerate(rows)
    ]  # fmt: skip
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = read(str(path)).traces[0]
    return autograd_numbers(trace)[trace.start.argsort()].tolist()


@pytest.mark.parametrize(("rows", "source"), [(ROWS, 0), (REENTRANT, 3)])
def test_a_node_has_the_number_of_the_operator_that_made_it_alone(tmp_path, rows, source):
    found = numbers(tmp_path, rows)
    assert found[2] == found[1]
    assert found[4] == found[source]
    assert found[0] != found[3]


def test_recordings_without_threads_of_nodes_keep_their_numbers(tmp_path):
    assert numbers(tmp_path, [(*row[:3], None) for row in ROWS]) == [5, 6, 6, 5, 5]
