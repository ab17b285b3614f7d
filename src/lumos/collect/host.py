"""What a process got of its machine in each recorded step, as one row a step in the header of the trace.

The profiler's rows show how long an operator was open, not whether a processor ran it. The kernel keeps the difference for every thread
(proc_pid_schedstat(5)): the time that it ran, and the time that it was ready to run and had to wait for a processor. A process with too few
cores, too small a quota or busy neighbours waits so. Of the threads, those that had run most when the window began are followed: the one
that trains, that of the backward pass, those of libraries. Reading all takes some 40 µs a step. What a system does not tell is left out.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    import resource
except ImportError:  # no POSIX system
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The threads of the process; each has a file with the ns that it ran, and the ns that it was ready to run and no processor did so.
_THREADS = Path("/proc/self/task")
#: How many threads are followed.
MOST_THREADS = 8
#: The control groups of the process, and where those are mounted.
_GROUPS, _MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


class HostRows:
    """The rows of the steps that have ended."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._limits = _limits()
        self._files: dict[str, int] = {}
        self._before = self._now()

    def begin(self) -> None:
        """The first recorded step begins here."""
        self._files = _most_running()
        self._before = self._now()

    def end(self, step: int) -> None:
        """The step of that number ends here, and the next begins."""
        now = self._now()
        self.rows.append({"step": step, **_difference(now, self._before), **self._limits})
        self._before = now

    def close(self) -> None:
        """No further step is recorded."""
        for file in self._files.values():
            os.close(file)
        self._files = {}

    def _now(self) -> dict[str, Any]:
        """What the process got up to now, times in ns; `ran_ns` and `waited_ns` by thread."""
        out: dict[str, Any] = {"wall_ns": time.perf_counter_ns(), "ran_ns": {}, "waited_ns": {}}
        if resource is not None:
            used = resource.getrusage(resource.RUSAGE_SELF)
            out |= {"user_ns": round(1e9 * used.ru_utime), "system_ns": round(1e9 * used.ru_stime), "minor_faults": used.ru_minflt}
            out |= {"major_faults": used.ru_majflt, "voluntary_switches": used.ru_nvcsw, "involuntary_switches": used.ru_nivcsw}
        for thread, file in self._files.items():
            with suppress(OSError, ValueError):  # a thread that has ended
                out["ran_ns"][thread], out["waited_ns"][thread], _ = map(int, os.pread(file, 99, 0).split())
        return out


def _difference(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    return {key: _difference(x, before[key]) if isinstance(x, dict) else x - before[key] for key, x in now.items()}


def _most_running() -> dict[str, int]:
    """The open files of the threads that have run most so far, by the number of the thread."""
    with suppress(OSError, IndexError):  # another system, or a thread that ends just now
        ran = {folder.name: int(_words(folder / "schedstat")[0]) for folder in _THREADS.iterdir()}
        most = sorted(ran, key=lambda thread: -ran[thread])[:MOST_THREADS]
        return {thread: os.open(_THREADS / thread / "schedstat", os.O_RDONLY) for thread in most}
    return {}


def _limits() -> dict[str, float]:
    """How many processors the process may use, by its affinity and by the quotas of its control group and of those around that."""
    out: dict[str, float] = {"cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1}
    quotas = list(_quotas())
    return {**out, "quota_cores": min(quotas)} if quotas else out


def _quotas() -> Iterator[float]:
    """Processor time over time that each control group of the process may use, of version 1 and 2; of those that say so."""
    for line in _lines(_GROUPS):
        _, controllers, path = line.split(":", 2)
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        if not controllers or "cpu" in controllers.split(","):
            group = _MOUNTED / ("cpu" if controllers else "") / path.strip("/")
            for folder in (group, *group.parents):
                told = [word for file in files for word in _words(folder / file)]
                if len(told) == 2 and told[0].isdigit():  # "max" or -1 for none
                    yield int(told[0]) / int(told[1])


def _lines(file: Path) -> list[str]:
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    return []


def _words(file: Path) -> list[str]:
    return [word for line in _lines(file) for word in line.split()]
