"""Put faults into public recordings by editing their rows, and see whether `diagnose` names them first and what it says they are worth.

    python -m validation.faults_edited SEED [--write]            with LUMOS_TRACES set

A fault is a stretch of time that is put in where its consequences follow without a simulation. In a recording of one rank that is a
moment at which no device work runs or is queued: everything after it comes later by as much. In that of several ranks it is a moment on
the rank for which all others wait in an exchange: all that comes after the moment on that rank, and after the exchange on the others, comes
later. Rows that are open then last longer. Recordings have faults of their own, so the fault is to be found first, before those, and from
what the finding says to be worth, what its command answers to the recording as it was is taken away. Its worth is the difference of the two
measured steps. The seed draws the places and the steps.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from tools.document import markdown_table
from tools.figures import write_result

from lumos.analyze.loop.steps import members, step_times
from lumos.changes.changes import Changes
from lumos.changes.whatif import answer_changes
from lumos.errors import LumosError
from lumos.findings.diagnose import diagnose
from lumos.findings.finding import Diagnosis, Finding, FindingCode
from lumos.graph.build import build
from lumos.simulation import measured
from lumos.trace import read

#: How near a worth must be, and the least share of a step that a fault must cost to count.
WITHIN, LEAST = 0.15, 0.04
#: A place is a pause between two rows of at least this time, µs, so that nothing is open there but what encloses it.
PLACE = 1.0
LOADER, DEVICE = "enumerate(DataLoader)", ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
EXCHANGE, WAITS = "nccl", ("cudaMemcpyAsync", "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")

Event = dict[str, Any]
#: Begin, end, name, and thread or stream.
Row = tuple[float, float, str, str]


class Put(NamedTuple):
    """Time that is put in at a moment of a rank's recording, or evenly over so much time before it, µs."""

    at: float
    extra: float
    over: float = 0.0


@dataclass(frozen=True, eq=False)
class Recorded:
    """A rank's rows, times in µs from the begin of the job's first row."""

    path: Path
    header: dict[str, Any]
    events: list[Event]

    @cached_property
    def device(self) -> list[Row]:
        """Begin, end, name and stream of the device's work, in order of their begin."""
        return self._rows(DEVICE)

    @cached_property
    def host(self) -> list[Row]:
        """Begin, end, name and thread of operators and calls, in order of their begin."""
        return self._rows(("cpu_op", "operator", "cuda_runtime", "runtime"))

    def _rows(self, kinds: tuple[str, ...]) -> list[Row]:
        found = [e for e in self.events if e.get("ph") == "X" and str(e.get("cat", "")).lower() in kinds]
        return sorted((e["ts"], e["ts"] + e["dur"], e["name"], str(e.get("tid"))) for e in found)

    @cached_property
    def outstanding(self) -> list[tuple[float, float]]:
        """From the launch of device work to its end, in order."""
        rows = [e for e in self.events if e.get("ph") == "X" and "correlation" in e.get("args", {})]
        launched = {e["args"]["correlation"]: e["ts"] for e in rows if str(e.get("cat")).lower() not in DEVICE}
        works = [e for e in rows if str(e.get("cat")).lower() in DEVICE]
        return sorted((min(launched.get(e["args"]["correlation"], e["ts"]), e["ts"]), e["ts"] + e["dur"]) for e in works)

    def ranges(self, name: str) -> list[tuple[float, float]]:
        """Begin and end of the ranges whose name begins so, on threads, in order."""
        found = (e for e in self.events if e.get("ph") == "X" and str(e.get("name", "")).startswith(name))
        return sorted((e["ts"], e["ts"] + e["dur"]) for e in found if "gpu" not in str(e.get("cat")).lower())

    def steps(self) -> list[tuple[float, float]]:
        """Begin and end of the marked steps."""
        return self.ranges("ProfilerStep#")

    def edited(self, puts: list[Put]) -> list[Event]:
        """The rows with time put in."""

        def later(time: float) -> float:
            moved = time
            for at, extra, over in puts:
                moved += extra * min(max((time - (at - over)) / over, 0.0), 1.0) if over else extra * (time > at)
            return moved

        out = []
        for event in self.events:
            if "ts" in event:
                begin, end = later(event["ts"]), later(event["ts"] + event.get("dur", 0))
                event = {**event, "ts": round(begin, 3)} | ({"dur": round(end - begin, 3)} if "dur" in event else {})
            out.append(event)
        return out


def recorded(paths: list[Path]) -> list[Recorded]:
    """The files of a job."""
    files = [json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal, strict=False) for path in paths]
    first = min(e["ts"] for file in files for e in file["traceEvents"] if e.get("ph") == "X")
    out = []
    for path, file in zip(paths, files, strict=True):
        events = [
            {**e, **{key: float(e[key] - (first if key == "ts" else 0)) for key in ("ts", "dur") if key in e}} for e in file["traceEvents"]
        ]
        header = {key: value for key, value in file.items() if key != "traceEvents"}
        out.append(Recorded(path, header, [e for e in events if e.get("ts", 0) >= 0]))
    return out


def idle(rank: Recorded, begin: float, end: float) -> list[tuple[float, float]]:
    """The times between two moments in which no device work runs or is queued."""
    out, free = [], begin
    for first, last in rank.outstanding:
        if first > free and free < end:
            out.append((free, min(first, end)))
        free = max(free, last)
    return [*out, (free, end)] if free < end else out


def places(rank: Recorded, begin: float, end: float, *, inside: bool | None = None) -> list[float]:
    """Moments between two others at which no device work runs or is queued and no row begins or ends nearby. inside: whether an operator,
    and no call, is open there on any thread, or none is, and no data is loaded; None for any."""
    rows = [row for row in rank.host if row[1] > begin and row[0] < end]
    edges = sorted({begin, end, *(t for row in rows for t in row[:2] if begin < t < end)})
    starts = np.array([row[0] for row in rows])
    stops = np.array([row[1] for row in rows])
    loading = rank.ranges(LOADER)
    quiet = np.array(idle(rank, begin, end)).reshape(-1, 2)
    out = []
    for low, high in pairwise(edges):
        middle = (low + high) / 2
        if high - low >= PLACE and ((quiet[:, 0] < middle - PLACE / 3) & (middle + PLACE / 3 < quiet[:, 1])).any():
            opened = (starts < middle) & (stops > middle)
            calls = any(rows[i][2].startswith(("cuda", "hip")) for i in np.flatnonzero(opened))
            loads = any(first < middle < last for first, last in loading)
            if inside is None or (inside == bool(opened.any()) and not calls and not loads):
                out.append(middle)
    return out


class Case(NamedTuple):
    """A fault in a recording. codes: the findings that name it. rank: the position of the only rank that has it, None for all. puts: by
    rank."""

    cause: str
    codes: tuple[FindingCode, ...]
    rank: int | None
    puts: list[list[Put]]


C = FindingCode
#: Sizes, as shares of a step; of what happens once, more.
SIZES, ONCE = (0.8, 1.2, 2.0), (2.0, 4.0, 8.0)


def alone(cause: str, job: list[Recorded], random: Random, size: int) -> Case | None:
    """A fault of a recording of one rank; None where it has no place for it."""
    (rank,) = job
    steps = rank.steps()
    length = sum(end - begin for begin, end in steps) / len(steps)
    every: list[list[float]]
    match cause:
        case "loader":
            loading = [next((r for r in rank.ranges(LOADER) if begin <= r[0] < end), (begin, begin)) for begin, end in steps]
            every = [places(rank, *of_step) or ([sum(of_step) / 2] if idle(rank, *of_step) == [of_step] else []) for of_step in loading]
            if any(last - first > length / 20 for first, last in loading) or not all(every):
                return None
            puts = [Put(random.choice(one), SIZES[size] * length) for one in every]
            return Case(cause, (C.DATA_LOADER,), None, [puts])
        case "operators stall":
            every = [places(rank, *of_step, inside=True) for of_step in steps]
            if min(map(len, every)) < 4 or not any("dims" in str(list(event.get("args", {}))).lower() for event in rank.events):
                return None  # without shapes, stalls of operators cannot be told
            puts = [Put(at, SIZES[size] * length / 4) for one in every for at in random.sample(one, 4)]
            return Case(cause, (C.HOST_STALLS,), None, [puts])
        case "pause in one step":
            chosen = random.randrange(2, len(steps)) if len(steps) > 3 else 0
            own = places(rank, *steps[chosen], inside=False)
            return Case(cause, (C.SLOW_STEPS, C.STALL), None, [[Put(random.choice(own), ONCE[size] * length)]]) if chosen and own else None
        case _:
            return None


def awaited(job: list[Recorded]) -> tuple[int, float] | None:
    """The first exchange for whose last rank all others do nothing but wait: the position of that rank, and when it comes."""
    exchanges = [[row for row in rank.device if EXCHANGE in row[2].lower()] for rank in job]
    for rows in zip(*exchanges, strict=False):
        last = max(range(len(job)), key=lambda i: rows[i][0])
        if all(_waits(rank, rows[last][0], row) for rank, row in zip(job, rows, strict=True) if rank is not job[last]):
            return last, rows[last][0]
    return None


def _waits(rank: Recorded, at: float, exchange: Row) -> bool:
    """Whether at a moment a rank does nothing but take part in an exchange, and a thread sits in a call that waits for it."""
    device = [row for row in rank.device if row[0] < at < row[1]]
    calls = [row for row in rank.host if row[0] < at < row[1]]
    leaves = [row for row in calls if not any(o is not row and o[3] == row[3] and row[0] <= o[0] and o[1] <= row[1] for o in calls)]
    return device == [exchange] and bool(leaves) and all(row[2] in WAITS for row in leaves)


def together(cause: str, job: list[Recorded], random: Random, size: int) -> Case | None:
    """A fault of the rank that comes last to an exchange for which all others wait; None where there is no place for it."""
    found = awaited(job)
    if found is None:
        return None
    chosen, arrives = found
    rank, extra = job[chosen], SIZES[size] * (max(end for one in job for _, end in one.steps()) - min(one.steps()[0][0] for one in job))
    (begin, _), codes = rank.steps()[0], (C.SLOW_HOST, C.SLOW_RANK)
    if cause == "loader":
        (loading, *_), codes = rank.ranges(LOADER), (C.DATA_LOADER,)
        own = [Put(at, extra) for at in random.sample(places(rank, *loading), 1)]
    elif cause == "stall":
        own, codes = [Put(random.choice(places(rank, begin, arrives - 50, inside=False)), extra)], (C.STALL,)
    else:  # all that it does before the exchange is launched takes longer
        own = [Put(arrives - 20, extra, arrives - 20 - begin)]
    return Case(f"{cause} of a rank", codes, chosen, [own if i == chosen else [Put(arrives, extra)] for i in range(len(job))])


#: The recordings, and the faults that are put into them.
ALONE = ("resnet-v100", "resnet50-v100-old-schema", "dlrm-a100-rank3", "resnet-ddp-a100", "resnet-ddp-mi300x")
CAUSES: tuple[tuple[str, Callable[[str, list[Recorded], Random, int], Case | None]], ...] = (
    *((cause, alone) for cause in ("loader", "operators stall", "pause in one step")),
    *((cause, together) for cause in ("loader", "stall", "slow host")),
)


class Scored(NamedTuple):
    """One fault. worth, said: shares of the step of the faulty job. first: what `diagnose` names first."""

    recording: str
    cause: str
    size: float
    worth: float
    first: str
    named: bool
    said: float | None

    @property
    def near(self) -> bool:
        """Whether the worth that is said is near."""
        return self.said is not None and abs(self.said - self.worth) <= WITHIN * self.worth


def score(seed: int, name: str, job: list[Recorded], cause: str, make: Any, size: int) -> Scored | None:
    """Put a fault into a recording, and ask."""
    case: Case | None = make(cause, job, Random(f"{seed}.{name}.{cause}.{size}"), size)
    if case is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        own = [_written(rank, rank.edited([]), Path(folder) / "before") for rank in job]
        before = _step(own)
        paths = [_written(rank, rank.edited(puts), Path(folder) / "after") for rank, puts in zip(job, case.puts, strict=True)]
        step = _step(paths)
        try:
            answer: Diagnosis | None = diagnose(paths)
        except LumosError as error:
            print(name, cause, error, file=sys.stderr)
            answer = None
        found = answer.findings if answer else ()

        def names(finding: Finding) -> bool:
            return finding.code in case.codes and (case.rank is None or finding.where.ranks == (case.rank,))

        said = next((1e9 * (each.worth_s - _worth_s(own, each.command)) / step for each in found if names(each)), None)
    first = found[0] if found else None
    words = f"{first.code}, {'+'.join(map(str, first.where.ranks))}" if first else "nothing" if answer else "refused"
    once = case.cause == "pause in one step"
    return Scored(
        name, case.cause, (ONCE if once else SIZES)[size], 1 - before / step, words, first is not None and names(first), said
    )


def _written(rank: Recorded, events: list[Event], folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / rank.path.name.removesuffix(".gz")
    path.write_text(json.dumps({**rank.header, "traceEvents": events}, default=float), encoding="utf-8")
    return str(path)


def _worth_s(paths: list[str], command: str) -> float:
    """What a command answers to a recording, in seconds a step; 0 where it has nothing to change there."""
    words, option = shlex.split(command.partition(" --")[2]), ""
    asked: dict[str, list[str]] = {}
    for word in (f"--{words[0]}", *words[1:]):
        if word.startswith("--"):
            option = word[2:].replace("-", "_")
        else:
            asked.setdefault(option, []).append(word)
    job = read(*paths)
    try:
        answer = answer_changes(job, build(job), Changes.parse(**asked), force=True, step_only=True)
    except LumosError:
        return 0.0
    return answer.base.step_time_s - answer.outcome.step_time_s


def _step(paths: list[str]) -> float:
    """The measured step, ns: read, not simulated."""
    graph = build(read(*paths))
    return step_times(measured(graph), members(graph)).mean_ns


def section(seed: int, scored: list[Scored]) -> str:
    """The text of the result file."""
    counted = [each for each in scored if each.worth >= LEAST]
    figures = [
        ("faults; that cost enough to count", "–", f"{len(scored)}; {len(counted)}"),
        ("`diagnose` names the fault first", "≥ 90 %", f"{sum(each.named for each in counted)} of {len(counted)}"),
        ("its worth within 15 %", "≥ 90 %", f"{sum(each.near for each in counted)} of {len(counted)}"),
    ]
    rows = [
        (
            each.recording, each.cause, f"{each.size:g}", f"{each.worth:.1%}", each.first, "yes" if each.named else "no",
            "–" if each.said is None else f"{each.said:.1%}",
        )
        for each in scored
    ]  # fmt: skip
    return "\n\n".join(
        [
            f"Written by `python -m validation.faults_edited {seed} --write`. Sizes are shares of the recorded step, worths of the faulty"
            " job's step.",
            markdown_table(("what", "to reach", "reached"), figures),
            markdown_table(("recording", "fault", "size", "worth", "first", "named", "said"), rows),
        ]
    )


def main() -> None:
    """Score all faults that a seed draws."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("seed", type=int)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    traces = Path(os.environ["LUMOS_TRACES"])
    jobs = {name: sorted((traces / name).glob("[!e]*.json.gz")) for name in (*ALONE, "dlrm-8xv100")}
    scored = []
    for name, paths in jobs.items():
        job = recorded(paths)
        for cause, make in CAUSES:
            if (make is together) == (len(job) > 1):
                scored += [each for size in range(3) if (each := score(asked.seed, name, job, cause, make, size)) is not None]
    text = section(asked.seed, scored)
    if asked.write:
        write_result(f"validation/results/faults-edited-{asked.seed}.md", text)
    print(text)


if __name__ == "__main__":
    main()
