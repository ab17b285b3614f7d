"""Record a few steps of a training loop with the PyTorch profiler: one Kineto file per rank.

The recording is one window of whole steps. Before it, `wait` steps run untouched and `warmup` steps run with the
profiler prepared but silent, so that its start-up cost stays outside. Ranks enter the window together (a barrier), with
idle devices, so that neither old GPU work nor one rank's lateness is inside. After it the profiler is dropped, so memory
is bounded by the window however long the training goes on.

A failure of the profiler costs the trace, never the training: it is reported once, and the loop goes on.
"""

from __future__ import annotations

import gzip
import importlib
import json
import os
import shutil
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from lumos.collect.execution_trace import ExecutionTraceFile
from lumos.collect.pace import Pace
from lumos.collect.torch_features import experimental_config
from lumos.errors import LumosError, UsageError

#: glibc's settings that change how large tensors are allocated, and so what operators cost on a CPU.
MALLOC = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_ARENA_MAX", "MALLOC_MMAP_MAX_")

INSTALL = "pip install 'lumos-trace[torch]'"


def profile(
    folder: str | os.PathLike[str],
    steps: int = 3,
    warmup: int = 2,
    *,
    wait: int = 0,
    memory: bool = False,
    execution_trace: bool = False,
    align: bool = True,
) -> Recording:
    """Record `steps` training steps into `folder`/rank<R>.json.gz, after `wait` untouched and `warmup` prepared steps.

    Use as a context manager and call `.step()` at the end of every training step. Operators carry their shapes, Python
    stacks are off, and CUDA synchronisation is recorded where this torch can. `memory` adds every allocation.
    `execution_trace` writes rank<R>.et.json.gz beside it: the first recorded step with tensor identities, which stretches
    that step.

    `align` puts a barrier over all ranks of torch.distributed (where initialised) before the window, so every rank must
    use the recording; pass False where only some do.

    Raises UsageError for impossible numbers and LumosError where torch is absent; once the loop runs, nothing.
    """
    if steps < 1 or warmup < 0 or wait < 0:
        raise UsageError(f"profile(steps={steps}, warmup={warmup}, wait={wait}): steps must be at least 1, the others at least 0")
    return Recording(Path(folder), steps, warmup, wait, memory=memory, execution_trace=execution_trace, align=align)


class Recording:
    """One window of a training loop, being recorded. Made by `profile`.

    path, execution_trace_path: the files written, None until then. failure: why there is none, None while all is well.
    overhead: by how much the profiler stretched its steps, as a fraction; None until steps without it were seen, before
    the window (`wait`) or after it.
    """

    def __init__(
        self, folder: Path, steps: int, warmup: int, wait: int, *, memory: bool, execution_trace: bool = False, align: bool
    ) -> None:
        self.folder = folder
        self.path: Path | None = None
        self.execution_trace_path: Path | None = None
        self.failure: str | None = None
        self.overhead: float | None = None
        self._steps, self._warmup, self._wait = steps, warmup, wait
        self._memory, self._align = memory, align
        self._torch = _import_torch()
        self._profiler: Any = None
        self._observer = ExecutionTraceFile(self._torch, folder) if execution_trace else None
        self._pace = Pace(wait, wait + warmup + (execution_trace and steps > 1), wait + warmup + steps)
        self._done = 0

    @property
    def rank(self) -> int:
        """This process's rank: torch.distributed's, else the launcher's RANK, else 0."""
        distributed = self._torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
        launcher = os.environ.get("RANK", "")
        return int(launcher) if launcher.isdigit() else 0

    def __enter__(self) -> Recording:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._profiler = self._new_profiler()
        except Exception as error:  # noqa: BLE001 - whatever the profiler raises, the training goes on
            self._fail(error)
        self._before_window()
        self._advance("__enter__")
        self._sign()
        self._observe()
        self._pace.begin()
        return self

    def step(self) -> None:
        """End one training step. Call it once per step on every rank, for as long as the loop runs."""
        self._done += 1
        if self.overhead is None and self._pace.lap():
            self._report_pace()
        if self._done > self._wait + self._warmup + self._steps:
            return
        self._observe()
        self._before_window()
        self._advance("step")
        self._sign()
        if self._done == self._wait + self._warmup + self._steps:
            self._close()
        self._observe()
        self._pace.begin()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        recorded = max(0, self._done - self._wait - self._warmup)
        if self._profiler is not None and recorded < self._steps:
            if self._observer is not None and self._observer.is_open:
                self._done = self._wait + self._warmup + 1
                self._observe()
            self._close()
            self._say(
                f"the loop ended after {self._done} steps, inside the recording of {self._wait + self._warmup + self._steps}: "
                f"{recorded} of {self._steps} steps are whole in the trace"
            )

    def _new_profiler(self) -> Any:
        profiler = self._torch.profiler
        return profiler.profile(
            schedule=profiler.schedule(wait=self._wait, warmup=self._warmup, active=self._steps, repeat=1),
            on_trace_ready=self._write,
            record_shapes=True,
            profile_memory=self._memory,
            with_stack=False,
            experimental_config=experimental_config(self._torch),
        )

    def _before_window(self) -> None:
        """Ranks and devices meet at the window's edge. Independent of this rank's profiler: the other ranks wait here."""
        if self._done != self._wait + self._warmup:
            return
        cuda, distributed = self._torch.cuda, self._torch.distributed
        if self._align and distributed.is_available() and distributed.is_initialized():
            devices = [cuda.current_device()] if distributed.get_backend() == "nccl" else None
            distributed.barrier(device_ids=devices)
        if cuda.is_available() and cuda.is_initialized():
            cuda.synchronize()

    def _sign(self) -> None:
        """Say in the file how it came to be. torch keeps such entries only while a window is open."""
        if self._done == self._wait + self._warmup:
            provenance = json.dumps(_provenance(self._torch, self._steps, self._warmup))
            self._advance("add_metadata_json", "lumos_collect", provenance)

    def _advance(self, action: str, *arguments: str | None) -> None:
        if self._profiler is None:
            return
        try:
            getattr(self._profiler, action)(*arguments)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)

    def _observe(self) -> None:
        """Open the execution trace for the window's first step, and close it after it. Called around every edge."""
        if self._observer is None or (self._profiler is None and not self._observer.is_open):
            return
        try:
            first = self._wait + self._warmup
            if self._done == first and not self._observer.is_open:
                self._observer.open(self.rank)
            elif self._done == first + 1 and self._observer.is_open:
                self.execution_trace_path = self._observer.close()
                self._say(f"wrote {self.execution_trace_path}")
        except Exception as error:  # noqa: BLE001 - as above
            self._observer = None
            self._say(f"no execution trace of rank {self.rank}, the training goes on: {type(error).__name__}: {error}")

    def _report_pace(self) -> None:
        self.overhead = self._pace.overhead
        if self.overhead is not None and self.path is not None and self.rank == 0:
            traced, untraced = self._pace.medians()
            self._say(f"steps took {traced * 1e3:.1f} ms while recorded and {untraced * 1e3:.1f} ms otherwise ({self.overhead:+.1%})")

    def _close(self) -> None:
        self._advance("__exit__", None, None, None)
        self._profiler = None

    def _fail(self, error: Exception) -> None:
        """Report once, and drop the profiler: a half-started one would record, and hold memory, for ever."""
        profiler, self._profiler = self._profiler, None
        self.failure = f"{type(error).__name__}: {error}"
        self._say(f"no trace of rank {self.rank}, the training goes on: {self.failure}")
        if profiler is not None:
            try:
                profiler.stop()
            except Exception as again:  # noqa: BLE001 - already failed and reported
                self.failure += f" (and stopping: {type(again).__name__}: {again})"

    def _write(self, profiler: Any) -> None:
        """Write the trace under a name of its own first, so that a rank<R>.json.gz is always whole."""
        began = time.perf_counter()
        final = self.folder / f"rank{self.rank}.json.gz"
        plain, packed = final.with_name(f".{final.name}.json"), final.with_name(f".{final.name}.partial")
        try:
            profiler.export_chrome_trace(str(plain))
            with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=6) as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
            packed.replace(final)
        finally:
            plain.unlink(missing_ok=True)
            packed.unlink(missing_ok=True)
        self.path = final
        size = final.stat().st_size
        self._say(f"wrote {final} ({size / 1e6:.2f} MB in {time.perf_counter() - began:.1f} s)")

    def _say(self, message: str) -> None:
        """On standard error and not as a warning, which a training script may have turned into an exception."""
        print(f"lumos.collect: {message}", file=sys.stderr, flush=True)


def _import_torch() -> Any:
    try:
        torch = importlib.import_module("torch")
        importlib.import_module("torch.profiler")
    except ModuleNotFoundError as error:
        raise LumosError(f"lumos.collect records with the PyTorch profiler, and torch is not installed ({error}): {INSTALL}") from error
    return torch


def _provenance(torch: Any, steps: int, warmup: int) -> dict[str, Any]:
    """What a reader of the file cannot see in it otherwise. No host names, paths or environment."""
    distributed = torch.distributed
    joined = distributed.is_available() and distributed.is_initialized()
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "rank": distributed.get_rank() if joined else 0,
        "world_size": distributed.get_world_size() if joined else 1,
        "backend": distributed.get_backend() if joined else None,
        "steps": steps,
        "warmup": warmup,
        "malloc": {name: os.environ[name] for name in MALLOC if os.environ.get(name, "").isdigit()},
    }
