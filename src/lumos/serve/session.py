"""The state of the explorer: the job that it was started with, and the job's report.

The paths of the job are given once, on the command line; nothing in a request names a file. The job is read in a thread of its own, so
that others can ask how far that is, and cancel it.
"""

import shlex
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from lumos.analyze.ranks.equal_work import equal_work
from lumos.changes.changes import Changes
from lumos.characters import is_whole
from lumos.errors import LumosError, UsageError
from lumos.findings.case import options
from lumos.graph.build import build
from lumos.graph.table import Kind
from lumos.reports.page.document import ReportedJob, document, what_if
from lumos.reports.page.timeline_levels import Limits
from lumos.result import plain
from lumos.simulation import simulate
from lumos.trace import read

#: The largest timeline that is sent to a browser on the same machine.
LIMITS = Limits(cells=3_000_000, tasks=4_000_000)
#: How many names the page suggests as patterns.
SUGGESTIONS = 200


_Answer = TypeVar("_Answer")

#: Called by the work with what it is doing, how much of that is done, and out of how much. Raises CancelledError if it is to stop.
Progressing = Callable[[str, int, int], None]


class CancelledError(Exception):
    """The work was asked to stop."""


def fault_of(error: BaseException) -> str:
    """What the page shows of an error that no part of Lumos foresaw."""
    return f"{type(error).__name__}: {error}; this is a fault of Lumos, please report it"


class BackgroundWork(Generic[_Answer]):
    """Runs `call(report)` in a thread. Once cancelled, it stops at the next call of `report`."""

    def __init__(self, call: Callable[[Progressing], _Answer]) -> None:
        self._call = call
        self._stop = threading.Event()
        self._progress: tuple[str, int, int] = ("starting", 0, 0)
        self._answer: Future[_Answer] = Future()
        threading.Thread(target=self._run, daemon=True, name="lumos-work").start()

    @property
    def state(self) -> Literal["running", "done", "failed", "cancelled"]:
        """Whether the work runs, or how it ended."""
        if not self._answer.done():
            return "running"
        error = self._answer.exception()
        return "done" if error is None else "cancelled" if isinstance(error, CancelledError) else "failed"

    @property
    def result(self) -> _Answer:
        """What the call returned. Valid only in the state "done"."""
        return self._answer.result()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the work has ended. Returns False where that takes longer than `seconds`."""
        return not wait((self._answer,), seconds).not_done

    def cancel(self) -> None:
        """Ask the work to stop; it does so where it next says how far it is."""
        self._stop.set()

    def status(self) -> dict[str, Any]:
        """The state and the progress, ready for JSON."""
        what, done, total = self._progress
        state = self.state
        error = self._answer.exception() if state == "failed" else None
        said = "" if error is None else str(error) if isinstance(error, LumosError) else fault_of(error)
        return {"state": state, "doing": what, "done": done, "total": total, "error": said}

    def _report(self, what: str, done: int, total: int) -> None:
        if self._stop.is_set():
            raise CancelledError
        self._progress = (what, done, total)

    def _run(self) -> None:
        try:
            self._answer.set_result(self._call(self._report))
        except BaseException as error:
            self._answer.set_exception(error)
            if not isinstance(error, LumosError | CancelledError):
                raise


@dataclass(frozen=True)
class Loaded:
    """The job after it was read: its report, and the figures that many requests need."""

    recording: ReportedJob
    document: dict[str, Any]
    drawings: dict[str, dict[str, Any]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def drawing(self, step: str) -> dict[str, Any]:
        """The timeline of a step as the page draws it. Raises UsageError where the job has no such step."""
        if step not in self.recording.steps:
            raise UsageError(f"the job has no step {step!r}; it has {', '.join(self.recording.steps)}")
        with self.lock:
            if step not in self.drawings:
                self.drawings[step] = self.recording.drawing(step, LIMITS)
            return self.drawings[step]

    def names(self) -> list[dict[str, Any]]:
        """The names of tasks that take most time over the job, as patterns to suggest, each with its class and its time in ns."""
        graph, works = self.recording.graph, equal_work(self.recording.graph, self.recording.membership, self.recording.job)
        tasks = np.flatnonzero((graph.kind != Kind.RETURN) & (graph.kind != Kind.HOST))
        total = np.bincount(graph.name[tasks], graph.duration[tasks], len(graph.names)).astype(np.int64)
        label = np.zeros(len(graph.names), np.int64)
        label[graph.name[tasks]] = works.label[tasks]
        order = [i for i in np.argsort(-total, kind="stable")[:SUGGESTIONS].tolist() if total[i]]
        return [{"name": plain(graph.names[i]), "class": works.labels[label[i]], "time_ns": int(total[i])} for i in order]

    def whatif(self, changes: Changes, *, moved: bool) -> dict[str, Any]:
        """What the changes do to the job's step, with the keys of `lumos whatif --json`; of the plan or the model always with `moved`."""
        began = time.perf_counter()
        answer = what_if(self.recording, changes, moved=moved)
        return {**answer, "seconds_s": time.perf_counter() - began}


class Session:
    """The explorer's state: the job, which is read in the background."""

    def __init__(self, paths: Sequence[str], *, repair: bool = False, force: bool = False) -> None:
        self.paths = tuple(paths)
        self.force = force
        self._repair = repair
        self._lock = threading.Lock()
        self.loading = BackgroundWork(self._load)

    def reload(self) -> None:
        """Read the job again, after it was cancelled or failed."""
        with self._lock:
            if self.loading.state in ("failed", "cancelled"):
                self.loading = BackgroundWork(self._load)

    def equivalents(self, changes: Changes) -> dict[str, str]:
        """The command and the program with the same answer."""
        how = {"command": command_line, "python": python_code}
        return {key: of(self.paths, changes, force=self.force) for key, of in how.items()}

    def _load(self, report: Progressing) -> Loaded:
        job = read(*self.paths, repair=self._repair, progress=lambda done, total: report("reading", done, total))
        report("building the graph", 0, 0)
        graph = build(job)
        report("simulating", 0, 0)
        recording = ReportedJob(job, graph, simulate(graph), self.force)
        report("analysing", 0, 0)
        content = document(recording, command=["lumos", "serve", *map(shlex.quote, self.paths)], timeline=False)
        report("analysing", 1, 1)
        return Loaded(recording, content)


def command_line(paths: Sequence[str], changes: Changes, *, force: bool = False) -> str:
    """The `lumos whatif` command with the same answer."""
    return f"lumos whatif {shlex.join(paths)} {options(changes, force=force)}".rstrip()


def python_code(paths: Sequence[str], changes: Changes, *, force: bool = False) -> str:
    """A Python program with the same answer."""
    durations = changes.durations
    network = [pair.partition("=") for several in changes.network for pair in several.split(",")]
    in_python = {
        "base": dict(changes.base),
        "scale": {s.glob: str(s.like) if s.like else s.factor for s in durations.scales},
        "rank_slowdown": dict(durations.slow),
        "network": {key.strip(): float(factor.strip().removeprefix("x")) for key, _, factor in network},
    }
    settings = {key: int(value) if is_whole(value) else value for key, value in changes.settings.items()}
    others = {key: in_python.get(key, value) for key, value in changes.words.items() if key != "set"}
    files = paths[0] if len(paths) == 1 else list(paths)
    arguments = "".join(f", {key}={value!r}" for key, value in {**settings, **others, **({"force": True} if force else {})}.items())
    return f"import lumos\n\nprint(lumos.whatif({files!r}{arguments}).outcome.step_time_s)\n"
