"""What a training script asks of its device: its operators, nested and in order, with what PyTorch's profiler notes of their inputs.

The script runs on fake tensors, which have shapes and no contents, so that a model of any size takes about a second. The profiler's
row of the fake tensors' own dispatch says where an operator would have reached a device; what lies below that row is not the script's.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import GroupName, distributed_c10d
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile
from validation.foreign.nodes import JOINS, LISTS, Node, TensorList
from validation.foreign.streams import noted

#: The profiler's row of the dispatch to fake tensors.
FAKE = "PythonDispatchMode"
#: Names of operators, other than those of annotations and of nodes of autograd.
OPERATOR = re.compile(r"(aten|prims|c10d|_c10d_functional|_dtensor|fsdp|mkldnn)::|detach_?$")
#: Of which calls more is noted than the profiler does.
NOTED = (*LISTS, *JOINS, "c10d::", "_c10d_functional::", "fsdp::")
#: The operators of a message.
MESSAGE = ("c10d::send", "c10d::recv_")
EXCHANGE = "_c10d_functional::all_to_all_single"
TYPES = {torch.float32: "float", torch.bfloat16: "c10::BFloat16", torch.float16: "c10::Half", torch.int64: "long int"}
#: The facts that the profiler notes of an operator.
FACTS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs", "Sequence number", "Fwd thread id")


class Called(NamedTuple):
    """What the profiler does not note of a call of an operator: its lists of tensors, the process group of a collective, the other rank of
    a message, by its position in the group, and what goes to each rank in an exchange of all with all."""

    name: str
    lists: list[TensorList]
    group: str
    peer: int
    splits: list[int]


class Script(FakeTensorMode):
    """Fake tensors, with a note of operators on lists of tensors and of collectives, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Called] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        plain = not any(issubclass(kind, DTensor) for kind in types)
        if name.startswith(NOTED) and plain:
            found = [a for a in args if isinstance(a, (list, tuple)) and a and isinstance(a[0], torch.Tensor)]
            lists = [TensorList(TYPES.get(a[0].dtype, "float"), a[0].element_size(), [list(t.shape) for t in a]) for a in found]
            peer = int(args[2]) if name in MESSAGE else -1
            splits = [int(n) for n in args[2]] if name == EXCHANGE else []
            self.calls.append(Called(name, lists, _group(args), peer, splits))
        return super().__torch_dispatch__(func, types, args, kwargs)


def operators(make: Callable[[], Callable[[], None]]) -> list[Node]:
    """The rows of one step on fake tensors. make: makes the step. One is run before, in which optimizers make their states."""
    with noted(), Script() as script:
        return _operators(script, make())


def _operators(script: Script, step: Callable[[], None]) -> list[Node]:
    step()
    script.calls.clear()
    with tempfile.TemporaryDirectory() as folder:
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
            step()
        path = Path(folder) / "rows.json"
        recorded.export_chrome_trace(str(path))
        rows = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    found = nested([row for row in rows if row.get("cat") in ("cpu_op", "user_annotation")])
    _note_calls(found, iter(script.calls))
    return found


def _note_calls(nodes: list[Node], calls: Iterator[Called]) -> None:
    """Give operators what was noted of them. One on lists that fake tensors do not know is made of operators on each tensor."""
    for node in nodes:
        if node.name.startswith(NOTED) and node.reached:
            name, node.lists, node.group, node.peer, node.splits = next(calls)
            assert name == node.name, f"{node.name} where {name} was called"
        elif node.name.startswith(LISTS) and not any(child.name == node.name for child in node.children):
            node.lists = [TensorList("float", 4, [child.dims[0] for child in node.children if child.reached])]
        else:
            _note_calls(node.children, calls)


def _group(args: Sequence[Any]) -> str:
    """What describes the process group among the arguments of a collective; "" for none."""
    for each in args:
        if isinstance(each, str) and each.isdigit():
            return str(cast(Any, distributed_c10d)._resolve_process_group(GroupName(each)).group_desc)
        if isinstance(each, torch.ScriptObject) and "ProcessGroup" in str(each._type()):
            return str(distributed_c10d.ProcessGroup.unbox(each).group_desc)
    return ""


def nested(rows: list[dict[str, Any]]) -> list[Node]:
    """The rows as trees, without what fake tensors do of their own accord."""
    root = Node("", {})
    open_rows: list[tuple[float, Node]] = [(float("inf"), root)]
    for row in sorted(rows, key=lambda r: (r["ts"], -r["dur"])):
        begin, end = row["ts"], row["ts"] + row["dur"]
        while open_rows[-1][0] <= begin:
            open_rows.pop()
        args = row.get("args", {})
        node = Node(row["name"], {k: args[k] for k in FACTS if k in args}, row["cat"] == "user_annotation")
        open_rows[-1][1].children.append(node)
        open_rows.append((end, node))
    return _without_fakes(root).children


def _without_fakes(node: Node) -> Node:
    """The row without rows of dispatch.

    What an operator's dispatch holds is how fake tensors find its shapes, unless operators in it are dispatched in turn: then it consists
    of those. The dispatch around a named range or a node of autograd holds what is done in it.
    """
    children: list[Node] = []
    for child in node.children:
        if child.name != FAKE:
            children.append(_without_fakes(child))
        elif OPERATOR.match(node.name):
            inner = [_without_fakes(each) for each in child.children if _dispatches(each)]
            node.reached = node.reached or not inner
            children += inner
        else:
            children += _without_fakes(child).children
    node.children = children
    return node


def _dispatches(node: Node) -> bool:
    return node.name == FAKE or any(map(_dispatches, node.children))
