"""The execution trace of a record that is drawn by hand, as the reader of execution traces takes it."""

import json

import pytest

from lumos.emulation import record
from lumos.emulation.execution_trace import NodeSheet, own_meetings
from lumos.emulation.record import Exchange, Group, Mark, Operator, Tensor
from lumos.trace import execution_trace
from lumos.vocabulary import CollectiveKind

LINEAR = "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"
GIVEN, WEIGHT, OUT = (
    Tensor((8, 4), "bfloat16", (4, 1), 1, "cuda"),
    Tensor((2, 4), "float32", (4, 1), 2, "cuda"),
    Tensor((8, 2), "float32", (2, 1), 3, "cuda"),
)
TURNED = Tensor((4, 2), "float32", (1, 4), 2, "cuda")


@pytest.fixture
def observed(tmp_path):
    """linear, which calls t and mm, inside a step; a node of the backward pass on another thread; an all-reduce of ranks 1 and 3."""
    operators = [
        Operator(name="aten::linear", thread=0, begin=2, end=7, inputs=[GIVEN, WEIGHT, None], sequence=5),
        Operator(name="aten::t", thread=0, begin=3, end=4, inputs=[WEIGHT], outputs=[TURNED], leaf=True),
        Operator(name="aten::mm", thread=0, begin=5, end=6, inputs=[GIVEN, TURNED], outputs=[OUT], leaf=True),
        Operator(name="MmBackward0", thread=1, begin=8, end=9, inputs=[], sequence=5, forward_thread=0),
        Operator(name="aten::full", thread=1, begin=10, end=11, leaf=True,
                 inputs=[[2, 2], float("-inf"), "torch.bfloat16", "torch.strided", "cuda:1", False]),
        Operator(name="c10d::allreduce_", thread=0, begin=12, end=13, inputs=[[OUT]]),
    ]  # fmt: skip
    exchange = Exchange(
        kind=CollectiveKind.ALL_REDUCE, name="allreduce_", group="g", sequence=0, thread=0, begin=12, end=13, dtype="float32",
        input_elements=16, output_elements=16,
    )  # fmt: skip
    process = record.Process(
        rank=1, world=4, accelerator="h100", torch="2.13", threads=["main", "backward"], operators=operators, exchanges=[exchange],
        marks=[Mark("ProfilerStep#1", 0, 1, 14)], groups=[Group("g", "dp", [1, 3], 0)], schemas={"aten::linear": LINEAR},
    )  # fmt: skip
    path = tmp_path / "rank1.et.json.gz"
    NodeSheet(process).write(path, process.groups, own_meetings(process))
    return execution_trace.read(path)


def place(observed, name):
    return [observed.strings[i] for i in observed.name.tolist()].index(name)


def test_ids_are_in_the_order_of_calls_and_parents_are_the_callers(observed):
    names = [observed.strings[i] for i in observed.name.tolist()]
    rows = [name for name in names if "[" not in name and "#" not in name]
    assert rows == ["aten::linear", "aten::t", "aten::mm", "MmBackward0", "aten::full", "c10d::allreduce_", "record_param_comms"]
    callers = {name: names[observed.parent[i]] for i, name in enumerate(names)}
    assert (callers["aten::linear"], callers["aten::mm"]) == ("ProfilerStep#1", "aten::linear")
    assert callers["MmBackward0"].endswith("thread]")
    assert callers["record_param_comms"] == "c10d::allreduce_"
    assert not observed.diagnostics


def test_a_tensor_is_the_same_in_every_node_and_its_views_share_its_storage(observed):
    values = {name: json.loads(observed.inputs[place(observed, name)][0]) for name in ("aten::linear", "aten::mm", "aten::t")}
    assert values["aten::linear"][0] == values["aten::mm"][0]
    assert values["aten::linear"][0][2:] == [0, 32, 2, "cuda:0"]  # offset, elements, bytes of an element, device
    turned, weight = values["aten::mm"][1], values["aten::t"][0]
    assert turned[0] != weight[0] and turned[1] == weight[1]
    mm = place(observed, "aten::mm")
    assert observed.inputs[mm][1:] == ("[[8,4],[4,2]]", '["Tensor(c10::BFloat16)","Tensor(float)"]')
    assert observed.input_strides[mm] == "[[4,1],[1,4]]"


def test_an_operator_above_others_gives_what_the_last_of_them_gave(observed):
    assert observed.outputs[place(observed, "aten::linear")] == observed.outputs[place(observed, "aten::mm")]
    assert observed.attrs[place(observed, "aten::linear")]["op_schema"] == LINEAR


def test_types_layouts_and_devices_are_written_as_torch_numbers_them(observed):
    values, _, types = observed.inputs[place(observed, "aten::full")]
    assert json.loads(values) == [[2, 2], "-inf", 15, 0, "cuda:1", False]
    assert json.loads(types) == ["GenericList[Int,Int]", "Double", "Int", "Int", "Device", "Bool"]


def test_a_collective_says_its_group_and_what_it_moves(observed):
    assert [(each.name, each.ranks) for each in observed.groups] == [("g", (1, 3))]
    facts = observed.attrs[place(observed, "record_param_comms")]
    wanted = {"collective_name": "allreduce_", "in_msg_nelems": 16, "dtype": "Float", "pg_name": "g", "pg_size": 2, "global_rank_stride": 2}
    assert wanted.items() <= facts.items()
