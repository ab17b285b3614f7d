"""Write a predicted job as profiler files, one for each rank, such as a recorded job would have.

The files are named `rank<N>.json.gz` and have Kineto's form of torch 2.5 and later: operators with shapes, launches with
correlation ids, device work on streams, event records and waits with their `cuda_sync` rows, collectives with their
arguments and sequence numbers, a marked step, and the process groups in the header. Only the key `lumos` of the header
says that the job never ran.

An operator that launches work fills its slice of CPU time. Within it, calls that wait for events come first, then the
launch call, then calls that record events. A wait or record takes CALL ns, so that the launch latency of a task whose
event is recorded is longer by CALL.
"""

from __future__ import annotations

import gzip
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.blocks.share import Share
from lumos.blocks.work import Attention, Collective, Contention, Gemm, GroupedGemm, RankStream, Traffic, Work
from lumos.errors import UsageError
from lumos.graph.table import Dependency, Graph
from lumos.output_files import check_only_own, new_folder
from lumos.plan.job import facts_of
from lumos.prediction.ranks import World, group_of, whole
from lumos.simulation import simulate
from lumos.trace.kineto_rows import (
    ORIGIN,
    PROCESS,
    THREAD,
    WrittenDevice,
    call,
    collective_arguments,
    complete,
    event_sync,
    flow,
    footer,
    header,
    nccl_kernel,
    process_name,
    stream_sync,
    stream_wait,
    whole_window,
)
from lumos.trace.table import PREDICTED, Origin
from lumos.vocabulary import CollectiveKind, Direction, DType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lumos.prediction.predict import Prediction
    from lumos.simulation.timeline import Timeline

#: CPU time of a call that records or waits for an event, ns.
CALL = 200
#: CPU time of a launch call where the accelerator's data has none, s; the rest of a slice is the operator's own.
LAUNCH_S = 4.5e-6
#: What a collective says of its splits: its parts are of one size.
_SPLIT = '"In split size":"[]","Out split size":"[]"'
_C10D = {
    CollectiveKind.ALL_REDUCE: "allreduce",
    CollectiveKind.ALL_GATHER: "_allgather_base",
    CollectiveKind.REDUCE_SCATTER: "_reduce_scatter_base",
    CollectiveKind.ALL_TO_ALL: "all_to_allv",
    CollectiveKind.SEND_RECEIVE: "send_recv",
    CollectiveKind.BROADCAST: "broadcast",
    CollectiveKind.REDUCE: "reduce",
}


def write_kineto(
    folder: str, prediction: Prediction, *, ranks: str = "all", jitter: float = 0.0, clock_offset_ns: int = 0, seed: int = 0
) -> list[str]:
    """Write the files of a prediction at kernel granularity to `folder`, which is created if it is absent; returns their paths.

    ranks: "all", or "stages" (the first rank of every pipeline stage). jitter: sigma of the noise on host and kernel times.
    clock_offset_ns: the most by which the clocks of the ranks differ. Raises UsageError for other `ranks`, a prediction
    without kernels or a folder with other traces, LumosError where the folder cannot be written.
    """
    if ranks not in ("all", "stages"):
        raise UsageError(f"ranks {ranks!r} is not known; valid: all, stages")
    world, plan = whole(prediction, jitter, seed), prediction.job.plan
    timeline = simulate(world.graph)
    peers = plan.tp * plan.cp * plan.dp
    chosen = range(plan.devices) if ranks == "all" else range(0, plan.devices, peers)
    offsets = np.random.default_rng(seed + 1).integers(0, clock_offset_ns + 1, plan.devices)
    return write_ranks(folder, chosen, lambda rank: _Writer(prediction, world, timeline, rank, int(offsets[rank])).content())


def write_ranks(folder: str, ranks: Iterable[int], content: Callable[[int], tuple[bytes, Iterator[str]]]) -> list[str]:
    """Write the files of some ranks, of which `content` gives the header and the rows, to `folder`; returns their paths."""
    names = {rank: f"rank{rank}.json.gz" for rank in ranks}
    check_only_own(folder, "*.json*", list(names.values()))
    with new_folder(folder) as draft:
        for rank, name in names.items():
            begin, rows = content(rank)
            with gzip.open(draft / name, "wb", compresslevel=4) as file:
                file.write(begin + ",\n".join(rows).encode() + footer(rank))
    return [str(Path(folder) / name) for name in names.values()]


class _Waiting(NamedTuple):
    """What the tasks of one rank wait for; tasks are counted from the rank's first.

    streams: of every task, below 0 on the CPU. launched: for a CPU task, the device task that it launches. waits: for a device task, those
    of other streams that it waits for. awaited: for a CPU task, the device task that it waits for on each stream. events: the device tasks
    that the CPU awaits by an event, and recorded: all behind which an event is recorded.
    """

    streams: list[int]
    launched: dict[int, int]
    waits: dict[int, list[int]]
    awaited: dict[int, dict[int, int]]
    events: set[int]
    recorded: set[int]


class _Writer:
    """The file of one rank."""

    def __init__(self, prediction: Prediction, world: World, timeline: Timeline, rank: int, offset: int) -> None:
        self.prediction, self.rank = prediction, rank
        self.graph: Graph = world.graph
        self.plan = prediction.job.plan
        self.low, self.high = int(world.first[rank]), int(world.first[rank + 1])
        shift = ORIGIN + offset
        self.start: list[int] = (timeline.start[self.low : self.high] + shift).tolist()
        self.end: list[int] = (timeline.end[self.low : self.high] + shift).tolist()
        self.folded: list[int] = world.folded[self.low : self.high].tolist()
        self.works: tuple[Work | None, ...] = prediction.works
        #: The names of the groups by their use and their members.
        self.groups: dict[tuple[str, tuple[int, ...]], str] = {}
        self.correlation = 10
        #: By device task behind which an event is recorded, the correlation id of the record.
        self.record_id: dict[int, int] = {}
        #: By group, and whether point to point, the number of its last communication.
        self.sequence: dict[tuple[str, bool], int] = defaultdict(int)
        self.call = round(1e9 * (prediction.job.cluster.accelerator.launch_s or LAUNCH_S))
        self.device = rank % prediction.job.cluster.node.devices

    def content(self) -> tuple[bytes, Iterator[str]]:
        """The header, which names the groups that the rows use, and the rows."""
        rows = list(self._events())
        groups = [(name, "lumos", members) for (_, members), name in self.groups.items()]
        accelerator = self.prediction.job.cluster.accelerator
        device = WrittenDevice(self.device, accelerator.name, int(accelerator.memory_bytes or 0), accelerator.cores or 0)
        origin = Origin(PREDICTED, sizes=self._sizes(), job=facts_of(self.prediction.job))
        return header(origin, self.rank, self.plan.devices, groups, device), iter(rows)

    def _sizes(self) -> dict[str, int]:
        """The sizes of the rank's part of the model (`lumos.segment.sizes`)."""
        job = self.prediction.job
        share = Share(job.model, self.plan, job.framework, job.cluster.node.devices)
        return {
            "micro_batch": self.plan.micro_batch,
            "seq": share.tokens // self.plan.micro_batch,
            "hidden": job.model.hidden,
            "heads": share.heads,
            "kv_heads": share.kv_heads,
            "head_dim": job.model.head_dim,
            "ffn": share.ffn,
            "vocab": share.vocab,
        }

    def _events(self) -> Iterator[str]:
        waiting = self._waiting()
        on_cpu = [task for task, stream in enumerate(waiting.streams) if stream < 0]
        first, last = min(self.start), max(self.end[task] for task in on_cpu)
        yield process_name()
        yield complete("user_annotation", "ProfilerStep#1", first, last, '"External id":1')
        clock = first
        for external, task in enumerate(on_cpu, 1):
            for stream, before in waiting.awaited.get(task, {}).items():
                back = max(clock, self.end[before])
                yield from self._synchronise(stream, before, clock, back, external, before in waiting.events)
                clock = back
            clock = max(clock, self.end[task])
            device = waiting.launched.get(task)
            if device is None:
                args = f'"External id":{external},"Ev Idx":{external}'
                yield complete("cpu_op", f"lumos::{self._name(task)}", self.start[task], self.end[task], args)
            else:
                yield from self._launch(task, device, waiting, external)
        yield whole_window(first, max(self.end))

    def _waiting(self) -> _Waiting:
        graph, low, n = self.graph, self.low, self.high - self.low
        streams = [graph.processors[p].stream for p in graph.processor[low : self.high].tolist()]
        offset = graph.pred_offset[low : self.high + 1].tolist()
        launched: dict[int, int] = {}
        waits: dict[int, list[int]] = defaultdict(list)
        syncs: dict[int, list[int]] = defaultdict(list)
        for task in range(n):
            for e in range(offset[task], offset[task + 1]):
                before = int(graph.pred[e]) - low
                if graph.pred_kind[e] == Dependency.LAUNCH:
                    launched[before] = task
                elif graph.pred_kind[e] == Dependency.SYNC:
                    syncs[task].append(before)
                elif streams[before] >= 0:
                    waits[task].append(before)
        awaited = {task: self._last_awaited(before, streams) for task, before in syncs.items()}
        events = _overtaken(awaited, launched, streams)
        recorded = events.union(*waits.values())
        return _Waiting(streams, launched, waits, awaited, events, recorded)

    def _last_awaited(self, before: list[int], streams: list[int]) -> dict[int, int]:
        """The last to end of the device tasks `before` on each stream, by their ends. streams: of every task of the rank."""
        last = {streams[task]: task for task in sorted(before, key=self.end.__getitem__)}
        return dict(sorted(last.items(), key=lambda pair: self.end[pair[1]]))

    def _work(self, task: int) -> Work | None:
        return self.works[self.folded[task]]

    def _name(self, task: int) -> str:
        return self.graph.names[int(self.graph.name[self.low + task])]

    def _next_correlation(self) -> int:
        self.correlation += 1
        return self.correlation

    # ---------------------------------------------------------------- rows

    def _synchronise(self, stream: int, before: int, start: int, end: int, external: int, by_event: bool) -> Iterator[str]:
        """The call in which the CPU waits for the device task `before`: for all work issued to its stream, or for an event behind it."""
        correlation = self._next_correlation()
        name = "cudaEventSynchronize" if by_event else "cudaStreamSynchronize"
        yield call(name, start, end, correlation, more=f'"External id":{external}')
        if by_event:
            yield event_sync(stream, self.record_id[before], start, end, correlation, self.device)
        else:
            yield stream_sync(stream, start, end, correlation, self.device)

    def _launch(self, task: int, device: int, waiting: _Waiting, external: int) -> Iterator[str]:
        """The operator that fills the CPU task `task` and launches the device task `device`, with the calls in it and the device's row."""
        start, end = self.start[task], self.end[task]
        work, stream = self._work(device), waiting.streams[device]
        own = f'"External id":{external}'
        yield complete("cpu_op", _operator(work, self._name(device)), start, end, f'{own},"Ev Idx":{external}{_shapes(work)}')
        at = start
        for before in waiting.waits.get(device, ()):
            correlation = self._next_correlation()
            stop = min(at + CALL, end)
            yield call("cudaStreamWaitEvent", at, stop, correlation, more=own)
            yield stream_wait(stream, waiting.streams[before], self.record_id[before], at, correlation, self.device)
            at = stop
        correlation = self._next_correlation()
        stop = max(at, end - CALL) if device in waiting.recorded else end
        at = max(at, stop - self.call)
        yield call("cudaLaunchKernel", at, stop, correlation, more=f'{own},"cbid":211')
        yield flow("s", correlation, PROCESS, THREAD, at)
        yield from self._device(device, work, stream, correlation, external)
        if device in waiting.recorded:
            self.record_id[device] = self._next_correlation()
            yield call("cudaEventRecord", stop, end, self.record_id[device], more=own)

    def _device(self, task: int, work: Work | None, stream: int, correlation: int, external: int) -> Iterator[str]:
        name = self._name(task)
        args = f'"External id":{external},"device":{self.device},"context":1,"stream":{stream},"correlation":{correlation}'
        kernel = _kernel(work, name)
        if isinstance(work, Collective):
            args += "," + self._collective(work, name, stream > RankStream.RECEIVE_FORWARD_UP)
            kernel = nccl_kernel(work.kind)
        yield complete("kernel", kernel, self.start[task], self.end[task], args, self.device, stream)
        yield flow("f", correlation, self.device, stream, self.start[task])

    def _collective(self, work: Collective, name: str, up: bool) -> str:
        peers = self.plan.tp * self.plan.cp * self.plan.dp
        own = self.rank // peers
        collective, peer = _C10D[work.kind], ""
        last = self.plan.devices - peers
        if name.startswith(("send ", "receive ")):
            forward = name.endswith("forward")
            ahead = (forward == name.startswith("send ")) != up
            down = own + 1 if ahead else own - 1
            other = self.rank % peers + down % self.plan.pp * peers
            members = tuple(self.rank % peers + s * peers for s in range(self.plan.pp))
            group = self._group(("forward" if forward else "backward") + (" up" if up else ""), members)
            collective = "send" if name.startswith("send ") else "recv"
            peer = f',"{"Dst" if collective == "send" else "Src"} Rank":{other}'
        elif name.startswith("tied"):
            members = (self.rank % peers, self.rank % peers + last)
            group = self._group("tied embedding", members)
        else:
            members = group_of(self.rank, work)
            group = self._group("group", members)
        messages = group, bool(peer)
        self.sequence[messages] += 1
        into = work.input_bytes
        out = work.size // len(members) if work.kind is CollectiveKind.REDUCE_SCATTER else work.size
        dtype, width = ("Byte", 1) if into % 2 or out % 2 else ("BFloat16", 2)
        elements = max(1, into // width), max(1, out // width)
        return collective_arguments(collective, elements, f'"{dtype}",{_SPLIT}', group, members, self.sequence[messages], peer)

    def _group(self, use: str, members: tuple[int, ...]) -> str:
        listed = "-".join(map(str, members)) if len(members) <= 4 else f"{members[0]}+{members[1] - members[0]}x{len(members)}"
        return self.groups.setdefault((use, members), f"{use} {listed}")


def _overtaken(awaited: dict[int, dict[int, int]], launched: dict[int, int], streams: list[int]) -> set[int]:
    """The device tasks that the CPU waits for when their stream has more work already: only an event can say how far it waits.

    awaited: for a CPU task, the device task that it waits for on each stream. launched: for a CPU task, the device task that it launches.
    streams: of every task of the rank, below 0 on the CPU.
    """
    last: dict[int, int] = {}
    found: set[int] = set()
    for task, stream in enumerate(streams):
        if stream < 0:
            found.update(before for on, before in awaited.get(task, {}).items() if last.get(on) != before)
            if task in launched:
                last[streams[launched[task]]] = launched[task]
    return found


def _operator(work: Work | None, name: str) -> str:
    if isinstance(work, Gemm):
        return "aten::bmm" if work.batch > 1 else "aten::_scaled_mm" if work.dtype is DType.FP8 else "aten::mm"
    if isinstance(work, GroupedGemm):
        return "aten::_grouped_mm"
    if isinstance(work, Attention):
        backward = "_backward" if work.direction is Direction.BACKWARD else ""
        return f"aten::_scaled_dot_product_flash_attention{backward}"
    return f"c10d::{_C10D[work.kind]}" if isinstance(work, Collective) else f"lumos::{name}"


def _kernel(work: Work | None, name: str) -> str:
    if isinstance(work, Gemm | GroupedGemm):
        return f"gemm_{work.dtype} [{name}]"
    if isinstance(work, Attention):
        return f"flash_{work.direction}_kernel [{name}]"
    return f"elementwise_kernel [{name}]" if isinstance(work, Traffic | Contention) else name


def _shapes(work: Work | None) -> str:
    """Input shapes and types of the operator."""
    if isinstance(work, Gemm):
        batch = f"{work.batch}, " if work.batch > 1 else ""
        dims, count = f"[[{batch}{work.m}, {work.k}], [{batch}{work.k}, {work.n}]]", 2
    elif isinstance(work, GroupedGemm):
        dims, count = f"[[{work.rows * work.groups}, {work.k}], [{work.groups}, {work.k}, {work.n}]]", 2
    elif isinstance(work, Attention):
        q = f"[{work.batch}, {work.heads}, {work.queries}, {work.head_dim}]"
        k = f"[{work.batch}, {work.kv_heads}, {work.keys}, {work.head_dim}]"
        v = f"[{work.batch}, {work.kv_heads}, {work.keys}, {work.value_dim}]"
        result = f"[{work.batch}, {work.heads}, {work.queries}, {work.value_dim}], " if work.direction is Direction.BACKWARD else ""
        dims, count = f"[{result}{q}, {k}, {v}]", 4 if result else 3
    elif isinstance(work, Traffic):
        dims, count = f"[[{max(1, work.bytes // 4)}]]", 1
    else:
        return ""
    kinds = ", ".join([f'"{DType(getattr(work, "dtype", DType.BF16)).profiler_name}"'] * count)
    return f',"Input Dims":{dims},"Input type":[{kinds}]'
