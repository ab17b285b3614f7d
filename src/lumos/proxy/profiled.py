"""One step of a profiled rank as a program: operators with their recorded arguments, device work, waits and collectives.

What stands between two operators is Python's and autograd's work, the same in every step. What else is recorded there, the profiler's own
cost and processes that share the machine, only adds to it, and is no part of the job: of each pause the least counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.collect.window import MALLOC
from lumos.errors import UsageError
from lumos.graph.launches import device_work
from lumos.graph.lists import list_of
from lumos.graph.places import innermost
from lumos.graph.table import Dependency, Graph, Kind, Step
from lumos.proxy.arguments import TensorSpec, map_tensors, recorded_arguments
from lumos.proxy.choose import keep
from lumos.proxy.compiled import put_compiled_code_between
from lumos.proxy.indices import Arguments, bounds
from lumos.proxy.pool import TensorPool
from lumos.proxy.program import RankProgram, RecordedOperator, is_operator
from lumos.proxy.transfers import give_transfers
from lumos.trace.nesting import callers
from lumos.trace.table import ABSENT, DEVICE_WORK, Category, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lumos.analyze.loop.steps import StepTime
    from lumos.trace.table import Int64

#: Runtime calls by which the training script, outside of operators, waits for a whole device or stream.
_SYNCHRONISES = re.compile(r"(cuda|hip)(Device|Stream)Synchronize")

#: What the names of copies between host and device contain.
_BETWEEN = re.compile("HtoD|DtoH|HostToDevice|DeviceToHost")

#: Position of the device among the arguments of aten::_to_copy.
_TO_COPY_DEVICE = 3


@dataclass(frozen=True, slots=True)
class StepRows:
    """The operators of a step. roots: those that no other called. of_row: the operator of each row. copies: by id of an operator
    that copied between host and device, the direction."""

    roots: list[RecordedOperator]
    of_row: dict[int, RecordedOperator]
    copies: dict[int, str] = field(default_factory=dict)

    def numbers(self) -> dict[int, int]:
        """The number in pre-order of each operator, by its id."""
        return {id(operator): i for i, operator in enumerate(o for root in self.roots for o in root.walk())}


def profiled_rank(
    trace: Trace, graph: Graph, spans: Sequence[Step], times: Sequence[StepTime], groups: Mapping[str, int], blocks: Sequence[str] = ()
) -> RankProgram:
    """The program of one rank.

    spans: of its recorded steps, that of the step to take first, in the time of the trace. times: their measured times. groups: index of
    each process group by its name, "" for the group of all ranks. blocks: globs. Where given, only operators inside ranges of matching
    names, and the backward operators that belong to them.
    """
    step, time = spans[0], times[0]
    rows = step_operators(trace, step)
    comes = with_least_pauses(rows.roots, [step_operators(trace, other).roots for other in spans[1:]])
    on_accelerator = bool(trace.is_any(*DEVICE_WORK).any())
    if not on_accelerator:
        put_compiled_code_between(rows.roots)
    _device_work(trace, step, rows)
    give_transfers(trace, step, rows.of_row, groups)
    _waits(trace, graph, step, rows)
    _backward(trace, rows)
    pool = TensorPool()
    _arguments(trace, rows, pool, on_accelerator)
    _retime(rows, comes)
    threads, malloc = _provenance(trace)
    program = RankProgram(
        rank=trace.rank,
        step=step.name,
        recorded_ns=time.length_ns,
        on_accelerator=on_accelerator,
        threads=threads,
        operators=rows.roots,
        tensors=pool.tensors,
        storages=pool.storages,
        malloc=malloc,
        before_ns=min(max(0, step_time.begin_ns - step_time.since_ns) for step_time in times if step_time.basis == time.basis),
    )
    return keep(program, _inside(trace, rows, blocks)) if blocks else program


def _retime(rows: StepRows, comes: Callable[[int], int]) -> None:
    """Move all operators and ends of transfers to when they come."""
    for operator in (o for root in rows.roots for o in root.walk()):
        end = comes(operator.start_ns + operator.duration_ns)
        operator.start_ns = comes(operator.start_ns)
        operator.duration_ns = end - operator.start_ns
        if operator.collective is not None and operator.collective.end_ns >= 0:
            operator.collective = replace(operator.collective, end_ns=comes(operator.collective.end_ns))


def _provenance(trace: Trace) -> tuple[int, dict[str, str]]:
    """The intra-op threads (0: unknown) and glibc's settings, where lumos.collect wrote the file. Only numbers are taken, because
    the settings are put into the environment of a process."""
    known = trace.metadata.get("lumos_collect", {})
    settings = {k: v for k, v in known.get("malloc", {}).items() if k in MALLOC and v.isascii() and v.isdigit()}
    return known.get("threads", 0), settings


def _inside(trace: Trace, rows: StepRows, blocks: Sequence[str]) -> Callable[[RecordedOperator], bool]:
    """A function that says whether an operator ran inside a matching range of its thread, or is the backward operator of one that
    did."""
    matches = trace.named(lambda name: any(fnmatchcase(name, glob) for glob in blocks))
    ranges = np.flatnonzero(matches & trace.is_any(Category.ANNOTATION, Category.PYTHON, Category.OPERATOR))
    end = trace.start + trace.duration
    numbered = [o for root in rows.roots for o in root.walk()]
    inside: set[int] = set()
    for row, operator in rows.of_row.items():
        mine = ranges[trace.lane[ranges] == trace.lane[row]]
        if ((trace.start[mine] <= trace.start[row]) & (end[mine] >= end[row])).any():
            inside.add(id(operator))
            if operator.backward >= 0:
                inside.add(id(numbered[operator.backward]))
    if not inside:
        raise UsageError(f"--blocks {' '.join(blocks)}: no range of the step has such a name; `lumos breakdown --by module` lists some")
    return lambda operator: id(operator) in inside


def step_operators(trace: Trace, step: Step) -> StepRows:
    """The operators of a step, nested by time on each thread; synchronising calls outside of operators count as operators."""
    inside = (trace.start >= step.start) & (trace.start < step.end)
    synchronises = trace.named(_SYNCHRONISES.match)
    operators = (trace.category == Category.OPERATOR) & ~trace.named(lambda name: name.startswith("ProfilerStep"))
    chosen = np.flatnonzero(inside & (operators | (synchronises & (trace.category == Category.RUNTIME))))
    chosen = chosen[np.lexsort((-trace.duration[chosen], trace.start[chosen]))]
    roots: list[RecordedOperator] = []
    of_row: dict[int, RecordedOperator] = {}
    for row, caller in zip(chosen.tolist(), callers(trace, chosen).tolist(), strict=True):
        around = of_row.get(int(chosen[caller])) if caller != ABSENT else None
        if not operators[row] and around is not None and "::" in around.name:
            continue  # part of what the operator does
        start, name = int(trace.start[row]) - step.start, trace.strings[trace.name[row]]
        operator = RecordedOperator(name, start_ns=start, duration_ns=int(trace.duration[row]), synchronize=not operators[row])
        (roots if around is None else around.children).append(operator)
        of_row[row] = operator
    return StepRows(roots, of_row)


def _device_work(trace: Trace, step: Step, rows: StepRows) -> None:
    """Give each operator the time and stream of the device work that it launched itself."""
    stream = trace.dense("stream")
    launches = _launches(trace, step)
    launcher = _launching_operator(trace, launches, rows)
    _own_operators(trace, launches, launcher, step, rows)
    for work, operator in launcher.items():
        operator.device_ns += int(trace.duration[work])
        operator.stream = int(stream[work])
        operator.kernel |= bool(trace.category[work] == Category.KERNEL)
        copy = _BETWEEN.search(trace.strings[trace.name[work]]) if trace.category[work] == Category.MEMCPY else None
        if copy is not None:
            rows.copies[id(operator)] = copy[0]


def _launches(trace: Trace, step: Step) -> dict[int, int]:
    """By row of device work, the row of the call that launched it, for calls in the step."""
    work = device_work(trace)
    began = np.where(work.call >= 0, trace.start[work.call], step.end)
    inside = (began >= step.start) & (began < step.end)
    return dict(zip(work.row[inside].tolist(), work.call[inside].tolist(), strict=True))


def _launching_operator(trace: Trace, launches: Mapping[int, int], rows: StepRows) -> dict[int, RecordedOperator]:
    """By row of device work, the innermost operator around its launch call."""
    around = innermost(trace, np.array(list(rows.of_row), np.int64), np.array(list(launches.values()), np.int64))
    return {work: rows.of_row[row] for work, row in zip(launches, around.tolist(), strict=True) if row != ABSENT}


def _own_operators(trace: Trace, launches: Mapping[int, int], launcher: dict[int, RecordedOperator], step: Step, rows: StepRows) -> None:
    """Make operators of launches outside of all operators (graphs, kernels of other compilers), also of those beside operators in a range,
    and add them to `launcher`."""
    by_call: dict[int, RecordedOperator] = {}
    for work, call in launches.items():
        around = launcher.get(work)
        if around is not None and (is_operator(around.name) or not around.children):
            continue
        if call not in by_call:
            start = int(trace.start[call]) - step.start
            by_call[call] = RecordedOperator(trace.strings[trace.name[work]], start_ns=start, duration_ns=int(trace.duration[call]))
            beside = rows.roots if around is None else around.children
            beside.append(by_call[call])
            beside.sort(key=lambda operator: operator.start_ns)
        launcher[work] = by_call[call]


def _waits(trace: Trace, graph: Graph, step: Step, rows: StepRows) -> None:
    """Fill `Operator.after`: the operators whose transfer or device work an operator, or its device work, waited for."""
    number = rows.numbers()
    of_rank = graph.rank_of_task == trace.rank
    target = list_of(graph.pred_offset)
    mine = of_rank[target]
    device = _launching_operator(trace, _launches(trace, step), rows)
    for edge in np.flatnonzero(mine & (graph.pred_kind == Dependency.STREAM_WAIT)).tolist():
        source = device.get(int(graph.event[graph.pred[edge]]))
        waiter = device.get(int(graph.event[target[edge]]))
        if source is not None and waiter is not None and number[id(source)] not in waiter.after and source is not waiter:
            waiter.after.append(number[id(source)])
    issued = {o.collective.end_ns: o for o in rows.of_row.values() if o.collective is not None and o.collective.end_ns >= 0}
    starts = sorted((o.start_ns, number[id(o)], o) for o in rows.of_row.values())
    times = np.array([start for start, _, _ in starts], np.int64)
    for edge in np.flatnonzero(mine & (graph.pred_kind == Dependency.HAND_OFF) & (graph.kind[graph.pred] == Kind.COLLECTIVE)).tolist():
        row = int(graph.event[graph.pred[edge]])
        ended = int(trace.start[row] + trace.duration[row]) - step.start
        operator = issued.get(ended)
        at = int(np.searchsorted(times, ended))
        if operator is not None and at < len(starts):
            starts[at][2].after.append(number[id(operator)])


def _backward(trace: Trace, rows: StepRows) -> None:
    """Link every forward operator to the backward operator with the same sequence number."""
    sequence = trace.dense("Sequence number")
    forward: dict[int, RecordedOperator] = {}
    number = rows.numbers()
    for row, operator in rows.of_row.items():
        at = int(sequence[row])
        if at < 0:
            continue
        if "Backward" in operator.name or operator.name.startswith("autograd::"):
            if at in forward and "::" not in operator.name.removeprefix("autograd::engine::evaluate_function: "):
                forward[at].backward = number[id(operator)]
        else:
            forward[at] = operator


def _arguments(trace: Trace, rows: StepRows, pool: TensorPool, on_accelerator: bool) -> None:
    """Give every operator its recorded arguments, with tensors from the pool; operators with unreadable arguments keep None."""
    number = rows.numbers()
    texts = {key: trace.dense(key) for key in ("Input type", "Input Dims", "Input Strides", "Concrete Inputs")}
    read: dict[tuple[int, ...], list[Any] | None] = {}
    for row, operator in rows.of_row.items():
        key = tuple(int(texts[k][row]) for k in texts)
        if key not in read:
            read[key] = recorded_arguments(trace, key)
        arguments = read[key]
        if arguments is None:
            continue
        shapes = [a.shape if isinstance(a, TensorSpec) else None for a in arguments]
        limits = bounds(operator.name, Arguments(shapes, arguments))
        operator_number = number[id(operator)]
        device = "accelerator" if on_accelerator else "cpu"
        on_host = _on_host(operator, rows.copies)

        def tensor(
            position: int,
            spec: TensorSpec,
            limits: dict[int, int] = limits,
            operator_number: int = operator_number,
            on_host: int = on_host,
            device: str = device,
        ) -> Any:
            is_number = not spec.shape and spec.dtype == "float64"  # a Python number appears as a tensor of this kind
            return {
                "tensor": pool.take(spec, "cpu" if is_number or position == on_host else device, limits.get(position, 1), operator_number)
            }

        operator.inputs = map_tensors(arguments, tensor)
        if operator.name == "aten::_to_copy" and _direction(operator, rows.copies) and len(arguments) > _TO_COPY_DEVICE:
            operator.inputs[_TO_COPY_DEVICE] = "accelerator" if on_host == 0 else "cpu"


def _direction(operator: RecordedOperator, copies: Mapping[int, str]) -> str:
    """Where an operator, or one that it called, copied from: "H" the host, "D" the device, "" where it did not copy between them."""
    return next((copies[id(inner)][0] for inner in operator.walk() if id(inner) in copies), "")


def _on_host(operator: RecordedOperator, copies: Mapping[int, str]) -> int:
    """Position of the argument that is in host memory, from the direction of the copy; -1 for none."""
    if operator.name not in ("aten::copy_", "aten::_to_copy"):
        return -1
    source = {"aten::copy_": 1, "aten::_to_copy": 0}[operator.name]
    return {"H": source, "D": 0 if operator.name == "aten::copy_" else -1}.get(_direction(operator, copies), -1)


def with_least_pauses(roots: Sequence[RecordedOperator], others: Sequence[Sequence[RecordedOperator]]) -> Callable[[int], int]:
    """When a time of a step comes, ns, once each pause is the least of it in this step and in those of the `others` that run the same
    operators. A pause of this step becomes no longer, and an operator that calls no other takes what it took."""
    own, names = _pauses(roots), _names(roots)
    lengths = np.stack([np.diff(_pauses(repetition))[:, 0] for repetition in (roots, *others) if _names(repetition) == names])
    gone = lengths[0] - lengths.min(axis=0)
    before = np.cumsum(gone) - gone
    known, moved = own.reshape(-1), (own - np.stack((before, before + gone), axis=1)).reshape(-1)

    def comes(time: int) -> int:
        if not len(known) or time < known[0]:
            return time
        return time - int(gone.sum()) if time > known[-1] else round(float(np.interp(time, known, moved)))

    return comes


def _names(roots: Sequence[RecordedOperator]) -> list[str]:
    return [operator.name for root in roots for operator in root.walk()]


def _pauses(roots: Sequence[RecordedOperator]) -> Int64:
    """Begin and end of the pauses before each operator, and between the last that it called and its own end, int64[pauses, 2]. One is empty
    where operators of two threads overlap."""
    out: list[tuple[int, int]] = []
    latest = roots[0].start_ns if roots else 0

    def until(time: int) -> None:
        nonlocal latest
        out.append((latest, max(latest, time)))
        latest = max(latest, time)

    def visit(operator: RecordedOperator) -> None:
        nonlocal latest
        until(operator.start_ns)
        for child in operator.children:
            visit(child)
        end = operator.start_ns + operator.duration_ns
        if operator.children:
            until(end)
        latest = max(latest, end)

    for root in roots:
        visit(root)
    return np.array(out, np.int64).reshape(-1, 2)
