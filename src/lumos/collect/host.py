"""What a process got of its machine in each recorded step, as one row a step in the header of the trace.

The profiler's rows show how long an operator was open, not whether a processor ran it. The kernel keeps the difference for every thread
(proc_pid_schedstat(5)): the time that it ran, and the time that it was ready to run and had to wait for a processor. A process with too few
cores, too small a quota or busy neighbours waits so. Reading all takes some 30 µs a step. What a system does not tell is left out.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

try:
    import resource
except ImportError:  # no POSIX system
    resource = None  # type: ignore[assignment]

#: Of the thread that reads it: ns that it ran, and ns that it was ready to run and no processor did so.
_OWN_THREAD = "/proc/thread-self/schedstat"
#: How much processor time the process's control group may use, and in which time: version 2, and version 1.
_QUOTAS = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))


class HostRows:
    """The rows of the steps that have ended."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self._limits = _limits()
        self._before = _now()

    def begin(self) -> None:
        """A step begins here."""
        self._before = _now()

    def end(self, step: int) -> None:
        """The step of that number ends here, and the next begins."""
        now, before = _now(), self._before
        self.rows.append({"step": step, **{key: now[key] - before[key] for key in now if key in before}, **self._limits})
        self._before = now


def _now() -> dict[str, int]:
    """What the process got up to now, times in ns: `ran_ns` and `waited_ns` are of the thread that asks, all else of the process."""
    out = {"wall_ns": time.perf_counter_ns()}
    if resource is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        out |= {"user_ns": round(1e9 * used.ru_utime), "system_ns": round(1e9 * used.ru_stime), "minor_faults": used.ru_minflt}
        out |= {"major_faults": used.ru_majflt, "voluntary_switches": used.ru_nvcsw, "involuntary_switches": used.ru_nivcsw}
    told = _words(_OWN_THREAD)
    return {**out, "ran_ns": int(told[0]), "waited_ns": int(told[1])} if len(told) >= 2 else out


def _limits() -> dict[str, float]:
    """How many processors the process may use, by its affinity and by the quota of its control group."""
    out: dict[str, float] = {"cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1}
    for files in _QUOTAS:
        told = [word for file in files for word in _words(f"/sys/fs/cgroup/{file}")]
        if len(told) == 2 and told[0].isdigit():  # "max" or -1 for none
            out["quota_cores"] = int(told[0]) / int(told[1])
    return out


def _words(file: str) -> list[str]:
    try:
        return Path(file).read_text(encoding="ascii").split()
    except OSError:
        return []
