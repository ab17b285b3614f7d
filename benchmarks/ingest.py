"""From files to columns: benchmarks/results/ingest.md.

    LUMOS_TRACES=... python -m benchmarks.ingest

Public traces, and one of them repeated to 310 MB of JSON, read by `lumos.read` and by its peers: `json` and `orjson` (which
only parse), and HolisticTraceAnalysis in a virtual environment of its own. Every reading is a process of its own, so that
its peak memory is its own. HolisticTraceAnalysis reads the recording without repetition, because it needs minutes for the
long one; rates are compared.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import venv
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tools.document import markdown_table
from tools.figures import write_result

#: Bytes of JSON that the repeated recording reaches.
LONG = 310_000_000
#: (recording, its file) read as they are; the first is also repeated.
PUBLIC = (
    ("dlrm-a100-rank3", "rank3.json.gz"),
    ("resnet-ddp-a100", "rank0.json.gz"),
    ("resnet-ddp-mi300x", "rank0.json.gz"),
    ("h100-inference", "qwen1.5-0.5b.json.gz"),
)
SECONDS_ALLOWED = 120

#: Each reads the file named on its command line, between the two marks of MEASURE; `held` is what the result itself holds.
READ = {
    "lumos": ("import lumos.trace", "held = lumos.trace.read(path).traces[0].nbytes"),
    "json": ("import gzip, json", "document = json.loads(gzip.open(path).read()); held = 0"),
    "orjson": ("import gzip, orjson", "document = orjson.loads(gzip.open(path).read()); held = 0"),
    "HolisticTraceAnalysis": (
        "from hta.common.trace import Trace",
        "trace = Trace(trace_files={0: path}, trace_dir='/'); trace.parse_traces(use_multiprocessing=False); held = 0",
    ),
}
MEASURE = """
import json as _json, resource, sys, time
{prepare}
path = sys.argv[1]
def peak():  # on Linux not ru_maxrss, which a process inherits from the one that started it
    try:
        return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:")) * 1024
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before, began, cpu = peak(), time.perf_counter(), time.process_time()
{read}
print(); print(_json.dumps([time.perf_counter() - began, time.process_time() - cpu, peak() - before, held]))
"""


class Reading(NamedTuple):
    wall_s: float
    cpu_s: float
    peak_bytes: int
    held_bytes: int


def main() -> int:
    write_result("benchmarks/results/ingest.md", table())
    return 0


def table() -> str:
    """One row a recording and reader: rate in MB of JSON a second of CPU time (Lumos: best of three), peak memory, Lumos / reader."""
    folder = os.environ.get("LUMOS_TRACES")
    if not folder:
        raise SystemExit("set LUMOS_TRACES to the folder of public traces")
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as scratch:
        peer = _hta_python(Path(scratch) / "hta")
        for name, file in PUBLIC:
            rows += _compare(name, Path(folder) / name / file, peer, None)
        name, file = PUBLIC[0]
        long = Path(scratch) / "rank0.json.gz"
        repeat_events(Path(folder) / name / file, long, LONG)
        rows += _compare(f"{name}, repeated", long, peer, Path(folder) / name / file)
    return (
        "Written by `python -m benchmarks.ingest` with `LUMOS_TRACES` set. Gzip files; MB of JSON per second of CPU time of"
        " all threads, Lumos best of three; peak memory above that of the imports, and the part of it beyond the columns. To reach:"
        " 500 MB/s, 64 MB beyond the columns, 60 × HolisticTraceAnalysis. `json` and `orjson` only parse. HolisticTraceAnalysis"
        " reads the recording without repetition.\n\n"
        + markdown_table(("recording", "JSON", "reader", "time", "rate", "Lumos is", "peak", "beyond columns"), rows)
    )


def _compare(name: str, path: Path, hta: Path | None, for_hta: Path | None) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    size = _unpacked(path)
    own = 0.0
    for reader in READ:
        python = hta if reader == "HolisticTraceAnalysis" else Path(sys.executable)
        subject = for_hta if for_hta and reader == "HolisticTraceAnalysis" else path
        repeats = 3 if reader == "lumos" else 1
        found = [_read(python, reader, subject) for _ in range(repeats)] if python else []
        readings = [r for r in found if r is not None]
        if not readings:
            rows.append((name, f"{size / 1e6:.0f} MB", reader, "–", "–", "–", "–", "–"))
            continue
        best = min(readings, key=lambda r: r.cpu_s)
        rate = (size if subject is path else _unpacked(subject)) / best.cpu_s
        own = own or rate
        beyond = f"{(best.peak_bytes - best.held_bytes) / 1e6:.0f} MB" if best.held_bytes else "–"
        ratio = "1" if reader == "lumos" else f"{own / rate:.1f} ×"
        rows.append(
            (
                name,
                f"{size / 1e6:.0f} MB",
                reader,
                f"{best.wall_s:.2f} s",
                f"{rate / 1e6:.0f} MB/s",
                ratio,
                f"{best.peak_bytes / 1e6:.0f} MB",
                beyond,
            )
        )
    return rows


def _read(python: Path, reader: str, path: Path) -> Reading | None:
    """One reading in a process of its own; None where the reader is not installed or takes too long."""
    prepare, read = READ[reader]
    code = MEASURE.format(prepare=prepare, read=read)
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [str(python), "-c", code, str(path)], capture_output=True, text=True, timeout=SECONDS_ALLOWED, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return Reading(*json.loads(done.stdout.splitlines()[-1])) if done.returncode == 0 else None


def _hta_python(folder: Path) -> Path | None:
    """Python of a new environment with HolisticTraceAnalysis; None where it cannot be installed."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    done = subprocess.run([str(python), "-m", "pip", "install", "--quiet", "HolisticTraceAnalysis"], capture_output=True, check=False)
    return python if done.returncode == 0 else None


@cache
def _unpacked(path: Path) -> int:
    with gzip.open(path) as file:
        return sum(len(block) for block in iter(lambda: file.read(1 << 20), b""))


def repeat_events(source: Path, target: Path, size: int) -> None:
    """The events of `source` over and over, shifted in time and with ids of their own, to `size` bytes of JSON."""
    text = gzip.decompress(source.read_bytes()).decode()
    first = text.index("[", text.index('"traceEvents"'))
    _, last = json.JSONDecoder().raw_decode(text, first)
    head, events, tail = text[: first + 1], text[first + 1 : last - 1], text[last - 1 :]
    moved = re.compile(r'("(?:ts|correlation|External id|external id)": ?)(\d+)')

    def shifted(match: re.Match[str], turn: int) -> str:
        return match[1] + str(int(match[2]) + turn * (10_000_000 if match[1].startswith('"ts') else 1_000_000))

    with gzip.open(target, "wt", compresslevel=6, encoding="utf-8") as file:
        file.write(head)
        for turn in range(-(-size // len(events))):
            file.write("," * (turn > 0) + moved.sub(lambda m, turn=turn: shifted(m, turn), events))
        file.write(tail)


if __name__ == "__main__":
    sys.exit(main())
