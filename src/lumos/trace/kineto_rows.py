"""The rows and the header of a profiler file in Kineto's form, as text: what predicted and emulated jobs are written with.

Times are ns and begin at `ORIGIN` after the base of the clock; a file has them in microseconds with three decimals, so none is rounded.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from lumos.result import as_json
from lumos.vocabulary import CollectiveKind, DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.trace.table import Origin

#: Start of the recording, ns after the base of its clock; and that base, a multiple of Kineto's window.
ORIGIN, BASE = 5_000_000_000, 1_735_689_600_000_000_000
PROCESS, THREAD = 4000, 4001

#: What the kernel of each kind of collective is called; other kinds are sends and receives.
_NCCL = {
    CollectiveKind.ALL_REDUCE: "AllReduce_Sum_{}_RING_LL",
    CollectiveKind.ALL_GATHER: "AllGather_RING_LL",
    CollectiveKind.REDUCE_SCATTER: "ReduceScatter_Sum_{}_RING_LL",
    CollectiveKind.BROADCAST: "Broadcast_RING_LL",
    CollectiveKind.REDUCE: "Reduce_Sum_{}_RING_LL",
    CollectiveKind.BARRIER: "AllReduce_Sum_i8_RING_LL",
}
#: The word of a type in those names (`all_tys` in NCCL's src/device/generate.py, which adds signed numbers as unsigned ones).
_NCCL_TYPES = {
    DType.FP64: "f64",
    DType.FP32: "f32",
    DType.TF32: "f32",
    DType.BF16: "bf16",
    DType.FP16: "f16",
    DType.FP8: "f8e4m3",
    DType.FP8_E5M2: "f8e5m2",
    DType.INT64: "u64",
    DType.UINT64: "u64",
    DType.INT32: "u32",
    DType.UINT32: "u32",
}


def nccl_kernel(kind: CollectiveKind, dtype: DType | None = DType.BF16) -> str:
    """The name of the kernel of a collective whose tensors have this type; one that NCCL does not know moves as bytes."""
    word = "u8" if dtype is None else _NCCL_TYPES.get(dtype, "u8")
    return f"ncclDevKernel_{_NCCL.get(kind, 'SendRecv').format(word)}(ncclDevKernelArgsStorage<4096ul>)"


@lru_cache(maxsize=65_536)  # a job repeats the same few names
def quoted(text: str) -> str:
    """The text as a JSON string, in plain characters: a name may contain half a surrogate pair, which UTF-8 cannot."""
    return json.dumps(text)


def microseconds(ns: int) -> str:
    """A time as the file has it."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def complete(category: str, name: str, start: int, end: int, args: str, process: object = PROCESS, thread: object = THREAD) -> str:
    """A row with a duration. args: members of its JSON object of arguments. process, thread: numbers, or names in quotes."""
    return (
        f'{{"ph":"X","cat":"{category}","name":{quoted(name)},"pid":{process},"tid":{thread},"ts":{microseconds(start)}'
        f',"dur":{microseconds(end - start)},"args":{{{args}}}}}'
    )


def flow(phase: str, number: int, process: object, thread: object, at: int, category: str = "ac2g") -> str:
    """One end of an arrow: phase "s" where it starts, "f" where it ends."""
    ends = ',"bp":"e"' if phase == "f" else ""
    lane = f'"pid":{process},"tid":{thread},"ts":{microseconds(at)}'
    return f'{{"ph":"{phase}","id":{number},{lane},"cat":"{category}","name":"{category}"{ends}}}'


def call(name: str, begin: int, end: int, correlation: int, thread: int = THREAD, more: str = '"External id":0') -> str:
    """The row of a call of the runtime, of that correlation id. more: members of its arguments that come before."""
    return complete("cuda_runtime", name, begin, end, f'{more},"correlation":{correlation}', thread=thread)


def whole_window(begin: int, end: int) -> str:
    """The row of the recording as a whole, with which a file ends."""
    return complete("Trace", "PyTorch Profiler (0)", begin, end, '"Op count":0', '"Spans"', '"PyTorch Profiler"')


def collective_arguments(
    collective: str, elements: tuple[int, int], dtype: str, group: str, ranks: Sequence[int], number: int, more: str = "",
    description: str = "lumos",
) -> str:  # fmt: skip
    """The arguments of a collective, or of one side of a send. elements: in and out. number: its place among those of the group. more:
    further members, such as that which names the other side, with a comma before each. description: of the group."""
    return (
        f'"Collective name":"{collective}","In msg nelems":{elements[0]},"Out msg nelems":{elements[1]},"Group size":{len(ranks)}'
        f',"dtype":{dtype},"Process Group Name":{quoted(group)},"Process Group Description":{quoted(description)}'
        f',"Process Group Ranks":"{list(ranks)}","Seq":{number}{more}'
    )


def process_name() -> str:
    """The row that names the process."""
    return f'{{"name":"process_name","ph":"M","ts":0,"pid":{PROCESS},"tid":0,"args":{{"name":"python"}}}}'


def thread_name(thread: int, name: str) -> str:
    """The row that names a thread."""
    return f'{{"name":"thread_name","ph":"M","ts":0,"pid":{PROCESS},"tid":{thread},"args":{{"name":{quoted(name)}}}}}'


def stream_wait(stream: int, source: int, record: int, at: int, correlation: int, device: object) -> str:
    """The row that says that `stream` waits for the event that the call with correlation id `record` recorded on `source`."""
    return _sync("Stream Wait Event", stream, at, at, correlation, device, _event(source, record))


def stream_sync(stream: int, start: int, end: int, correlation: int, device: object) -> str:
    """The row that says that a call waited for all work of a stream."""
    return _sync("Stream Sync", stream, start, end, correlation, device)


def event_sync(source: int, record: int, start: int, end: int, correlation: int, device: object) -> str:
    """The row that says that a call waited for the event that the call with correlation id `record` recorded on stream `source`."""
    return _sync("Event Sync", -1, start, end, correlation, device, _event(source, record))


def _sync(name: str, stream: int, start: int, end: int, correlation: int, device: object, event: str = "") -> str:
    args = f'"stream":{stream},"correlation":{correlation},"device":{device},"context":1{event}'
    return complete("cuda_sync", name, start, end, args, device, stream)


def _event(source: int, record: int) -> str:
    """The members of the arguments that name an event."""
    return f',"wait_on_stream":{source},"wait_on_cuda_event_record_corr_id":{record},"wait_on_cuda_event_id":{record}'


class WrittenDevice(NamedTuple):
    """A device as the header of a file describes it. memory: bytes. processors: SMs."""

    id: int
    name: str
    memory: int
    processors: int


def header(origin: Origin, rank: int, world: int, groups: Sequence[tuple[str, str, Sequence[int]]], device: WrittenDevice | None) -> bytes:
    """The file up to its rows, which a comma separates and `footer` follows.

    origin: of a job that never ran. groups: name, description and ranks of each process group. device: of the rank; None where it is not
    known to have one.
    """
    info: dict[str, Any] = {"rank": rank, "world_size": world, "pg_count": len(groups)}
    config = [{"pg_name": name, "pg_desc": told, "pg_size": len(ranks), "ranks": list(ranks)} for name, told, ranks in groups]
    out: dict[str, Any] = {"schemaVersion": 1, "lumos": origin.said, "baseTimeNanoseconds": BASE, "displayTimeUnit": "ms"}
    if device is not None:
        out["deviceProperties"] = [{"id": device.id, "name": device.name, "totalGlobalMem": device.memory, "numSms": device.processors}]
        info |= {"backend": "nccl", "nccl_version": "2.21.5"}
        config = [{**group, "backend_config": "cuda:nccl"} for group in config]
    out["distributedInfo"] = {**info, "pg_config": config}
    return as_json(out)[:-1] + b',"traceEvents":[\n'


def footer(rank: int) -> bytes:
    """The end of the file."""
    return b'\n],"traceName":"rank%d.json"}\n' % rank
