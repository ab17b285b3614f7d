"""How much longer an operator takes that becomes another one, or comes to another device: model(new) / model(old).

On accelerators the models are those of `cost`. On a CPU core an operator has a fixed time, and the rest of its time is
proportional to its work, at the rate that the trace shows (`Core`):

    multiplication  m · n · k
    attention       its arithmetic at the rate of the trace's own multiplications, and its elements for the rest
    recurrent       its arithmetic at that rate, and its weights for the rest: they are laid out anew at every call
    view            no work: it only describes its input in another way
    anything else   the elements of its inputs
    autograd node   (no shapes) the elements of the largest operator inside it, whose memory it frees

The measured time contains the trace's own efficiency, so only the change is modelled. The interval grows with the change, up to
the interval of the model at a factor of four. Beyond that, how long a kernel took says less and less of another one: a small one may have
taken twice its modelled time for what a large one does not do (`prices.Ratio.carried`).
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.changes.layout.prices import Ratio, around, exactly, growing
from lumos.cost.attention_model import attention
from lumos.cost.estimate import Bound
from lumos.cost.gemm_model import gemm
from lumos.cost.memory_bound_model import moved
from lumos.cost.traffic import traffic
from lumos.graph.occupancy import launch_size
from lumos.operators.shaped import (
    ShapedOperator,
    attention_of,
    convolution_work,
    elements,
    grouped_product,
    has_rate,
    is_attention,
    is_recurrent,
    product,
    recurrence,
    recurrent_multiplications,
    type_of,
)
from lumos.operators.table import without_work
from lumos.trace.table import Category, Int64, Trace, unique
from lumos.vocabulary import Direction, DType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lumos.cost.cluster import Accelerator
    from lumos.cost.estimate import Estimate
    from lumos.graph.table import Graph
    from lumos.segment.program import Shapes
    from lumos.segment.rank import OperatorWork

#: Half-width of the 80 % interval of a CPU operator that is scaled by a factor of four or more, as a fraction.
CPU_INTERVAL = 0.15
#: Rows, columns and depth from which a CPU multiplies at its full rate: a few times the 8 to 32 values that its registers hold at once.
FULL_RATE = 128
#: Half-width of the 80 % interval of a ratio of the rates of two types or devices, as a fraction: no measurement of the recording ties them
#: together.
RATES_INTERVAL = 0.3
#: Half-width of the 80 % interval of a ratio of bytes, as a fraction.
BYTES_INTERVAL = 0.1
#: Operators of at most this many elements show the fixed time of an operator.
_SMALL = 256
#: Fixed time of a kernel, ns: that of ATen's smallest kernels on current accelerators (public traces: 1–3 µs).
KERNEL_FLOOR = 2000


class Core(NamedTuple):
    """A CPU core as a trace shows it. fixed, node_fixed: the fixed time of an operator and of an autograd node, ns. rate:
    multiplications per ns, 0 where the trace has none. own: the time of each operator without those inside it, the median over its
    calls, ns."""

    fixed: float
    node_fixed: float
    rate: float
    own: dict[ShapedOperator, float]

    def ratio(self, old: ShapedOperator, new: ShapedOperator) -> float:
        """By what the time of an operator, without its fixed time, is multiplied."""
        if without_work(old.name):
            return 1.0
        arithmetic = operator_work(new) / max(operator_work(old), 1)
        if not self.rate:
            return arithmetic
        before, after = recurrence(old), recurrence(new)
        if before is not None and after is not None:
            share = self._multiplying(old, recurrent_multiplications(old))
            if before.rows < FULL_RATE:  # the product of a step is slower than others, so the share is between this and one
                share = sqrt(share)
            return share * recurrent_multiplications(new) / recurrent_multiplications(old) + (1 - share) * after.weights / before.weights
        if is_attention(old.name):
            passes = 5 if "backward" in old.name else 2  # products of queries, keys, values and their gradients
            share = self._multiplying(old, passes * operator_work(old))
            return share * arithmetic + (1 - share) * touched(new) / max(touched(old), 1)
        return arithmetic

    def _multiplying(self, o: ShapedOperator, multiplications: int) -> float:
        """The share of an operator's time, without its fixed time, that its multiplications take at the rate of the trace."""
        return min(multiplications / self.rate / max(self.own.get(o, 0.0) - self.fixed, 1.0), 1.0)


class Devices(NamedTuple):
    """The accelerators on which operators run before a change and after it; None for both in a job on CPUs."""

    before: Accelerator | None
    after: Accelerator | None

    @property
    def differ(self) -> bool:
        """Whether the change is to another device."""
        return self.before != self.after


def on_core(o: ShapedOperator, new: ShapedOperator, core: Core) -> Ratio:
    """By what the time of an operator on a CPU is multiplied that becomes `new`."""
    if new == o:
        return exactly(1.0)
    whole = growing(core.ratio(o, new), CPU_INTERVAL, core.fixed)
    if recurrent_multiplications(o):
        growth = recurrent_multiplications(new) / recurrent_multiplications(o)
        return whole._replace(low=min(whole.low, growth), high=max(whole.high, growth))
    return whole if product(o) is None or without_work(o.name) else _between(whole, o, new)


def _between(whole: Ratio, old: ShapedOperator, new: ShapedOperator) -> Ratio:
    """The factor of a multiplication on a CPU: between that of its memory and that of its arithmetic.

    A multiplication with few rows is slower for its arithmetic than one with many, since it reads all weights for them; how much, a
    trace of one size does not show. With FULL_RATE or more in every dimension it is taken as arithmetic, else as the geometric mean.
    """
    memory = touched(new) / max(touched(old), 1)
    sizes = product(old), product(new)
    fewest = min((min(s.m, s.n, s.k) for s in sizes if s is not None), default=FULL_RATE)
    middle = whole.best if fewest >= FULL_RATE else sqrt(whole.best * memory)
    return Ratio(middle, min(whole.low, memory), max(whole.high, memory), whole.fixed)


def on_devices(devices: Devices, o: ShapedOperator, new: ShapedOperator, blocks: float = 0.0, causal: bool | None = None) -> Ratio:
    """By what the time of an operator is multiplied that becomes `new`, or comes to another device. blocks: of an attention how many its
    kernel has for each query (`waves`); 0 where that is not known. causal: whether none of its queries sees a later key; None where that is
    not known, or so of some calls only."""
    before, after = devices
    assert before is not None and after is not None
    at_once = waves(blocks * queries(o), before), waves(blocks * queries(new), after)
    ratio = model_ratio(o, new, before, after, at_once, causal is not False)
    if causal is None and ratio is not None and is_attention(o.name):
        other = model_ratio(o, new, before, after, at_once, causal=False)
        ratio = ratio if other is None else ratio._replace(low=min(ratio.low, other.best), high=max(ratio.high, other.best))
    if ratio is not None:
        return ratio
    work = operator_work(new) / max(operator_work(o), 1)
    if not devices.differ and o.dtypes == new.dtypes:
        return growing(work, CPU_INTERVAL, float(int(moved(1.0, after).time)))
    if not has_rate(o):
        return passing(o, new, devices)
    old_type, new_type = type_of(o), type_of(new)
    if not devices.differ and old_type in before.peak_flops and new_type in after.peak_flops:
        return around(work * before.peak_flops[old_type] / after.peak_flops[new_type], RATES_INTERVAL)
    return arithmetic_ratio(old_type, before, after)


def passing(o: ShapedOperator, new: ShapedOperator, devices: Devices) -> Ratio:
    """By what the time of a kernel is multiplied that only moves the tensors of an operator."""
    times = _bytes(new) / max(_bytes(o), 1)
    if devices.before is not None and devices.after is not None and devices.differ:
        return memory_ratio(devices.before, devices.after, times)
    return around(times, BYTES_INTERVAL, KERNEL_FLOOR) if times != 1 else exactly(1.0)


def memory_ratio(before: Accelerator, after: Accelerator, times: float = 1.0) -> Ratio:
    """By what the time of a kernel is multiplied that moves `times` as many bytes on another device."""
    rates = (float(device.require("memory_bytes_per_s")) for device in (before, after))
    return around(times * next(rates) / next(rates), RATES_INTERVAL)


def arithmetic_ratio(dtype: DType | None, before: Accelerator, after: Accelerator) -> Ratio:
    """By what the time of a kernel is multiplied that multiplies on another device, by the peak rates. A small multiplication is bound by
    memory, too, so the interval reaches to the ratio of that. Where the type is not known, or one of the devices lacks it, it may be any
    that both have."""
    if dtype is DType.TF32:
        ratios = [before.peak_flops[single(before)] / after.peak_flops[single(after)]]
    else:
        both = [d for d in (DType.BF16, DType.FP16, DType.FP32) if d in before.peak_flops and d in after.peak_flops]
        ratios = [before.peak_flops[d] / after.peak_flops[d] for d in ([dtype] if dtype in both else both)] or [1.0]
    within = (*ratios, memory_ratio(before, after).best)
    return Ratio(sqrt(min(ratios) * max(ratios)), min(within) / (1 + RATES_INTERVAL), max(within) * (1 + RATES_INTERVAL))


def single(accelerator: Accelerator) -> DType:
    """The type in which an accelerator multiplies fp32 where tf32 is allowed: tf32, or fp32 on one that does not have it."""
    return DType.TF32 if DType.TF32 in accelerator.peak_flops else DType.FP32


def model_ratio(
    o: ShapedOperator,
    new: ShapedOperator,
    old_device: Accelerator,
    device: Accelerator,
    at_once: tuple[float, float] = (1.0, 1.0),
    causal: bool = True,
) -> Ratio | None:
    """Model(after) / model(before) of an operator that becomes `new`, in its shapes or types, or comes to another device; None where no
    model covers both. at_once, causal: as in `modelled`.

    The same kernel on other shapes is the surer, the less they change. That it multiplies as well in another type, no measurement of the
    recording says; nor how good the same shapes are on another device.
    """
    before, after = modelled(o, old_device, at_once[0], causal), modelled(new, device, at_once[1], causal)
    if before is None or after is None or not int(before.time):
        earlier, later = recurrent_ns(o, old_device), recurrent_ns(new, device)
        return around(later / earlier, RATES_INTERVAL) if earlier and later else None
    ratio = int(after.time) / int(before.time)
    spread = max(int(after.high) / max(int(after.time), 1) - 1, 0.0)
    if device != old_device:
        return around(ratio, spread)
    if o.dtypes != new.dtypes:
        return around(ratio, RATES_INTERVAL if has_rate(o) else BYTES_INTERVAL * (ratio != 1))
    launch = float(int(before.high)) if before.bound_by == Bound.LATENCY and not has_rate(o) else 0.0
    work = operator_work(new) / max(operator_work(o), 1)
    return growing(ratio, spread, 0.0)._replace(modelled=float(int(before.time)), launch=launch, work=work)


def operator_work(o: ShapedOperator) -> int:
    """The work to which an operator's time is proportional: multiplications, or elements of its inputs; of a recurrent layer the elements
    of what runs through it, since its weights are used again in every step."""
    sizes = product(o) or grouped_product(o)
    if sizes is not None:
        m, n, k, batch = sizes
        return m * n * k * batch
    attended = attention_of(o.name, o.shapes)
    if attended is not None:
        return queries(o) * attended.keys * attended.width
    if is_recurrent(o.name) and o.shapes:
        return elements(o.shapes[0])
    return convolution_work(o) or touched(o)


def touched(o: ShapedOperator) -> int:
    """Elements of an operator's inputs."""
    return sum(elements(s) for s in o.shapes if s)


def _bytes(o: ShapedOperator) -> int:
    """Bytes of an operator's inputs, as far as their types are known."""
    typed = [(elements(s), DType.parse(name)) for s, name in zip(o.shapes, o.dtypes, strict=True) if s and name]
    return sum(n * dtype.bytes for n, dtype in typed if dtype is not None)


def queries(o: ShapedOperator) -> int:
    """The queries of all heads of an attention; 0 where its shapes do not say."""
    attended = attention_of(o.name, o.shapes)
    return 0 if attended is None else attended.batch * attended.heads * attended.queries


def attention_blocks(graph: Graph, trace: Trace, work: OperatorWork) -> dict[ShapedOperator, int]:
    """In how many blocks attention runs, by its operator: those of the longest kernel that it launched, where the trace shows a grid.
    work: of a rank."""
    attends = work.like(lambda o: is_attention(o.name))
    tasks, number = work.tasks[attends], work.number[attends]
    blocks = launch_size(trace, "grid")[graph.event[tasks]]
    shortest_first = np.argsort(graph.duration[tasks], kind="stable").tolist()
    return {work.operators[number[i]]: int(blocks[i]) for i in shortest_first if blocks[i] > 0}


def waves(blocks: float, device: Accelerator) -> float:
    """How many times the blocks of an attention have room on a device at once; 1 where they fill it. As long as they do not, more blocks
    take no more time: each has a core of its own."""
    return max(1.0, device.cores / blocks) if blocks and device.cores is not None else 1.0


def modelled(o: ShapedOperator, accelerator: Accelerator, times: float = 1.0, causal: bool = True) -> Estimate | None:
    """The cost model's time of an operator on an accelerator; None where no model covers it. times: an attention is modelled as that of so
    many batches at once. causal: whether its mask is."""
    sizes = product(o) or grouped_product(o)
    if sizes is not None:
        m, n, k, batch = sizes
        dtype = dtype_on(o, accelerator)
        return None if dtype is None else gemm(m, n, k, accelerator, dtype, batch=batch, cast=False)
    if is_attention(o.name):
        a, dtype = attention_of(o.name, o.shapes), dtype_on(o, accelerator)
        if a is None or dtype is None:
            return None
        direction = Direction.BACKWARD if "backward" in o.name else Direction.FORWARD
        queries_of = a.batch * times, a.queries, a.heads, a.width
        return attention(*queries_of, accelerator, dtype, kv_heads=a.kv_heads, kv_len=a.keys, causal=causal, direction=direction)
    if not any(o.shapes):
        return None
    rule = traffic(o)
    return None if rule is None else moved(rule[1], accelerator, rule[0])


def recurrent_ns(o: ShapedOperator, accelerator: Accelerator) -> float:
    """The modelled time of the multiplications of recurrent layers, ns: by the state in each step, by the inputs of all steps at once; 0
    where the operator has none or does not show them."""
    dtype, r = dtype_on(o, accelerator), recurrence(o)
    if dtype is None or r is None:
        return 0.0
    products = ((r.rows, r.state), (r.tokens, r.inputs))
    one_step, at_once = (int(gemm(rows, n, k, accelerator, dtype, cast=False).time) for rows, (n, k) in products)
    return float(r.steps * one_step + (3 if "backward" in o.name else 1) * at_once)


def dtype_on(o: ShapedOperator, accelerator: Accelerator) -> DType | None:
    """The type of an operator's first input that an accelerator multiplies in; None where there is none."""
    types = (dtype.arithmetic for dtype in map(DType.parse, o.dtypes) if dtype is not None)
    return next((dtype for dtype in types if dtype in accelerator.peak_flops), None)


def holding(trace: Trace, rows: Sequence[int], like: Callable[[str], bool]) -> list[int]:
    """The rows of operators with a name that `like` tells and that some of `rows` lie in, and those among `rows` themselves: PyTorch calls
    one such operator in another, with the same inputs."""
    outer = np.flatnonzero(trace.is_any(Category.OPERATOR) & trace.named(like))
    inner = np.array(rows, np.int64)
    holders = set(rows)
    for lane in unique(trace.lane[inner]).tolist() if rows else ():
        spans, starts = outer[trace.lane[outer] == lane], np.sort(trace.start[inner[trace.lane[inner] == lane]])
        begin, end = trace.start[spans], trace.start[spans] + trace.duration[spans]
        holders |= set(spans[np.searchsorted(starts, end, "left") > np.searchsorted(starts, begin, "left")].tolist())
    return sorted(holders)


def core_of(graph: Graph, work: OperatorWork) -> Core:
    """The CPU core of a rank, from the times of its operators, of which each slice is a task."""
    duration = graph.duration[work.tasks]
    small = duration[work.like(lambda o: any(o.shapes) and touched(o) <= _SMALL)]
    nodes = duration[work.number < 0]
    typical = {}
    for o, tasks, rows in work.by_operator():
        typical[o] = float(np.median(np.bincount(np.unique(rows, return_inverse=True)[1], graph.duration[tasks])))
    products = [(operator_work(o), time) for o, time in typical.items() if product(o) is not None]
    spent = sum(time for _, time in products)
    return Core(
        fixed=float(np.median(small)) if len(small) else 0.0,
        node_fixed=float(np.median(nodes)) if len(nodes) else 0.0,
        rate=sum(count for count, _ in products) / spent if spent else 0.0,
        own=typical,
    )


def largest_inside(trace: Trace, rows: Int64, shapes: Shapes) -> Int64:
    """For each of `rows` the row of the operator with the most elements that begins inside it on its thread; -1 where there is none."""
    inner = shapes.rows
    out = np.full(len(rows), -1, np.int64)
    if not len(inner):
        return out
    inner = inner[np.lexsort((trace.start[inner], trace.lane[inner]))]
    size = np.array([touched(o) for o in shapes.operators], np.int64)[shapes.of_row[inner]]
    chosen, of_chosen = np.unique(rows, return_inverse=True)
    largest = np.full(len(chosen), -1, np.int64)
    for lane in unique(trace.lane[chosen]):
        here, asked = np.flatnonzero(trace.lane[inner] == lane), np.flatnonzero(trace.lane[chosen] == lane)
        start = trace.start[inner[here]]
        low = np.searchsorted(start, trace.start[chosen[asked]], "left")
        high = np.searchsorted(start, trace.start[chosen[asked]] + trace.duration[chosen[asked]], "left")
        for i, a, b in zip(asked.tolist(), low.tolist(), high.tolist(), strict=True):
            if b > a:
                largest[i] = inner[here[a + int(size[here[a:b]].argmax())]]
    return largest[of_chosen]
