"""Record a few steps of a training loop with the PyTorch profiler: one Kineto file per rank.

The recording is one window of whole steps. Before it, `wait` steps run without the profiler, and `warmup` steps with the
profiler started but not yet recording, so that its start-up cost is not in the trace. All ranks enter the window together (at a
barrier) and with idle devices, so that neither earlier GPU work nor the lateness of a rank is in it. After the window the profiler
is removed, so that it needs no more memory however long the training goes on.

If the profiler fails, there is no trace, but the training goes on; the failure is reported once.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lumos.collect.execution_trace import ExecutionTraceFile, compressing
from lumos.collect.host import HostRows
from lumos.collect.provenance import how_started
from lumos.errors import LumosError, UsageError
from lumos.extras import install

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

#: Options of the profiler that torch 2.1 lacks, turned on where this torch has them. They are tried, as they come and go between releases.
#: enable_cuda_sync_events: rows that say which work a synchronising call waited for, and which event a stream waited for.
#: trace_only: torch does not make its own event objects, which take several times the memory of the trace and are not used here.
WANTED = ("enable_cuda_sync_events", "trace_only")

#: Settings of glibc that change how large tensors are allocated, and therefore how long operators take on a CPU.
MALLOC = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_ARENA_MAX", "MALLOC_MMAP_MAX_")


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
    """Record training steps into rank<R>.json.gz: wait: steps without the profiler, warmup: with it, but not kept, steps: recorded.

    folder: where the files go. Use it as a context manager, and call `.step()` at the end of every training step. Operators are recorded
    with shapes and without Python stacks, and CUDA synchronisation where this torch can record it. memory: also record every allocation.
    execution_trace: also write rank<R>.et.json.gz, the first recorded step with tensor identities; that step then takes longer.
    align: wait for all ranks of torch.distributed (where it is initialised) at a barrier before the window. Every rank must then
    use the recording; pass False where only some do.

    Raises UsageError for impossible numbers, and LumosError where torch is not installed. Nothing is raised once the loop runs.
    """
    if steps < 1 or warmup < 0 or wait < 0:
        raise UsageError(f"profile(steps={steps}, warmup={warmup}, wait={wait}): steps must be at least 1, the others at least 0")
    return Recording(Path(folder), steps, warmup, wait, memory=memory, execution_trace=execution_trace, align=align)


class Recording:
    """The recording of one window of a training loop. Made by `profile`.

    path, execution_trace_path: the files written, None until then. failure: why there is no file, None as long as nothing failed.
    overhead: how much longer recorded steps take, as a fraction; None until enough steps without the profiler have run, before
    the window (`wait`) or after it. overhead_noise: its standard error; None as long as `overhead` is, or with one recorded step.
    """

    def __init__(
        self, folder: Path, steps: int, warmup: int, wait: int, *, memory: bool, execution_trace: bool = False, align: bool
    ) -> None:
        self.folder = folder
        self.path: Path | None = None
        self.execution_trace_path: Path | None = None
        self.failure: str | None = None
        self.overhead: float | None = None
        self.overhead_noise: float | None = None
        self._steps, self._warmup, self._wait = steps, warmup, wait
        self._memory, self._align = memory, align
        self._torch = _import_torch()
        self._profiler: Any = None
        self._observer = ExecutionTraceFile(self._torch, folder) if execution_trace else None
        self._pace = Pace(wait, wait + warmup + (execution_trace and steps > 1), wait + warmup + steps)
        self._host = HostRows()
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
        self._write_provenance()
        self._observe()
        self._pace.begin()
        return self

    def step(self) -> None:
        """End one training step. Call it once per step on every rank, as long as the loop runs."""
        self._done += 1
        if self.overhead is None and self._pace.lap():
            self._report_pace()
        if self._done > self._wait + self._warmup + self._steps:
            return
        self._observe()
        if self._recorded:
            self._host.end(self._done - 1)
            self._advance("add_metadata_json", "lumos_host", json.dumps(self._host.rows))
        self._before_window()
        self._advance("step")
        self._write_provenance()
        if self._done == self._wait + self._warmup + self._steps:
            self._close()
        self._observe()
        self._pace.begin()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._profiler is None or self._recorded >= self._steps:
            return
        if self._observer is not None and self._observer.is_open:
            self._observer.discard()
        self._close()
        needed = self._wait + self._warmup + self._steps
        if self._recorded:
            whole = f"{self._recorded} of {self._steps} steps are whole in the trace"
            self._say(f"the loop ended after {self._done} steps, inside the recording of {needed}: {whole}")
        elif self.failure is None:
            one = self._wait + self._warmup + 1
            takes = f"it takes {one}" + (f", and {needed} to record {self._steps}" if needed > one else "")
            self.failure = f"the loop ended after {self._done} steps, before a whole step was recorded; {takes}"
            self._say(f"no trace of rank {self.rank}: {self.failure}: lower wait or warmup, or run more steps")

    @property
    def _recorded(self) -> int:
        """The whole steps of the window that have ended."""
        return max(0, self._done - self._wait - self._warmup)

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
        """At the start of the window, wait for all ranks and for this rank's device. This also happens where this rank's profiler has
        failed, because the other ranks wait here."""
        if self._done != self._wait + self._warmup:
            return
        cuda, distributed = self._torch.cuda, self._torch.distributed
        if self._align and distributed.is_available() and distributed.is_initialized():
            devices = [cuda.current_device()] if distributed.get_backend() == "nccl" else None
            distributed.barrier(device_ids=devices)
        if cuda.is_available() and cuda.is_initialized():
            cuda.synchronize()

    def _write_provenance(self) -> None:
        """Write into the trace how it was recorded. torch accepts such entries only during the window."""
        if self._done == self._wait + self._warmup:
            self._host.begin()
            self._advance("add_metadata_json", "lumos_collect", json.dumps(_provenance(self._torch, self._steps, self._warmup)))

    def _advance(self, action: str, *arguments: str | None) -> None:
        if self._profiler is None:
            return
        try:
            getattr(self._profiler, action)(*arguments)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)

    def _observe(self) -> None:
        """Start the execution trace with the window's first step, and end it after that step. Called before and after the profiler
        changes steps."""
        if self._observer is None or (self._profiler is None and not self._observer.is_open):
            return
        try:
            first = self._wait + self._warmup
            if self._done == first and not self._observer.is_open:
                self._observer.open(self.rank)
            elif self._done == first + 1 and self._observer.is_open:
                self.execution_trace_path = self._observer.close()
                self._say(f"wrote {self.execution_trace_path}")
                if self._observer.sources:
                    self._say(f"sources of compiled kernels copied into {self._observer.sources_folder}: {self._observer.sources}")
        except Exception as error:  # noqa: BLE001 - as above
            self._observer = None
            self._say(f"no execution trace of rank {self.rank}, the training goes on: {type(error).__name__}: {error}")

    def _report_pace(self) -> None:
        self.overhead, self.overhead_noise = self._pace.overhead, self._pace.noise
        if self.overhead is not None and self.path is not None and self.rank == 0:
            traced, untraced = self._pace.medians()
            noise = "noise unknown" if self.overhead_noise is None else f"± {self.overhead_noise:.1%}"
            times = f"{traced * 1e3:.1f} ms while recorded and {untraced * 1e3:.1f} ms otherwise"
            self._say(f"steps took {times} ({self.overhead:+.1%}, {noise})")

    def _close(self) -> None:
        self._advance("__exit__", None, None, None)
        self._profiler = None
        self._host.close()

    def _fail(self, error: Exception) -> None:
        """Report the failure once, and remove the profiler: if it had half started, it would record and use memory for ever."""
        profiler, self._profiler = self._profiler, None
        self.failure = f"{type(error).__name__}: {error}"
        self._say(f"no trace of rank {self.rank}, the training goes on: {self.failure}")
        if profiler is not None:
            try:
                profiler.stop()
            except Exception as again:  # noqa: BLE001 - already failed and reported
                self.failure += f" (and stopping: {type(again).__name__}: {again})"

    def _write(self, profiler: Any) -> None:
        """Write the trace, unless it has no whole step."""
        if not self._recorded:
            return
        began = time.perf_counter()
        final = self.folder / f"rank{self.rank}.json.gz"
        with compressing(final) as plain:
            profiler.export_chrome_trace(str(plain))
        self.path = final
        size = final.stat().st_size
        self._say(f"wrote {final} ({size / 1e6:.2f} MB in {time.perf_counter() - began:.1f} s)")

    def _say(self, message: str) -> None:
        """Print on standard error. A warning is not used, because a training script may turn warnings into exceptions."""
        print(f"lumos.collect: {message}", file=sys.stderr, flush=True)


def _import_torch() -> Any:
    try:
        torch = importlib.import_module("torch")
        importlib.import_module("torch.profiler")
    except ModuleNotFoundError as error:
        raise LumosError(
            f"lumos.collect records with the PyTorch profiler, and torch is not installed ({error}): {install('torch')}"
        ) from error
    return torch


def _provenance(torch: Any, steps: int, warmup: int) -> dict[str, Any]:
    """How the trace was recorded, as far as its rows do not show it. Of names and paths it contains those of the command alone."""
    distributed = torch.distributed
    has_group = distributed.is_available() and distributed.is_initialized()
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "rank": distributed.get_rank() if has_group else 0,
        "world_size": distributed.get_world_size() if has_group else 1,
        "backend": distributed.get_backend() if has_group else None,
        "steps": steps,
        "warmup": warmup,
        **how_started(),
        "malloc": {name: os.environ[name] for name in MALLOC if os.environ.get(name, "").isdigit()},
    }


def experimental_config(torch: Any, wanted: Sequence[str] = WANTED) -> Any:
    """A profiler configuration with every wanted option that this torch has, or None where it has no such configuration."""
    factory = getattr(getattr(torch._C, "_profiler", None), "_ExperimentalConfig", None)
    if factory is None:
        return None
    return factory(**{option: True for option in wanted if _accepts(factory, option)})


def _accepts(factory: Any, option: str) -> bool:
    try:
        factory(**{option: True})
    except TypeError:  # the native constructor does not have this keyword
        return False
    return True


#: The least number of steps without the profiler to compare with recorded ones. The first of a loop does not count, because it is
#: never representative.
_ENOUGH = 3


#: Standard deviation of the median of n normally distributed values, times √n, in units of theirs: √(π/2), for large n.
_OF_MEDIAN = math.sqrt(math.pi / 2)


class Pace:
    """Times steps 1, 2, … of a loop: without the profiler up to `wait` and after `end`, recorded from `begin` to `end`.

    A step is timed from one call of `lap` to the next, or from a call of `begin` in between, which leaves out the collector's own
    work.
    """

    def __init__(self, wait: int, begin: int, end: int) -> None:
        self._wait, self._begin, self._end = wait, begin, end
        self._started: float | None = None
        self._done = 0
        self._traced: list[float] = []
        self._untraced: list[float] = []

    def begin(self) -> None:
        """Leave out the time since the last lap, which the collector itself used."""
        self._started = time.perf_counter()

    def lap(self) -> bool:
        """Note that a step has ended. Returns whether enough steps with and without the profiler are known now."""
        now = time.perf_counter()
        self._done += 1
        if self._started is not None:
            if self._begin < self._done <= self._end:
                self._traced.append(now - self._started)
            elif 1 < self._done <= self._wait or self._done > self._end + 1:
                self._untraced.append(now - self._started)
        self._started = now
        return self._done > self._end and len(self._untraced) >= _ENOUGH and bool(self._traced)

    def medians(self) -> tuple[float, float]:
        """Median seconds of a recorded step, and of one without the profiler."""
        return statistics.median(self._traced), statistics.median(self._untraced)

    @property
    def overhead(self) -> float | None:
        """How much longer recorded steps are, as a fraction of those without the profiler; None where either are missing."""
        if not self._traced or not self._untraced:
            return None
        traced, untraced = self.medians()
        return traced / untraced - 1

    @property
    def noise(self) -> float | None:
        """The standard error of `overhead`, from how much steps of either kind differ; None where there is one of a kind, or none.

        An overhead of less than about twice its noise cannot be told from none.
        """
        if min(len(self._traced), len(self._untraced)) < 2:
            return None
        variances = [statistics.variance(seconds) / len(seconds) for seconds in (self._traced, self._untraced)]
        return _OF_MEDIAN * math.sqrt(sum(variances)) / statistics.median(self._untraced)
