"""The run of a script on the machine, written as PyTorch's profiler writes it: one file a rank, with the last steps of the run."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from validation.foreign.loop import Group, Launch, Recorded
from validation.foreign.nodes import Node
from validation.machine_run import Note, RankRun, Run, Work

#: The device that the files name: its sizes are those of `validation.foreign.prices`.
DEVICE = {
    "name": "NVIDIA A100-SXM4-40GB",
    "totalGlobalMem": 42_298_834_944,
    "computeMajor": 8,
    "computeMinor": 0,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerMultiprocessor": 2048,
    "regsPerBlock": 65536,
    "warpSize": 32,
    "sharedMemPerBlock": 49152,
    "numSms": 108,
    "regsPerMultiprocessor": 65536,
    "sharedMemPerBlockOptin": 166912,
    "sharedMemPerMultiprocessor": 167936,
}
#: The numbers that autograd gives its nodes grow from step to step by this much.
SEQUENCE = 100_000


def write(run: Run, ranks: list[Recorded], folder: Path, recorded: int, groups: list[dict[str, Group]]) -> list[str]:
    """Write one file for each rank with the last `recorded` steps; returns the paths. groups: of each rank."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, (rank, script) in enumerate(zip(run.ranks, ranks, strict=True)):
        path = folder / f"rank{number}.json.gz"
        text = json.dumps(_file(rank, script, number, len(ranks), run.steps - recorded, groups[number]), separators=(",", ":"))
        path.write_bytes(gzip.compress(text.encode(), 3, mtime=0))
        paths.append(str(path))
    return paths


def _file(rank: RankRun, script: Recorded, number: int, world: int, first: int, groups: dict[str, Group]) -> dict[str, Any]:
    pid = 40_000 + number
    marks = [
        _event("user_annotation", f"ProfilerStep#{i}", pid, pid, start, end - start, {})
        for i, (start, end) in enumerate(rank.marks)
        if i >= first
    ]
    operators, ids, calls = _rows(rank, script, pid, first)
    at = {call["args"]["correlation"]: call["start"] for call in calls}
    works = [_work(w, script.launches[int(w.name)], number, ids) for w in rank.work if w.step >= first]
    notes = [_note(note, number, at[note.call]) for note in rank.notes if note.call in at]
    events = sorted([*marks, *operators, *calls, *works, *notes], key=lambda e: (e["start"], -e["length"]))
    distributed: dict[str, Any] = {}
    if world > 1:
        config = [
            {"pg_name": g.name, "pg_desc": g.description, "backend_config": "cuda:nccl", "pg_size": len(g.ranks), "ranks": list(g.ranks)}
            for g in {group.name: group for group in groups.values()}.values()
        ]
        info = {
            "backend": "nccl",
            "rank": number,
            "world_size": world,
            "pg_count": len(config),
            "pg_config": config,
            "nccl_version": "2.27.5",
        }
        distributed = {"distributedInfo": info}
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": number % 8, **DEVICE}],
        "cuda_runtime_version": 12080,
        "cuda_driver_version": 12080,
        **distributed,
        "record_shapes": 1,
        "traceName": f"rank{number}.json",
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": [_timed(event) for event in events],
    }


def _timed(event: dict[str, Any]) -> dict[str, Any]:
    start, length = event.pop("start"), event.pop("length")
    return {**event, "ts": start / 1000, "dur": length / 1000}


def _rows(
    rank: RankRun, script: Recorded, pid: int, first: int
) -> tuple[list[dict[str, Any]], dict[tuple[int, int], int], list[dict[str, Any]]]:
    """The operators, their ids by step and number, and the runtime calls. An operator reaches from its first piece to its last."""
    spans: dict[tuple[int, int], list[int]] = {}
    calls = []
    for row in rank.rows:
        if row.step < first:
            continue
        if row.category == "cpu_op":
            end = row.start + row.duration
            span = spans.setdefault((row.step, int(row.name)), [row.start, end, row.thread])
            span[1] = end
        else:
            facts = {"correlation": row.correlation}
            calls.append(_event(row.category, row.name, pid, pid + row.thread, row.start, row.duration, facts))
    ids = {key: i + 1 for i, key in enumerate(spans)}
    operators = []
    for (step, number), (start, end, thread) in spans.items():
        node = script.rows[number]
        category = "user_annotation" if node.annotation else "cpu_op"
        operators.append(_event(category, node.name, pid, pid + thread, start, end - start, _facts(node, step, ids[step, number])))
    return operators, ids, calls


def _facts(node: Node, step: int, external: int) -> dict[str, Any]:
    facts = {"External id": external, **node.facts}
    if "Sequence number" in facts:
        facts["Sequence number"] += SEQUENCE * step
    return facts


def _work(work: Work, launch: Launch, device: int, ids: dict[tuple[int, int], int]) -> dict[str, Any]:
    name = launch.priced.name
    category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
    facts: dict[str, Any] = {
        "External id": ids.get((work.step, launch.row), 0),
        "device": device % 8,
        "context": 1,
        "stream": work.stream,
        "correlation": work.correlation,
        **launch.facts,
    }
    if launch.priced.grid:
        facts |= {"grid": [launch.priced.grid, 1, 1], "block": [128, 1, 1]}
    start = work.start or 0
    return _event(category, name, device % 8, work.stream, start, (work.end or 0) - start, facts)


def _note(note: Note, device: int, start: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"stream": note.stream, "device": device % 8, "context": 1, "correlation": note.call}
    if note.event is not None:
        facts |= {
            "wait_on_stream": note.event.stream,
            "wait_on_cuda_event_record_corr_id": note.event.call,
            "wait_on_cuda_event_id": note.event.call,
        }
    return _event("cuda_sync", note.name, device % 8, note.stream, start, 0, facts)


def _event(category: str, name: str, pid: int, tid: int, start: int, length: int, facts: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "start": start, "length": length, "args": facts}
