"""Achieved FLOP/s of matrix products and attention, where the trace gives their shapes (record_shapes=True).

A product of [m, k] by [k, n] counts 2·m·n·k operations; of tokens by the matrices of several experts, each token meets
one. Attention counts 4·b·h·q·k·d forward (two products of that
size) and 2.5 times as many backward (five products), half of either where it is causal (Dao, FlashAttention-2, 2023,
section 4.1). A convolution counts 2 operations for every element of its output and every weight that reaches it, and as
many again for each gradient that its backward pass computes. Only operators whose signature is known here are counted; the
time is that of all device work launched from the operator or, on a rank without device work, the operator's own CPU time.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.attribution import innermost
from lumos.analyze.loop.steps import step_times
from lumos.characters import is_whole
from lumos.graph.table import Kind
from lumos.trace.table import Category, Int64, Job, Trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from lumos.analyze.loop.steps import Members
    from lumos.simulation.timeline import Timeline

_Shape = list[int]


class Achieved(NamedTuple):
    """Calls of one operator with one set of shapes. flops: operations of one call; time_ns: time of all calls."""

    operator: str
    shapes: str
    calls: int
    flops: float
    time_ns: int
    flops_per_s: float


class _Attention(NamedTuple):
    """Positions of the query and of the causal flag among the inputs, and the operations relative to the forward pass."""

    query: int
    causal: int
    factor: float


_ATTENTION = {
    "aten::_scaled_dot_product_flash_attention": _Attention(0, 4, 1.0),
    "aten::_scaled_dot_product_flash_attention_backward": _Attention(1, 11, 2.5),
    "aten::_scaled_dot_product_efficient_attention": _Attention(0, 6, 1.0),
    "aten::_scaled_dot_product_efficient_attention_backward": _Attention(1, 11, 2.5),
    "aten::_scaled_dot_product_cudnn_attention": _Attention(0, 6, 1.0),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Attention(1, 14, 2.5),
}


def _product(a: _Shape, b: _Shape) -> float | None:
    """Operations of the (batched) product of two matrices."""
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        return None
    return 2.0 * math.prod(a) * b[-1]


#: Operators that are one product, and the positions of its two factors among the inputs.
_PRODUCTS = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::baddbmm": (1, 2),
    "aten::_addmm_activation": (1, 2),
    "aten::_scaled_mm": (0, 1),
}


#: A product of tokens by the matrix of the expert that each goes to, or, for the gradients of these, of the tokens of each by gradients.
_GROUPED = "aten::_grouped_mm"


def _grouped(shapes: list[_Shape]) -> float | None:
    """Operations of a grouped product: each token meets one matrix, however many there are."""
    if len(shapes) < 2 or len(shapes[0]) != 2 or len(shapes[1]) not in (2, 3) or shapes[0][1] != shapes[1][-2]:
        return None
    return 2.0 * math.prod(shapes[0]) * shapes[1][-1]


class _Convolution(NamedTuple):
    """Positions of padding, stride and dilation among the inputs, and of the flag that transposes it (-1: it has none)."""

    padding: int
    stride: int
    dilation: int
    transposed: int


#: Convolutions of an input (first) with weights (second).
_CONVOLUTIONS = {
    "aten::cudnn_convolution": _Convolution(2, 3, 4, -1),
    "aten::miopen_convolution": _Convolution(3, 4, 5, -1),
    "aten::convolution": _Convolution(4, 3, 5, 6),
    "aten::_convolution": _Convolution(4, 3, 5, 6),
}
_CONVOLUTION_BACKWARD = "aten::convolution_backward"
#: Positions in the backward convolution of the flag that transposes it and of the mask of wanted gradients.
_BACKWARD_TRANSPOSED, _BACKWARD_MASK = 7, 10


def _convolution(signature: _Convolution, shapes: list[_Shape], inputs: list[str]) -> float | None:
    """Operations of a convolution; None where its shapes or one of its settings are absent, or it is transposed."""
    if len(shapes) < 2 or len(inputs) <= signature.dilation or _is_true(inputs, signature.transposed):
        return None
    data, weight = shapes[0], shapes[1]
    settings = [_integers(inputs[place]) for place in (signature.padding, signature.stride, signature.dilation)]
    sides = len(weight) - 2
    if sides < 1 or len(data) != len(weight) or any(len(values) not in (1, sides) for values in settings):
        return None
    padding, stride, dilation = (values * sides if len(values) == 1 else values for values in settings)
    if min(stride) < 1:
        return None
    extents = zip(data[2:], weight[2:], padding, stride, dilation, strict=True)
    output = [(size + 2 * pad - gap * (taps - 1) - 1) // step + 1 for size, taps, pad, step, gap in extents]
    return 2.0 * data[0] * math.prod(output) * math.prod(weight)


def _convolution_backward(shapes: list[_Shape], inputs: list[str]) -> float | None:
    """Operations of the gradients of a convolution: of its input, its weights, or both, as the call's mask says."""
    if len(shapes) < 3 or len(inputs) <= _BACKWARD_MASK or _is_true(inputs, _BACKWARD_TRANSPOSED) or len(shapes[0]) < 3:
        return None
    gradient, weight = shapes[0], shapes[2]
    wanted = [word.strip() == "True" for word in inputs[_BACKWARD_MASK].strip("[]").split(",")][:2]
    return 2.0 * gradient[0] * math.prod(gradient[2:]) * math.prod(weight) * sum(wanted)


def _is_true(inputs: list[str], place: int) -> bool:
    return place >= 0 and inputs[place] == "True"


def _integers(text: str) -> list[int]:
    """The numbers of a list such as "[1, 1]"; empty where the text is none."""
    words = text.strip("[]").split(",")
    return [int(word) for word in words] if all(is_whole(word.strip().removeprefix("-")) for word in words) else []


def operator_flops(name: str, shapes: list[_Shape], inputs: list[str]) -> float | None:
    """Operations of one call by its input shapes and values; None where the operator or its shapes are not known.

    An input that is a list of tensors has a list of shapes, which tells nothing about the operators that are counted.
    """
    shapes = [shape if all(isinstance(size, int) for size in shape) else [] for shape in shapes]
    if name in _PRODUCTS:
        a, b = _PRODUCTS[name]
        return _product(shapes[a], shapes[b]) if len(shapes) > b else None
    if name == _GROUPED:
        return _grouped(shapes)
    if name in _ATTENTION:
        query, causal, factor = _ATTENTION[name]
        if len(shapes) < query + 2 or len(shapes[query]) != 4 or len(shapes[query + 1]) != 4:
            return None
        batch, heads, length, width = shapes[query]
        keys = shapes[query + 1][2]
        half = 0.5 if len(inputs) > causal and inputs[causal] == "True" else 1.0
        return 4.0 * batch * heads * length * keys * width * factor * half
    if name in _CONVOLUTIONS:
        return _convolution(_CONVOLUTIONS[name], shapes, inputs)
    return _convolution_backward(shapes, inputs) if name == _CONVOLUTION_BACKWARD else None


def achieved_flops(timeline: Timeline, owners: Members, job: Job) -> tuple[Achieved, ...]:
    """Products and attention in the steps that count by operator and shapes, the longest first; empty where shapes are absent."""
    totals: dict[tuple[str, str], tuple[set[tuple[int, int]], float, int]] = {}
    in_steps = step_times(timeline, owners).tasks_counted()
    for position, trace in enumerate(job.traces):
        counted = counted_operators(trace)
        if not counted:
            continue
        tasks, rows = _callers(trace, owners, in_steps, position, np.array(sorted(counted), np.int64))
        time = timeline.end[tasks] - timeline.start[tasks]
        for row, ns in zip(rows.tolist(), time.tolist(), strict=True):
            if row >= 0:
                text, flops = counted[row]
                key = (trace.strings[trace.name[row]], text)
                ids, _, total = totals.setdefault(key, (set(), flops, 0))
                ids.add((position, row))
                totals[key] = (ids, flops, total + ns)
    out = [
        Achieved(name, text, len(ids), flops, ns, flops * len(ids) / (ns / 1e9)) for (name, text), (ids, flops, ns) in totals.items() if ns
    ]
    return tuple(sorted(out, key=lambda a: -a.time_ns))


def _callers(trace: Trace, owners: Members, in_steps: NDArray[np.bool_], position: int, counted: Int64) -> tuple[Int64, Int64]:
    """The tasks in the steps of a rank whose time counts for operators, and the row of `counted` that each belongs to (-1: none)."""
    graph, tasks = owners.graph, owners.of_rank(position)
    tasks = tasks[in_steps[tasks]]
    if owners.on_device[owners.of_rank(position)].any():
        tasks = tasks[owners.launch[tasks] >= 0]
        return tasks, innermost(trace, counted, graph.event[owners.launch[tasks]].astype(np.int64))
    tasks = tasks[graph.kind[tasks] == Kind.OPERATOR]
    rows = graph.event[tasks].astype(np.int64)
    return tasks, np.where(np.isin(rows, counted), rows, -1)


#: Every operator whose operations are counted.
COUNTED = frozenset((*_PRODUCTS, _GROUPED, *_ATTENTION, *_CONVOLUTIONS, _CONVOLUTION_BACKWARD))


def counted_operators(trace: Trace) -> dict[int, tuple[str, float]]:
    """By row, the operators whose number of operations is known: their shapes as text, and that number."""
    dims, values = trace.args.get("Input Dims"), trace.dense("Concrete Inputs")
    if dims is None:
        return {}
    known = trace.named(lambda name: name in COUNTED)
    chosen = known[dims.rows] & (trace.category[dims.rows] == Category.OPERATOR)
    flops: Callable[[str, str, str], float | None] = _cached_flops({})
    out = {}
    for row, text_index in zip(dims.rows[chosen].tolist(), dims.values[chosen].tolist(), strict=True):
        text = trace.strings[text_index]
        inputs = trace.strings[int(values[row])] if values[row] >= 0 else "[]"
        amount = flops(trace.strings[trace.name[row]], text, inputs)
        if amount:
            out[row] = (text, amount)
    return out


def _cached_flops(memory: dict[tuple[str, str, str], float | None]) -> Callable[[str, str, str], float | None]:
    """`operator_flops` on the profiler's JSON text. memory: holds the results, so that each distinct text is parsed once."""

    def flops(name: str, shapes: str, inputs: str) -> float | None:
        key = (name, shapes, inputs)
        if key not in memory:
            memory[key] = operator_flops(name, json.loads(shapes), json.loads(inputs))
        return memory[key]

    return flops
