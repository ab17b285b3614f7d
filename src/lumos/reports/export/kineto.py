"""Write a predicted job as profiler files, one for each rank, such as a recorded job would have: `lumos predict --kineto`.

Only the key `lumos` of the header says that the job never ran. An operator that launches work fills its slice of CPU time, with the shapes
of its inputs, and calls the runtime at the end of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumos.blocks.share import Share
from lumos.blocks.work import Attention, Collective, Contention, Gemm, GroupedGemm, Traffic, Work
from lumos.errors import UsageError
from lumos.plan.job import facts_of
from lumos.prediction.ranks import World, whole
from lumos.reports.export.kineto_sheet import RankRows, WrittenRun, c10d_name, write_ranks
from lumos.simulation import simulate
from lumos.trace.kineto_rows import THREAD, WrittenDevice, call, complete, header
from lumos.trace.table import PREDICTED, Origin
from lumos.vocabulary import Direction, DType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lumos.prediction.predict import Prediction

#: CPU time of a launch call where the accelerator's data has none, s; the rest of a slice is the operator's own.
LAUNCH_S = 4.5e-6


def write_kineto(folder: str, prediction: Prediction, *, ranks: str = "all") -> list[str]:
    """Write the files of a prediction at kernel granularity to `folder`, which is created if it is absent; returns their paths.

    ranks: "all", or "stages" (the first rank of every pipeline stage). Raises UsageError for other `ranks`, a prediction without kernels or
    a folder with other traces, LumosError where the folder cannot be written.
    """
    if ranks not in ("all", "stages"):
        raise UsageError(f"ranks {ranks!r} is not known; valid: all, stages")
    world, plan = whole(prediction), prediction.job.plan
    run = WrittenRun(simulate(world.graph))
    chosen = range(plan.devices) if ranks == "all" else range(0, plan.devices, plan.tp * plan.cp * plan.dp)

    def content(rank: int) -> tuple[bytes, Iterator[str]]:
        return _header(prediction, run, rank), _PredictedRows(run, rank, prediction, world).rows()

    return write_ranks(folder, chosen, content)


def _header(prediction: Prediction, run: WrittenRun, rank: int) -> bytes:
    """The file up to its rows."""
    job, plan = prediction.job, prediction.job.plan
    share = Share(job.model, plan, job.framework, job.cluster.node.devices)
    sizes = {  # of the rank's part of the model (`lumos.segment.sizes`)
        "micro_batch": plan.micro_batch,
        "seq": share.tokens // plan.micro_batch,
        "hidden": job.model.hidden,
        "heads": share.heads,
        "kv_heads": share.kv_heads,
        "head_dim": job.model.head_dim,
        "ffn": share.ffn,
        "vocab": share.vocab,
    }
    a = job.cluster.accelerator
    device = WrittenDevice(rank % job.cluster.node.devices, a.name, int(a.memory_bytes or 0), a.cores or 0)
    origin = Origin(PREDICTED, within=prediction.time.within, sizes=sizes, job=facts_of(job))
    return header(origin, rank, plan.devices, run.groups(rank), device)


class _PredictedRows(RankRows):
    """The rows of one rank of a predicted job."""

    element = ("BFloat16", 2)

    def __init__(self, run: WrittenRun, rank: int, prediction: Prediction, world: World) -> None:
        super().__init__(run, rank)
        self.works, self.folded = prediction.works, world.folded
        self.longest_launch = round(1e9 * (prediction.job.cluster.accelerator.launch_s or LAUNCH_S))

    def steps(self, threads: dict[int, list[int]]) -> Iterator[str]:
        ((thread, tasks),) = threads.items()
        first, last = min(self.start.values()), max(self.end[task] for task in tasks)
        yield complete("user_annotation", "ProfilerStep#1", first, last, '"External id":1', thread=THREAD + thread)

    def on_thread(self, tasks: Iterable[tuple[int, int]], thread: int) -> Iterator[str]:
        clock = min(self.start.values())
        for task, _ in tasks:
            for before in self.returns.get(task, ()):
                begin, clock, number = clock, max(clock, self.end[before]), next(self.fresh)
                yield call("cudaEventSynchronize", begin, clock, number, thread)
                yield self.awaited(before, begin, clock, number)
            begin, clock, own = self.start[task], self.end[task], self.operator_id(task)
            if launched := self.work.get(task):
                work = self._work(launched[0])
                yield complete("cpu_op", self._operator(launched[0], work), begin, clock, own + _shapes(work), thread=thread)
                yield from self.calls(task, "cudaLaunchKernel", begin, clock, thread)
            else:
                yield complete("cpu_op", f"lumos::{self.name(task)}", begin, clock, own, thread=thread)

    def operator_id(self, task: int) -> str:
        return f'"External id":{task + 1}'

    def shown(self, task: int) -> str:
        work, name = self._work(task), super().shown(task)
        if isinstance(work, Gemm | GroupedGemm):
            return f"gemm_{work.dtype} [{name}]"
        if isinstance(work, Attention):
            return f"flash_{work.direction}_kernel [{name}]"
        return f"elementwise_kernel [{name}]" if isinstance(work, Traffic | Contention) else name

    def _work(self, task: int) -> Work | None:
        return self.works[int(self.folded[task])]

    def _operator(self, task: int, work: Work | None) -> str:
        """The operator that launches device work."""
        if isinstance(work, Gemm):
            return "aten::bmm" if work.batch > 1 else "aten::_scaled_mm" if work.dtype is DType.FP8 else "aten::mm"
        if isinstance(work, GroupedGemm):
            return "aten::_grouped_mm"
        if isinstance(work, Attention):
            backward = "_backward" if work.direction is Direction.BACKWARD else ""
            return f"aten::_scaled_dot_product_flash_attention{backward}"
        return f"c10d::{c10d_name(self.run.kind(task))}" if isinstance(work, Collective) else f"lumos::{self.name(task)}"


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
