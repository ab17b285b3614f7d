"""How reading the files of many ranks grows with the workers of a Ray cluster: benchmarks/results/read-workers.md.

    LUMOS_TRACES=... python -m benchmarks.read_workers        needs Ray (extra `distributed`)

A public trace, repeated, is the file of every rank. A worker reads a file and hands its columns over through the object store. Each
number of workers is timed several times, in turn with the other, and its fastest reading counts, because what else the machine does can
only make one slower. On a busy machine two workers also get twice the share of one; so the table says how busy it was, compares only where
it was quiet, and gives the processor time of the command, which joins the columns alone and is what does not grow. For a search the same is
measured by `python -m benchmarks.search workers`.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.ingest import repeat_events
from tools.document import markdown_table
from tools.figures import write_result

from lumos.trace import read

#: The public trace, ranks that each have it, bytes of JSON of each, and readings of each number of workers.
SOURCE, RANKS, LONG, ROUNDS = Path("dlrm-a100-rank3", "rank3.json.gz"), 8, 80_000_000, 2


#: Other processes that want the cores, from which on the readings say what the others did, not how reading grows.
QUIET = 1.0


class Reading(NamedTuple):
    """Seconds on the clock, and of processor time of the command that the workers read for."""

    wall_s: float
    command_s: float


def main() -> int:
    write_result("benchmarks/results/read-workers.md", table())
    return 0


def table() -> str:
    """Seconds of one worker and of two."""
    load = os.getloadavg()[0]
    if not (folder := os.environ.get("LUMOS_TRACES")):
        raise SystemExit("set LUMOS_TRACES to the folder of public traces")
    spans: dict[int, list[Reading]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as scratch:
        _write_ranks(Path(folder) / SOURCE, Path(scratch))
        for _ in range(ROUNDS):
            for count, found in spans.items():
                found.append(_reading(Path(scratch), count))
    best = {count: min(found) for count, found in spans.items()}
    rows = []
    for count, one in best.items():
        ratio = f"{best[1].wall_s / one.wall_s:.2f}" if load < QUIET else "–"
        rows.append((f"{count}", f"{one.wall_s:.1f}", f"{max(spans[count]).wall_s:.1f}", ratio, f"{one.command_s:.2f}"))
    return (
        f"Written by `python -m benchmarks.read_workers`. {RANKS} files of {LONG / 1e6:.0f} MB of JSON each ({SOURCE.parent}, repeated),"
        f" read on Ray workers of one processor each, on a machine of {os.cpu_count()} cores, which the workers share with the command"
        f" that joins their columns; {ROUNDS} readings each, in turn, while {load:.0f} other processes wanted the cores (a ratio"
        " is given where fewer than one did):\n\n"
        + markdown_table(("workers", "fastest, s", "slowest, s", "times as fast", "the command's own CPU, s"), rows)
    )


def _write_ranks(source: Path, folder: Path) -> None:
    """A file for every rank, all alike; the rank is in the file's name alone."""
    unmarked = folder / "unmarked.json.gz"
    text = gzip.decompress(source.read_bytes()).decode()
    unmarked.write_bytes(gzip.compress(re.sub(r'"distributedInfo": *\{', '"otherInfo": {', text, count=1).encode(), 1))
    first = folder / "rank0.json.gz"
    repeat_events(unmarked, first, LONG)
    unmarked.unlink()
    for rank in range(1, RANKS):
        shutil.copyfile(first, folder / f"rank{rank}.json.gz")


def _reading(folder: Path, workers: int) -> Reading:
    """How long a cluster of so many workers, which have been started, takes to read the files."""
    import ray

    ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)
    try:
        read(*(folder / f"rank{rank}.json.gz" for rank in range(workers)), engine="ray")
        began, cpu = time.perf_counter(), time.process_time()
        found = read(folder, engine="ray")
        taken = Reading(time.perf_counter() - began, time.process_time() - cpu)
    finally:
        ray.shutdown()
    assert len(found.traces) == RANKS
    return taken


if __name__ == "__main__":
    sys.exit(main())
