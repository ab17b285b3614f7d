"""Run a generated benchmark in processes of its own, and read its results.

It runs with the Python interpreter that runs Lumos, which must have torch. `benchmark.py` by itself can run with any other.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from lumos.errors import LumosError
from lumos.extras import install

#: What an operator comes to: it ran, a spin took its time, or nothing took its place.
_OUTCOMES = ("real", "stand_in", "skipped")


def run_benchmark(folder: str | os.PathLike[str], processes: int | None = None, options: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run the benchmark in `folder` and return the result of its first rank, with those of all ranks under `ranks`.

    processes: one for each rank (default: as many as trace.json has ranks if these are all ranks of the job, else one).
    options: passed on to benchmark.py. Raises LumosError where the folder has no benchmark, torch is not installed, or the
    run failed.
    """
    script = Path(folder) / "benchmark.py"
    trace = Path(folder) / "trace.json"
    if not script.is_file() or not trace.is_file():
        raise LumosError(f"{folder}: holds no benchmark.py and trace.json; make them with lumos proxy generate TRACE -o {folder}")
    if importlib.util.find_spec("torch") is None:
        raise LumosError(f"a proxy benchmark runs torch operators, and torch is not installed: {install('torch')}")
    content = _content(trace)
    world = content["world_size"]
    count = processes or (world if len(content["ranks"]) == world else 1)  # else spins replace transfers
    with tempfile.TemporaryDirectory() as results:
        command = [sys.executable, str(script), "--json", results, *options]
        _start(command, count, str(folder), content["ranks"][0]["malloc"])
        files = [Path(results) / f"result{rank}.json" for rank in range(count)]
        ranks = [_reported(json.loads(path.read_text()), content, count) for path in files if path.is_file()]
    if len(ranks) != count:
        raise LumosError(f"{folder}: {count - len(ranks)} of {count} processes left no result; see what they printed above")
    return {**ranks[0], "ranks": ranks}


def _content(trace: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(trace.read_text())
        _ = int(content["world_size"]), content["ranks"][0]["malloc"]
    except (ValueError, LookupError, TypeError, OSError) as error:
        raise LumosError(f"{trace}: not a benchmark's trace.json ({error}); generate it again") from error
    return content


def _reported(run: dict[str, Any], content: dict[str, Any], processes: int) -> dict[str, Any]:
    """The result of one process: its step beside the recorded one, and what ran of what was recorded."""
    times, recorded, replayed = run["repetitions_ns"], run.pop("recorded_ns"), int(statistics.median(run["repetitions_ns"]))
    rank = next(rank for rank in content["ranks"] if rank["rank"] == run["rank"])
    items, on_gpu = run.pop("items"), run.pop("on_gpu")
    comparable = recorded > 0 and rank["on_accelerator"] == on_gpu and run["mode"] == "full" and processes <= content["world_size"]
    busy = sum(item["replayed_ns"] for item in items if item["role"] == "real")
    return run | {
        "recorded_ranks": content["world_size"],
        "recorded_step_ns": recorded if recorded > 0 else None,
        "replayed_step_ns": replayed,
        "error": (replayed - recorded) / recorded if comparable else None,
        "utilization": None if on_gpu else busy * len(times) / sum(times),
        **_coverage(items),
    }


def _coverage(items: list[dict[str, Any]]) -> dict[str, Any]:
    """Shares of operators, and of their recorded time, that ran for real, were replaced by stand-ins, or were skipped."""
    count, spent = dict.fromkeys(_OUTCOMES, 0), dict.fromkeys(_OUTCOMES, 0)
    rows: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for item in items:
        outcome = item["outcome"]
        count[outcome] += 1
        spent[outcome] += item["recorded_ns"]
        row = rows[outcome, item["name"], item["reason"]]
        row[:] = row[0] + 1, row[1] + item["recorded_ns"], row[2] + item["replayed_ns"]
    ordered = sorted(rows.items(), key=lambda entry: -entry[1][1])
    return {
        "coverage": _shares(spent if any(spent.values()) else count),
        "coverage_of_operators": _shares(count),
        "operators": count,
        "not_real": [
            {"outcome": outcome, "name": name, "reason": reason, "count": n, "recorded_ns": was}
            for (outcome, name, reason), (n, was, _) in ordered
            if outcome != "real"
        ],
        "by_class": [
            {"name": name, "count": n, "recorded_ns": was, "replayed_ns": now}
            for (outcome, name, _), (n, was, now) in ordered
            if outcome == "real"
        ],
    }


def _shares(parts: dict[str, int]) -> dict[str, float | None]:
    total = sum(parts.values())
    return {name: part / total if total else None for name, part in parts.items()}


def _start(command: list[str], count: int, folder: str, malloc: dict[str, str]) -> None:
    """Start the processes as torchrun would, and wait for them. Their standard output is discarded, their errors are shown.

    Each has a session of its own, so that Ctrl-C in the terminal reaches this process alone, which then ends them. malloc: the recording's
    settings of glibc, which affect the cost of new memory and are read only at the start of a process.
    """
    environment = {**malloc, **os.environ}
    if count > 1:
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(count)}
    started = []
    try:
        for rank in range(count):
            own = environment | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if count > 1 else {})
            started.append(subprocess.Popen(command, env=own, stdout=subprocess.DEVNULL, start_new_session=True))
        failed = [status for process in started if (status := process.wait())]
    except KeyboardInterrupt:
        for process in started:
            process.kill()
            process.wait()
        raise
    if failed:
        raise LumosError(f"{folder}: the benchmark ended with status {failed[0]}; what it printed above says why")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
