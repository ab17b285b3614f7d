"""Run a generated benchmark in processes of its own, and read its results.

It runs with the Python interpreter that runs Lumos, which must have torch. `benchmark.py` by itself can run with any other.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lumos.errors import LumosError
from lumos.extras import install


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
    count = processes or default_processes(trace)
    with tempfile.TemporaryDirectory() as results:
        command = [sys.executable, str(script), "--json", results, *options]
        _start(command, count, str(folder))
        files = [Path(results) / f"result{rank}.json" for rank in range(count)]
        ranks = [json.loads(path.read_text()) for path in files if path.is_file()]
    if len(ranks) != count:
        raise LumosError(f"{folder}: {count - len(ranks)} of {count} processes left no result; see what they printed above")
    return {**ranks[0], "ranks": ranks}


def default_processes(trace: Path) -> int:
    """One process for each rank if all ranks of the job were recorded; else one process, in which spins replace transfers."""
    try:
        content = json.loads(trace.read_text())
        ranks, world = len(content["ranks"]), int(content["world_size"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise LumosError(f"{trace}: not a benchmark's trace.json ({error}); generate it again") from error
    return ranks if ranks == world else 1


def _start(command: list[str], count: int, folder: str) -> None:
    """Start the processes as torchrun would, and wait for them. Their standard output is discarded, their errors are shown.

    Each has a session of its own, so that Ctrl-C in the terminal reaches this process alone, which then ends them.
    """
    environment = dict(os.environ)
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
