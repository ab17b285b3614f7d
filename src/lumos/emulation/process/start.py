"""The beginning and the end of an emulated process: called once torch is imported, and again when enough steps are recorded."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._C._profiler import ProfilerActivity, ProfilerConfig, ProfilerState

from lumos.emulation import record
from lumos.emulation.process import cuda, cuts, steps, versions
from lumos.emulation.process.device_memory import DeviceMemory, allocator_of
from lumos.emulation.process.journal import Journal, StepNote
from lumos.emulation.process.operators import attention, higher_order, recurrent, tensors
from lumos.emulation.process.operators.mode import Emulation
from lumos.emulation.process.operators.storages import Storages
from lumos.emulation.process.outside import OUTSIDE
from lumos.emulation.process.owners import Owners, watch_modules
from lumos.emulation.process.ranks import groups, pipelines
from lumos.emulation.process.rows import put_together, schemas
from lumos.emulation.process.script import Endings, leave, line_of_error, script_error
from lumos.emulation.process.settings import TOO_FEW_STEPS, WAITS, EmulationSettings
from lumos.emulation.process.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Iterator


def begin() -> None:
    """Run what follows in this process on tensors without data, as the settings in the environment say."""
    settings = EmulationSettings.here()
    if groups.is_launcher():
        groups.become_script(settings)
        return
    process = _Emulation(settings)
    atexit.register(process.ended_early)
    process.open()


class _Emulation:
    """One emulated process: counts steps, records some of them, then writes its record and ends the script."""

    def __init__(self, settings: EmulationSettings) -> None:
        device = settings.device
        self._settings = settings
        self._journal = Journal()
        self._streams, self._owners = Streams(self._journal), Owners()
        self._allocator = None if device.is_cpu else allocator_of(device)
        self._storages = Storages(self._journal, self._allocator, self._owners, self._streams)
        self._owners.find = self._storages.find
        self._mode = Emulation(self._journal, self._storages, self._streams, "cpu" if device.is_cpu else "cuda", device.workspace)
        self._groups = groups.Groups(settings)
        self._endings = Endings(self.ended_early, self.fail, self._say)
        self._done = 0
        self._config = ProfilerConfig(ProfilerState.KINETO, True, False, False, False, False, versions.profiled_with_overloads())
        self._kept: list[Any] = []

    def open(self) -> None:
        """Take over torch, and begin to count steps."""
        if self._allocator is not None:
            cuda.pretend(self._settings, self._streams, DeviceMemory(self._allocator, self._settings, self._journal))
            library = torch.library.Library("aten", "IMPL")
            attention.install(library)
            recurrent.install(library, self._mode)
            self._kept.append(library)
        logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # what it cannot run is tried and done otherwise
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # which frameworks do to compare tensors
        tensors.install(self._journal, self._mode)
        higher_order.install(self._journal, self._mode)
        self._storages.follow_sizes()
        self._endings.install()
        cuts.torch_parts(self._journal)
        cuts.loaders(self._journal, self._mode)
        cuts.saving(self._journal)
        OUTSIDE.assume = self._journal.assume
        for note in OUTSIDE.noted:
            self._journal.assumed[note[:2]] = record.Assumption(*note)
        if torch.distributed.is_available():
            self._groups.install(self._mode.exchanges)
        if self._settings.world > 1:
            pipelines.install(self._settings, self._journal)
        higher_order.compile_ranges(self._journal)
        watch_modules(self._journal, self._owners)
        groups.start_here(self._settings)
        steps.install(self.step, self._settings.by_forward, self.ended_early, self._owners)
        self._owners.watch_backward()
        self._mode.__enter__()
        if self._settings.warmup == 0:
            self._start()

    def step(self) -> None:
        """A step has ended."""
        self._done += 1
        self._journal.reads = 0
        if self._journal.recording:
            self._journal.add(StepNote(self._done - 1))
        if self._done == self._settings.warmup:
            self._start()
        elif self._done == self._settings.warmup + self._settings.steps:
            self._finish()

    def _start(self) -> None:
        activities = {ProfilerActivity.CPU}
        with _silent():
            torch.autograd._prepare_profiler(self._config, activities)
            torch.autograd._enable_profiler(self._config, activities)
        self._journal.recording = True

    def _finish(self) -> None:
        self._journal.recording = False
        with _silent():
            profile = torch.autograd._disable_profiler()
        OUTSIDE.give_back()
        settings, lists = self._settings, put_together(profile, self._journal, self._storages)
        record.write_record(
            record.Process(
                rank=settings.rank, world=settings.world, accelerator=settings.device.cluster, torch=str(torch.__version__),
                groups=self._groups.made, streams=[record.Stream(i, p) for i, p in enumerate(self._streams.priorities) if i],
                notes=list(self._journal.assumed.values()), schemas=schemas(lists.operators), owners=list(self._owners.all()),
                room=settings.device.room, **lists._asdict(),
            ),
            Path(settings.file),
        )  # fmt: skip
        leave(0)

    def fail(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        """The script raised an exception: say which of its lines, and what it met."""
        del kind
        self._say(script_error(error, line_of_error(trace), self._storages.held()))
        leave(WAITS if isinstance(error, pipelines.StageWaitsError) else 1)

    def ended_early(self) -> None:
        """The script ended before enough steps."""
        if not self._endings.is_here or Path(self._settings.file).exists():  # of a process that this one started
            return
        needed = self._settings.warmup + self._settings.steps
        self._say(self._endings.too_early(self._done, needed, self._journal.assumed.values()))
        leave(TOO_FEW_STEPS)

    def _say(self, message: str) -> None:
        OUTSIDE.give_back()
        Path(self._settings.file).with_suffix(".error").write_text(message, encoding="utf-8")


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Within it, nothing reaches standard error: torch's profiler announces there that it starts and stops."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
