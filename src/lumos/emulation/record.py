"""What one emulated process asked of its device: the values that the run of a script leaves, and their file.

A process of the script runs on tensors without data. It keeps everything that a device would have been asked for, in the order
in which it was asked. There are no times: `begin`, `end` and `position` are readings of one counter per process, which grows by
one with everything that is noted, on whichever thread. On one thread, an interval inside another is a call made by the other.

The file is msgpack, one for each process that was run. It is complete or absent.
"""

from __future__ import annotations

import os
import time
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


class Tensor(msgspec.Struct, frozen=True):
    """A tensor without data. dtype: as torch writes it, without "torch." ("bfloat16"). stride: in elements. storage: one number for
    each piece of memory of the process; views share it. device: "cuda" or "cpu". offset: of its first element, in elements. pinned: memory
    of the host that the device can copy from by itself."""

    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]
    storage: int
    device: str
    offset: int = 0
    pinned: bool = False


#: An argument or result of an operator: a tensor, a number, or the text of anything else (an element type, a device, a layout).
Single = Tensor | bool | int | float | str | None

#: The same, or a list of them.
Argument = Single | list[Single]


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """A call of an operator. name: as a profiler shows it ("aten::mm", "autograd::engine::evaluate_function: MmBackward0").

    thread: an index of `Process.threads`. inputs: the values in the order of the operator's schema, defaults included; outputs:
    its results, empty where an operator that it calls gives them. sequence: the number that a forward operator shares with its node
    of the backward pass, -1 without. forward_thread: of a backward operator the thread of its forward one, -1 otherwise. stream: the
    current stream of its device.
    tf32: whether torch let fp32 be multiplied in TF32 then; None where that is not known. line: an index of `Process.lines`, the line of
    the user's own that it was called from; -1 where there is none, as in the threads of a backward pass.
    leaf: it is the operator that reaches a kernel (or, for a view, none), rather than one that only calls others. region: the call of a
    compiled function that it is part of, an even number, or that number and one for its backward pass; -1 without.
    """

    name: str
    thread: int
    begin: int
    end: int
    inputs: list[Argument] = []
    outputs: list[Argument] = []
    overload: str = ""
    sequence: int = -1
    forward_thread: int = -1
    stream: int = 0
    tf32: bool | None = None
    leaf: bool = False
    line: int = -1
    region: int = -1


#: How the names of the rows of the backward pass' engine begin.
ENGINE_PREFIX = "autograd::engine"

#: How the name of a compiled function's range begins, as torch's profiler writes it.
REGION_PREFIX = "Torch-Compiled Region: "


class Mark(msgspec.Struct, frozen=True):
    """A named range: "ProfilerStep#3", an annotation of the script or of a framework, a module ("nn.Module: Linear_0"), or
    a call of a compiled function."""

    name: str
    thread: int
    begin: int
    end: int


class CallKind(StrEnum):
    """What was asked of the device, other than operators and communication."""

    RECORD_EVENT = "record-event"  # the event marks all work so far on `stream`
    STREAM_WAITS_EVENT = "stream-waits-event"  # later work on `stream` starts after the event
    STREAM_WAITS_EXCHANGE = "stream-waits-exchange"  # Work.wait(): later work on `stream` starts after exchange number `exchange`
    SYNCHRONIZE_EVENT = "synchronize-event"  # the thread waits for the event
    SYNCHRONIZE_STREAM = "synchronize-stream"  # the thread waits for all work on `stream`
    SYNCHRONIZE_DEVICE = "synchronize-device"  # the thread waits for all work of the device
    LAUNCH_GRAPH = "launch-graph"  # all that was captured as graph number `graph` is launched on `stream`
    READ_VALUE = "read-value"  # the thread waits for a value that it copies from the device: .item(), nonzero, a copy to pageable memory


class DeviceCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that orders work. stream: 0 is the default stream. event: a number for each event object. exchange: an index of
    `Process.exchanges`. graph: an index of `Process.graphs`. bytes: those that READ_VALUE copies."""

    kind: CallKind
    thread: int
    position: int
    stream: int = 0
    event: int = -1
    exchange: int = -1
    graph: int = -1
    bytes: int = 0


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """A collective, or one side of a transfer, as this rank issued it.

    group: the name of a `Group`. sequence: counts the exchanges of that group on this rank from 0; a batch of sends and receives
    counts once. name: what was called ("_allgather_base"). input_elements, output_elements:
    of this rank. peer: the other rank of a send or receive, or the root, as a rank of the job; -1 without. input_splits,
    output_splits: elements to and from each member, empty where all are equal. stream: the current one when it was called.
    asynchronous: the caller did not wait (a call that waits is followed by its own STREAM_WAITS_EXCHANGE). host: it moves objects
    or meets at a barrier between processes, not data of the device. storages: of all tensors that it reads or writes. line: as of an
    operator.
    """

    kind: CollectiveKind
    name: str
    group: str
    sequence: int
    thread: int
    begin: int
    end: int
    dtype: str
    input_elements: int
    output_elements: int
    peer: int = -1
    input_splits: list[int] = []
    output_splits: list[int] = []
    stream: int = 0
    asynchronous: bool = False
    host: bool = False
    storages: list[int] = []
    line: int = -1


class Allocation(msgspec.Struct, frozen=True):
    """Memory of the device taken (bytes > 0) or given back (bytes < 0, the same storage; 0 where compiled code never took any), in blocks
    of PyTorch's allocator. allocated, reserved: bytes that the allocator has lent and holds afterwards."""

    position: int
    bytes: int
    storage: int
    allocated: int = 0
    reserved: int = 0


class StepEnd(StrEnum):
    """What ends a step."""

    OPTIMIZER = "optimizer"  # a step of the first optimizer that steps
    MODULE = "module"  # a call of an outermost module, in a script without an optimizer
    MARK = "mark"  # a call of lumos.collect.step(), or in a script without an optimizer of its own profiler's step


class MemoryKind(StrEnum):
    """What a piece of memory is for."""

    PARAMETER = "parameter"  # also gathered ones, and buffers of modules
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer-state"
    ACTIVATION = "activation"  # what a forward pass leaves to the backward pass
    COMMUNICATION = "communication"
    TEMPORARY = "temporary"


class Owner(msgspec.Struct, frozen=True):
    """Whose a storage is. module: the path of the innermost one that took it ("model.layers.3.mlp"), empty outside of all."""

    storage: int
    kind: MemoryKind
    module: str


class Group(msgspec.Struct, frozen=True):
    """A process group, also one that this rank is no member of. made: groups that were made together, such as those of one dimension
    of a mesh, share this number and no rank."""

    name: str
    description: str
    ranks: list[int]
    made: int


class Assumption(msgspec.Struct, frozen=True):
    """Something assumed or left out. code: a kebab-case word; where: the first line of the script that caused it; count: how often."""

    code: str
    message: str
    where: str = ""
    count: int = 1


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one process. accelerator: the name of a cluster, or "cpu". threads: their names, the main thread first.
    copies: other ranks that do the same work, with the groups of the same `made` that they are members of. schemas: of the operators, as
    torch writes them, by `signature`. owners: of the storages that were allocated. modules: the path in its model of each module that a
    mark names. lines: of the user's own files, as "train.py:12". room: bytes of the device that PyTorch may reserve, 0
    without a limit. graphs: of each CUDA graph what was captured: the operators that reach a kernel, in order. ended_by: what its steps
    turned out to end by."""

    rank: int
    world: int
    accelerator: str
    torch: str
    threads: list[str]
    operators: list[Operator]
    marks: list[Mark] = []
    calls: list[DeviceCall] = []
    graphs: list[list[Operator]] = []
    exchanges: list[Exchange] = []
    allocations: list[Allocation] = []
    owners: list[Owner] = []
    modules: dict[str, str] = {}
    lines: list[str] = []
    room: int = 0
    groups: list[Group] = []
    copies: list[int] = []
    notes: list[Assumption] = []
    schemas: dict[str, str] = {}
    ended_by: StepEnd = StepEnd.OPTIMIZER


def enclosed(spans: Iterable[tuple[int, int, int, int]]) -> Iterator[tuple[int, list[int]]]:
    """A number that each span carries, with those of the spans around it, the innermost last. spans: thread, begin, end, number."""
    around: list[tuple[int, int, int]] = []
    for thread, begin, end, number in sorted(spans, key=lambda span: (span[0], span[1], -span[2], span[3])):
        while around and (around[-1][0] != thread or around[-1][1] < begin):
            around.pop()
        yield number, [outer for _, _, outer in around]
        around.append((thread, end, number))


def signature(operator: Operator) -> str:
    """What an operator is called together with its overload: "aten::add.Tensor"."""
    return f"{operator.name}.{operator.overload}" if operator.overload else operator.name


#: Seconds between two looks for a file.
_PAUSE_S = 0.01


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that others wait for: it is there as a whole or not at all."""
    path.parent.mkdir(exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.replace(path)


def awaited_file(path: Path, patience_s: float) -> bytes | None:
    """The content of such a file; None where it does not come."""
    until = time.monotonic() + patience_s
    while not path.exists() and time.monotonic() < until:
        time.sleep(_PAUSE_S)
    return path.read_bytes() if path.exists() else None


def write_record(process: Process, path: Path) -> None:
    """Write the record."""
    write_whole(path, msgspec.msgpack.encode(process))


def read(path: Path) -> Process:
    """The record in a file."""
    return msgspec.msgpack.decode(path.read_bytes(), type=Process)
