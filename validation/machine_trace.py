"""Files as PyTorch's profiler writes them, of a window into what `validation.machine` ran.

The window has the last steps of a run. As in real recordings, device work that was launched before it and still runs in it has a row but no
launch, and device work that the steps launched has its row even if it ends after their marks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from validation.machine import RankRun, Run, Work

#: Elements of every tensor that a transfer moves; the machine's transfers take what their program says, whatever they move.
ELEMENTS = 25_000_000


def write_trace(run: Run, folder: Path, recorded: int) -> list[str]:
    """Write one file per rank with the last `recorded` steps; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, rank in enumerate(run.ranks):
        path = folder / f"rank{number}.json"
        path.write_text(json.dumps(_file(rank, number, len(run.ranks), run.steps - recorded)), encoding="utf-8")
        paths.append(str(path))
    return paths


def _file(rank: RankRun, number: int, ranks: int, first: int) -> dict[str, Any]:
    """One rank's file. first: the first step of the window."""
    begin = rank.marks[first][0]
    pid = 1000 + number
    everyone = list(range(ranks))
    marks = [
        _event("user_annotation", f"ProfilerStep#{step}", pid, pid, start, end - start)
        for step, (start, end) in enumerate(rank.marks)
        if step >= first
    ]
    rows = [
        _event(r.category, r.name, pid, pid + r.thread, r.start, r.duration, {} if r.correlation < 0 else {"correlation": r.correlation})
        for r in rank.rows
        if r.step >= first
    ]
    works = [_work(w, number, everyone) for w in rank.work if w.step >= first or (w.end or 0) > begin]
    at = {r.correlation: r for r in rank.rows if r.step >= first and r.correlation >= 0}
    waits = [
        _event(
            "cuda_sync",
            "Stream Wait Event",
            number,
            note.stream,
            at[note.call].start,
            0,
            {
                "stream": note.stream,
                "device": number,
                "correlation": note.call,
                "wait_on_stream": note.awaited,
                "wait_on_cuda_event_record_corr_id": note.record,
                "wait_on_cuda_event_id": note.record,
            },
        )
        for note in rank.waits
        if note.call in at
    ]
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": ranks, "ranks": everyone}
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": number, "world_size": ranks, "pg_count": 1, "pg_config": [group]},
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "displayTimeUnit": "ms",
        "traceEvents": sorted([*marks, *rows, *works, *waits], key=lambda event: (event["ts"], -event["dur"])),
    }


def _work(work: Work, device: int, everyone: list[int]) -> dict[str, Any]:
    start, end = work.start or 0, work.end or 0
    facts: dict[str, Any] = {"stream": work.stream, "device": device, "correlation": work.correlation}
    if work.meeting is not None:
        facts |= {
            "Collective name": "allreduce",
            "In msg nelems": ELEMENTS,
            "Out msg nelems": ELEMENTS,
            "Group size": len(everyone),
            "dtype": "Float",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(everyone),
        }
    return _event("kernel", work.name, device, work.stream, start, end - start, facts)


def _event(category: str, name: str, pid: int, tid: int, start: int, duration: int, facts: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start / 1000,
        "dur": duration / 1000,
        **({"args": facts} if facts else {}),
    }
