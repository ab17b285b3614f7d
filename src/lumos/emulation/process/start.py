"""The beginning and the end of an emulated process: called once torch is imported, and again when enough steps are recorded.

A training step ends where its optimizer has stepped, as in a recording of the real script, or where the script says so. An optimizer that
steps for one parameter after the other in hooks of the backward pass has stepped when that pass is done. Where it turns out that the steps
of a script end otherwise, it begins anew.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace
from torch._C._profiler import ProfilerActivity, ProfilerConfig, ProfilerState

from lumos.collect.hook import MARKED
from lumos.collect.hook import step as marked
from lumos.collect.window import experimental_config
from lumos.emulation import record
from lumos.emulation.launchers import launcher_in
from lumos.emulation.process import checkpoints, cuda, groups, script, torch_functions
from lumos.emulation.process.device_memory import DeviceMemory, allocator_of
from lumos.emulation.process.journal import Journal, StepNote
from lumos.emulation.process.operators import by_device
from lumos.emulation.process.operators.mode import Emulation
from lumos.emulation.process.operators.storages import Storages
from lumos.emulation.process.outside import OUTSIDE
from lumos.emulation.process.owners import Owners, watch_modules
from lumos.emulation.process.patches import TORCH
from lumos.emulation.process.rows import put_together
from lumos.emulation.process.script import CAPTURES, MARKS_STEPS, frames_of_error, leave, line_of_error, line_of_script, says
from lumos.emulation.process.settings import FULL, WAITS, WHERE, EmulationSettings
from lumos.emulation.process.streams import Graphs, Streams
from lumos.emulation.record import StepEnd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

#: Steps that a script may take after those that are recorded until it captures a graph that it says it captures.
_STEPS_BEFORE_CAPTURE = 32
#: A script that has called its outermost module so often and made no optimizer has none.
_CALLS_WITHOUT = 16


def begin() -> None:
    """Run what follows in this process on tensors without data, as the settings in the environment say."""
    settings = EmulationSettings.here()
    launcher, _ = launcher_in(sys.orig_argv)
    if launcher is not None and launcher.by_torch:
        groups.become_script(settings)
        return
    process = _Emulation(settings)
    atexit.register(process.ended_early)
    process.open()


class _Emulation:
    """One emulated process: counts steps, records some of them, then writes its record and ends the script."""

    def __init__(self, settings: EmulationSettings) -> None:
        device = settings.device
        self._settings, self._folder = settings, os.getcwd()  # noqa: PTH109
        self._journal = Journal()
        self._streams, self._owners = Streams(self._journal), Owners()
        self._allocator = allocator_of(device)
        self._storages = Storages(self._journal, self._allocator, self._owners, self._streams, "cpu" if device.is_cpu else "cuda")
        self._owners.find = self._storages.find
        self._graphs = Graphs(self._journal, self._streams)
        self._graphs.begins, self._graphs.ends, self._graphs.step = self._warms_up, self._is_warm, self.step
        self._mode = Emulation(self._journal, self._storages, self._streams, "cpu" if device.is_cpu else "cuda", device.workspace)
        self._graphs.again = self._mode.exchanges.again
        self._groups = groups.Groups(settings)
        self._process, self._ended = os.getpid(), ""  # and how the script ended itself
        self._done = self._calls = 0
        self._places: list[tuple[int, str]] = []  # the optimizer that stepped first, and the line of the script that let it
        self._recorded: record.Process | None = None
        options = experimental_config(torch, ("capture_overload_names",))
        self._config = ProfilerConfig(ProfilerState.KINETO, True, False, False, False, False, options)
        self._library = torch.library.Library("aten", "IMPL")

    def open(self) -> None:
        """Take over torch, and begin to count steps."""
        logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # what it cannot run is tried and done otherwise
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # which frameworks do to compare tensors
        for patch, *given in self._patches():
            patch(*given)
        self._mode.__enter__()
        self._is_warm()

    def _patches(self) -> Iterator[tuple[Any, ...]]:
        """All that is changed in torch and in Python, in order: a function, and what it is given."""
        settings, journal, mode, owners = self._settings, self._journal, self._mode, self._owners
        if not settings.device.is_cpu:
            yield cuda.pretend, settings, self._streams, DeviceMemory(self._allocator, settings, journal), self._graphs
            yield by_device.call_device_kernels, self._library, mode
            yield by_device.launch_as_operators, settings.device
        yield torch_functions.parameters, mode
        yield torch_functions.values, mode
        yield torch_functions.higher_order, journal, mode
        yield checkpoints.saving, journal, mode
        if settings.device.is_amd:
            message = "operators have the names of NVIDIA's libraries, whose place hipBLASLt and MIOpen take there"
            journal.assume("names-of-nvidia", message)
        if settings.random_weights:
            yield checkpoints.random_weights, journal
        yield torch_functions.profilers, journal, self._profiled
        yield torch_functions.loaders, journal, mode
        yield (self._storages.follow,)
        yield (self._watch_endings,)
        yield OUTSIDE.tell, journal.assume
        if torch.distributed.is_available():
            yield self._groups.make_fakes, mode.exchanges
        if settings.world > 1:
            yield groups.pass_on_shapes, settings, journal
        yield (mode.compiled.take_over,)
        yield watch_modules, journal, owners
        yield groups.start_here, settings
        yield (self._count_steps,)
        yield owners.watch_backward, self._storages.use_all

    def _count_steps(self) -> None:
        """Let steps be counted. The end of `Optimizer.step` is meant, rather than its hook, so that the row of the call is complete."""
        from torch.optim.optimizer import Optimizer

        owners, ended_by = self._owners, self._settings.ended_by
        MARKED.append(self.step if ended_by is StepEnd.MARK else lambda: self._begin_anew(StepEnd.MARK))
        owners.after_call = self.step if ended_by is StepEnd.MODULE else self._called
        before = Optimizer.profile_hook_step

        def with_end(function: Any) -> Any:
            if ended_by is not StepEnd.MODULE:
                owners.after_call = lambda: None  # an optimizer is being made
            stepped = before(function)

            @functools.wraps(stepped)
            def wrapper(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
                owners.step_begins(optimizer)
                try:
                    out = stepped(optimizer, *args, **kwargs)
                finally:
                    owners.step_ends(optimizer)
                if self._ends_step((id(optimizer), line_of_script())) and ended_by is StepEnd.OPTIMIZER:
                    owners.outside_backward(self.step)
                return out

            return wrapper

        TORCH.put(Optimizer, "profile_hook_step", staticmethod(with_end))

    def _ends_step(self, place: tuple[int, str]) -> bool:
        """Whether a step ends where an optimizer was let step: the first one, and where that is done at several lines, as for a loss and
        every now and then for another, at the first of them. Another line takes its place that comes twice in a row."""
        first, newest = self._places[:1] or [place], self._places[-1:]
        if place[0] != first[0][0]:
            return False
        self._places = [place] if place in (first[0], *newest) else [*first, place]
        return len(self._places) == 1

    def _called(self) -> None:
        """The outermost module was called, and no optimizer has been made: a script without one may never end to say so."""
        self._calls += 1
        if self._calls == _CALLS_WITHOUT and self._settings.ended_by is StepEnd.OPTIMIZER:
            self._begin_anew(StepEnd.MODULE)

    def _profiled(self, is_over: bool) -> None:
        """The script's own profiler is told that a step has ended, or has a schedule and will be; it counts where there is no optimizer."""
        if self._settings.ended_by is StepEnd.MODULE or (is_over and self._settings.ended_by is StepEnd.MARK):
            marked()

    def _begin_anew(self, ended_by: StepEnd) -> NoReturn:
        """Run the script again, the steps of which end so."""
        OUTSIDE.take_back()
        os.chdir(self._folder)
        sys.stdout.flush()
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **replace(self._settings, ended_by=ended_by).environment()})

    def step(self) -> None:
        """A step has ended."""
        if self._graphs.is_captured():
            return
        self._done += 1
        self._journal.reads = 0
        if self._journal.is_on:
            self._journal.add(StepNote(self._done - 1))
        if self._done == self._settings.warmup:
            self._start()
        elif self._done == self._settings.warmup + self._settings.steps:
            if self._settings.ended_by is StepEnd.OPTIMIZER and says(MARKS_STEPS):
                self._begin_anew(StepEnd.MARK)
            self._finish()
        elif self._recorded is not None and self._done == self._settings.warmup + self._settings.steps + _STEPS_BEFORE_CAPTURE:
            self._leave_record(self._recorded)

    def _start(self) -> None:
        activities = {ProfilerActivity.CPU}
        torch.autograd._prepare_profiler(self._config, activities)
        torch.autograd._enable_profiler(self._config, activities)
        self._journal.is_on = True

    def _warms_up(self) -> None:
        """A graph is captured: what was recorded before is how the script warms up for it."""
        if self._journal.is_on:
            self._stop()
        self._journal.restart()
        self._recorded, self._done = None, 0

    def _is_warm(self) -> None:
        if self._settings.warmup == 0:
            self._start()

    def _stop(self) -> Any:
        self._journal.is_on = False
        return torch.autograd._disable_profiler()

    def _finish(self) -> None:
        profile = self._stop()
        settings = self._settings
        self._recorded = record.Process(
            rank=settings.rank, world=settings.world, accelerator=settings.device.cluster, torch=str(torch.__version__), threads=[],
            operators=[], groups=self._groups.made, notes=list(self._journal.assumed.values()), owners=list(self._owners.all()),
            modules=self._owners.marked, room=settings.device.room, lines=list(self._journal.lines), graphs=self._journal.graphs,
            ended_by=settings.ended_by,
        )  # fmt: skip
        put_together(profile, self._journal, self._storages, self._recorded)
        if self._graphs.steps or not says(CAPTURES):
            self._leave_record(self._recorded)

    def _leave_record(self, recorded: record.Process) -> None:
        OUTSIDE.take_back()
        record.write_record(recorded, Path(self._settings.file))
        leave(0)

    def fail(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        """The script raised an exception: say which of its lines, and what it met; below that, where the exception came through."""
        del kind
        message = script.script_error(error, line_of_error(trace), self._storages.held())
        self._say("\n".join((message, *frames_of_error(trace))))
        # a rank that runs beside rank 0 does not find what that one writes first
        waits = isinstance(error, groups.StageWaitsError) or (isinstance(error, OSError) and not self._settings.patience_s)
        leave(WAITS if waits else FULL if script.FULL_DEVICE in str(error) else 1)

    def ended_early(self) -> None:
        """The script ended before enough steps."""
        if os.getpid() != self._process or Path(self._settings.file).exists():  # of a process that this one started
            return
        if self._recorded is not None:
            self._leave_record(self._recorded)
        if not self._done and self._settings.ended_by is StepEnd.OPTIMIZER:
            self._begin_anew(StepEnd.MODULE)
        needed = self._settings.warmup + self._settings.steps
        self._say(script.too_early(self._done, needed, self._ended, self._journal.assumed.values()))
        leave(1)

    def _watch_endings(self) -> None:
        """Notice where the script ends itself, or an exception does, in threads too, which run in the mode, as torch keeps it for each."""
        sys.excepthook = self.fail
        threading.excepthook = self._fail_in_thread
        signal.signal(WHERE, lambda _, frame: self._say(line_of_script(frame)))

        @TORCH.around(threading.Thread, "_bootstrap_inner")
        def in_mode(begin: Any, thread: threading.Thread) -> None:
            with self._mode:
                begin(thread)

        @TORCH.around(sys, "exit")
        def exit_(ending: Any, *status: Any) -> None:
            self._ended = f", by sys.exit at {line_of_script()}"
            ending(*status)

        @TORCH.around(os, "_exit")
        def exit_at_once(ending: Any, status: int) -> None:
            self._ended = f", by os._exit at {line_of_script()}"
            self.ended_early()
            ending(status)

    def _fail_in_thread(self, error: Any) -> None:
        """An exception that a line of the script raised in a thread ends the emulation: others may wait for that thread for ever."""
        if os.getpid() == self._process and line_of_error(error.exc_traceback):
            self.fail(error.exc_type, error.exc_value, error.exc_traceback)
        threading.__excepthook__(error)

    def _say(self, message: str) -> None:
        OUTSIDE.take_back()
        record.write_whole(Path(self._settings.file).with_suffix(".error"), message.encode())
