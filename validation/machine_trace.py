"""Files as PyTorch's profiler writes them, of a window into what `validation.machine` ran.

The window has steps of a run, before and after which the job goes on. As in real recordings, the threads beside the loop have the rows that
begin and end in the window, whichever step they work for; device work that was launched before it and still runs in it has a row but no
launch, and device work that the window launched has its row even if it ends after it. What other processes do has no rows. The rows that
name what calls wait for (`cuda_sync`) and the numbers of the collectives are optional: many profilers do not write them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from validation.machine_run import Note, RankRun, Row, Run, Work
from validation.program import Collective, Message

#: Elements of every tensor that a transfer moves; the machine's transfers take what their program says, whatever they move.
ELEMENTS = 25_000_000
#: What the row of a message takes that is launched together with others, ns.
STATED = 100


def write_trace(run: Run, folder: Path, recorded: int, *, optional: bool = True, after: int = 0) -> list[str]:
    """Write one file per rank with `recorded` steps; returns their paths. optional: whether with the optional rows. after: how many steps
    of the run follow them."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, rank in enumerate(run.ranks):
        path = folder / f"rank{number}.json"
        last = run.steps - after
        path.write_text(json.dumps(_file(rank, number, run, range(last - recorded, last), optional=optional)), encoding="utf-8")
        paths.append(str(path))
    return paths


def _file(rank: RankRun, number: int, run: Run, window: range, *, optional: bool) -> dict[str, Any]:
    """One rank's file. window: the steps that it has."""
    begin, stop = rank.marks[window[0]][0], rank.marks[window[-1]][1]
    pid = 1000 + number
    everyone = tuple(range(len(run.ranks)))
    names = group_names(run)
    marks = [
        _event("user_annotation", f"ProfilerStep#{step}", pid, pid, start, end - start)
        for step, (start, end) in enumerate(rank.marks)
        if step in window
    ]
    rows = [r for r in rank.rows if (_inside(r, begin, stop) if r.thread else r.step in window) and r.thread < rank.seen]
    at = {r.correlation: r for r in rows if r.correlation >= 0}
    numbers = _numbers(rank)
    works = [
        _work(w, number, {} if len(w.meets) != 1 else _facts(w.meets[0], number, everyone, names, numbers[id(w)][0] if optional else -1))
        for w in rank.work
        if w.correlation in at or (w.launched < begin and (w.end or 0) > begin)
    ]
    stated = [
        _event(
            "cpu_op",
            "record_param_comms",
            pid,
            pid + at[w.correlation].thread,
            at[w.correlation].start - STATED * (len(w.meets) - i),
            STATED,
            _facts(meets, number, everyone, names, numbers[id(w)][i] if optional else -1),
        )
        for w in rank.work
        if len(w.meets) > 1 and w.correlation in at
        for i, meets in enumerate(w.meets)
    ]
    groups = [
        {"pg_name": name, "pg_desc": "", "backend_config": "cuda:nccl", "pg_size": len(ranks), "ranks": list(ranks)}
        for ranks, name in names.items()
    ]
    return {
        "schemaVersion": 1,
        "distributedInfo": {
            "backend": "nccl",
            "rank": number,
            "world_size": len(everyone),
            "pg_count": len(groups),
            "pg_config": groups,
        },
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "displayTimeUnit": "ms",
        "traceEvents": sorted(
            [
                *marks,
                *(_row(r, pid) for r in rows),
                *stated,
                *works,
                *(_note(note, number, at[note.call].start) for note in rank.notes if optional and note.call in at),
            ],
            key=lambda event: (event["ts"], -event["dur"]),
        ),
    }


def _inside(row: Row, begin: int, stop: int) -> bool:
    """Whether a row lies in a time."""
    return begin <= row.start and row.start + row.duration <= stop


def group_names(run: Run) -> dict[tuple[int, ...], str]:
    """The process groups of a job and their names; "0" has all ranks."""
    everyone = tuple(range(len(run.ranks)))
    used = {m.ranks for rank in run.ranks for w in rank.work for m in w.meets if isinstance(m, Collective) and m.ranks}
    return {ranks: str(i) for i, ranks in enumerate([everyone, *sorted(used - {everyone})])}


def _numbers(rank: RankRun) -> dict[int, list[int]]:
    """The number of every transfer of each work within its group, messages apart from collectives; by the work's id."""
    next_of: dict[tuple[bool, tuple[int, ...]], int] = {}
    out: dict[int, list[int]] = {}
    for work in rank.work:
        for meets in work.meets:
            key = isinstance(meets, Message), () if isinstance(meets, Message) else meets.ranks
            next_of[key] = next_of.get(key, 0) + 1
            out.setdefault(id(work), []).append(next_of[key])
    return out


def _row(row: Row, pid: int) -> dict[str, Any]:
    facts: dict[str, Any] = {} if row.correlation < 0 else {"correlation": row.correlation}
    return _event(row.category, row.name, pid, pid + row.thread, row.start, row.duration, facts)


def _note(note: Note, device: int, start: int) -> dict[str, Any]:
    facts: dict[str, Any] = {"stream": note.stream, "device": device, "correlation": note.call}
    if note.event is not None:
        facts |= {
            "wait_on_stream": note.event.stream,
            "wait_on_cuda_event_record_corr_id": note.event.call,
            "wait_on_cuda_event_id": note.event.call,
        }
    return _event("cuda_sync", note.name, device, note.stream, start, 0, facts)


def _facts(
    meets: Collective | Message, rank: int, everyone: tuple[int, ...], names: dict[tuple[int, ...], str], number: int
) -> dict[str, Any]:
    """What the profiler says of a transfer. number: its number within the group, -1 where it is not written."""
    ranks = meets.ranks or everyone if isinstance(meets, Collective) else everyone
    facts: dict[str, Any] = {
        "Collective name": meets.kind if isinstance(meets, Collective) else "send" if meets.sends else "recv",
        "In msg nelems": ELEMENTS,
        "Out msg nelems": ELEMENTS,
        "Group size": len(ranks),
        "dtype": "Float",
        "Process Group Name": names[ranks],
        "Process Group Description": "default_pg" if ranks == everyone else "",
        "Process Group Ranks": str(list(ranks)),
    }
    if isinstance(meets, Message):
        facts["Dst Rank" if meets.sends else "Src Rank"] = meets.peer
    if number >= 0:
        facts["Seq"] = number
    return facts


def _work(work: Work, device: int, facts: dict[str, Any]) -> dict[str, Any]:
    start, end = work.start or 0, work.end or 0
    category = "gpu_memcpy" if work.name.startswith("Memcpy") else "kernel"
    facts = {"stream": work.stream, "device": device, "correlation": work.correlation, **facts}
    if category == "gpu_memcpy":
        facts["bytes"] = 4 * ELEMENTS
    return _event(category, work.name, device, work.stream, start, end - start, facts)


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
