"""Spoil public traces in ways that happen, and see whether every answer says so: validation/results/evidence.md.

    LUMOS_TRACES=... python -m validation.evidence

Each corruption changes the files of one public job: rows are lost, ids or clocks are wrong, ranks are absent, cut, mislabelled or of
another job. The spoilt files are then read as a user's would be. A corruption is named where one of its codes is among the reasons for
the grade.
"""

from __future__ import annotations

import copy
import gzip
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.document import markdown_table
from tools.figures import write_result

from lumos.analyze.facade import compare
from lumos.analyze.ranks.stragglers import stragglers
from lumos.analyze.replay import replay
from lumos.analyze.trust import Trust, trust
from lumos.changes.changes import Changes
from lumos.changes.durations import Durations, Scale
from lumos.changes.whatif import answer_changes
from lumos.errors import GraphError, LumosError
from lumos.graph.build import build
from lumos.graph.table import Graph
from lumos.trace import read
from lumos.trace.table import Job

Rows = list[dict[str, Any]]
Document = dict[str, Any]
#: A job: the documents of its ranks, by rank.
Documents = dict[int, Document]

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")
KERNEL = ("kernel", "Kernel")
RUNTIME = ("cuda_runtime", "cuda_driver", "Runtime")
OPERATOR = ("cpu_op", "Operator")

ONE, DDP, EIGHT = "resnet-v100/rank0.json.gz", "resnet50-v100-old-schema/workers0.json.gz", "dlrm-8xv100/kineto-rank*.json.gz"
VGG, OTHER_DLRM = "vgg13-h100/kineto.json.gz", "dlrm-a100-rank3/rank3.json.gz"


@dataclass(frozen=True)
class Corruption:
    """What is done to the files of a public job, and the codes of which one must be among the reasons for the grade."""

    what: str
    job: str
    spoil: Callable[[Documents], Documents]
    codes: tuple[str, ...]


@dataclass(frozen=True)
class Seen:
    """What was answered to a corruption: how far `trust` trusts it, or why it could not be read. silent: the verbs that do not name it."""

    corruption: Corruption
    trust: Trust | None
    refused: str = ""
    silent: tuple[str, ...] = ()

    @property
    def named(self) -> bool:
        """Whether a reason names the corruption, in every verb; a file that is refused says what is wrong with it."""
        return bool(self.refused) or (self.trust is not None and names(self.corruption, self.trust) and not self.silent)


def names(corruption: Corruption, found: Trust) -> bool:
    """Whether a reason names the corruption."""
    return any(reason.code in corruption.codes for reason in found.reasons)


def category(row: dict[str, Any]) -> str:
    return str(row.get("cat", ""))


def each(change: Callable[[Rows], Rows]) -> Callable[[Documents], Documents]:
    """The corruption that changes the rows of every rank."""

    def spoil(job: Documents) -> Documents:
        for document in job.values():
            document["traceEvents"] = change(document["traceEvents"])
        return job

    return spoil


def lose(share: float, *categories: str) -> Callable[[Documents], Documents]:
    """Lose so many of the rows of these categories, drawn by lot (all categories where none is given)."""

    def change(rows: Rows) -> Rows:
        lot = random.Random(1)
        return [row for row in rows if (categories and category(row) not in categories) or lot.random() >= share]

    return each(change)


def lose_pairs(share: float) -> Callable[[Documents], Documents]:
    """Lose so many of the kernels together with the calls that launched them, drawn by lot."""

    def change(rows: Rows) -> Rows:
        every = sorted({number_of(row) for row in rows if category(row) in KERNEL})
        lost = set(random.Random(1).sample(every, max(1, round(share * len(every)))))
        return [row for row in rows if category(row) not in (*KERNEL, *RUNTIME) or number_of(row) not in lost]

    return each(change)


def number_of(row: dict[str, Any]) -> int:
    """The correlation id of a row, 0 without one."""
    args = row.get("args", {})
    return int(args.get("correlation", args.get("Correlation", 0)))


def lose_stretch(first: float, last: float) -> Callable[[Documents], Documents]:
    """Lose all device rows between two moments of the recording, as when the profiler drops a buffer."""

    def change(rows: Rows) -> Rows:
        at = sorted(float(row["ts"]) for row in rows if category(row) in DEVICE)
        low, high = at[int(first * (len(at) - 1))], at[int(last * (len(at) - 1))]
        return [row for row in rows if category(row) not in DEVICE or not low <= float(row["ts"]) <= high]

    return each(change)


def lose_stream(rows: Rows) -> Rows:
    """Lose the kernels of every stream but the busiest."""
    count: dict[Any, int] = {}
    for row in rows:
        if category(row) in KERNEL:
            count[row["args"]["stream"]] = count.get(row["args"]["stream"], 0) + 1
    most = max(count, key=lambda s: count[s])
    return [row for row in rows if category(row) not in KERNEL or row["args"]["stream"] == most]


def of_ranks(ranks: tuple[int, ...], change: Callable[[Rows], Rows]) -> Callable[[Documents], Documents]:
    """The corruption that changes the rows of some ranks."""

    def spoil(job: Documents) -> Documents:
        for rank in ranks:
            job[rank]["traceEvents"] = change(job[rank]["traceEvents"])
        return job

    return spoil


def cut(share: float) -> Callable[[Rows], Rows]:
    """Lose all rows after a share of the recording."""

    def change(rows: Rows) -> Rows:
        work = [float(row["ts"]) for row in rows if category(row) in (*OPERATOR, *RUNTIME, *DEVICE)]
        end = min(work) + share * (max(work) - min(work))
        return [row for row in rows if row.get("ph") == "M" or float(row.get("ts", 0)) <= end]

    return change


def set_id(value: Callable[[int], int]) -> Callable[[Documents], Documents]:
    """Give every correlation id another value."""

    def change(rows: Rows) -> Rows:
        for row in rows:
            args = row.get("args", {})
            for key in ("correlation", "Correlation"):
                if key in args and int(args[key]) > 0:
                    args[key] = value(int(args[key]))
        return rows

    return each(change)


def shift_ids(rows: Rows) -> Rows:
    """Give every kernel the id of the launch after its own."""
    kernels = [row for row in rows if category(row) in KERNEL]
    kernels.sort(key=lambda row: int(row["args"]["correlation"]))
    for row, after in zip(kernels, [*(int(row["args"]["correlation"]) for row in kernels[1:]), 0], strict=True):
        row["args"]["correlation"] = after
    return rows


def move(us: float, *categories: str) -> Callable[[Documents], Documents]:
    """Move the rows of some categories in time, as where their clock is another one."""

    def change(rows: Rows) -> Rows:
        for row in rows:
            if category(row) in categories:
                row["ts"] = float(row["ts"]) + us
        return rows

    return each(change)


def faster_clock(factor: float, *categories: str) -> Callable[[Documents], Documents]:
    """Let the clock of some categories run at another rate, from the first of their rows on."""

    def change(rows: Rows) -> Rows:
        first = min(float(row["ts"]) for row in rows if category(row) in categories)
        for row in rows:
            if category(row) in categories and "dur" in row:
                row["ts"], row["dur"] = first + factor * (float(row["ts"]) - first), factor * float(row["dur"])
        return rows

    return each(change)


def stretch(factor: float, *categories: str) -> Callable[[Documents], Documents]:
    """Make rows last longer than they did, so that they overlap, or shorter."""

    def change(rows: Rows) -> Rows:
        for row in rows:
            if category(row) in categories and "dur" in row:
                row["dur"] = float(row["dur"]) * factor
        return rows

    return each(change)


def repeat_rows(times: int, *categories: str) -> Callable[[Documents], Documents]:
    """Write rows several times."""
    return each(lambda rows: [again for row in rows for again in [row] * (times if category(row) in categories else 1)])


def one_stream(rows: Rows) -> Rows:
    """Write all kernels onto one stream."""
    for row in rows:
        if category(row) in DEVICE:
            row["args"]["stream"] = row["tid"] = 7
    return rows


def without_durations(rows: Rows) -> Rows:
    """Lose the durations of a tenth of the kernels."""
    for row in [row for row in rows if category(row) in KERNEL][::10]:
        del row["dur"]
    return rows


def negative_durations(rows: Rows) -> Rows:
    for row in [row for row in rows if category(row) in KERNEL][::10]:
        row["dur"] = -float(row["dur"])
    return rows


def one_of_a_day(rows: Rows) -> Rows:
    """Let one kernel in the middle last for a day."""
    kernels = [row for row in rows if category(row) in KERNEL]
    kernels[len(kernels) // 2]["dur"] = 86_400e6
    return rows


def one_a_day_late(rows: Rows) -> Rows:
    """Let one kernel in the middle start a day later."""
    kernels = [row for row in rows if category(row) in KERNEL]
    kernels[len(kernels) // 2]["ts"] = float(kernels[len(kernels) // 2]["ts"]) + 86_400e6
    return rows


def rename_steps(rows: Rows) -> Rows:
    for row in rows:
        if str(row.get("name", "")).startswith("ProfilerStep"):
            row["name"] = "ProfilerStep#99"
    return rows


def without_some_operators(rows: Rows) -> Rows:
    """Lose every tenth operator."""
    lost = [row for row in rows if category(row) in OPERATOR][::10]
    return [row for row in rows if row not in lost]


def without_collectives(rows: Rows) -> Rows:
    """Lose the communication kernels with their launches."""
    lost = {row["args"]["correlation"] for row in rows if category(row) in KERNEL and "nccl" in row["name"].lower()}
    return [row for row in rows if row.get("args", {}).get("correlation") not in lost]


def replaced(rank: int, source: str) -> Callable[[Documents], Documents]:
    """Put the recording of another job in the place of one rank."""

    def spoil(job: Documents) -> Documents:
        info = job[rank]["distributedInfo"]
        job[rank] = next(iter(load(source).values()))
        job[rank]["distributedInfo"] = {**info, "rank": rank}
        return job

    return spoil


def relabelled(rank: int, as_rank: int) -> Callable[[Documents], Documents]:
    """Give one rank's recording under another rank's name as well."""

    def spoil(job: Documents) -> Documents:
        job[as_rank] = copy.deepcopy(job[rank])
        job[as_rank]["distributedInfo"]["rank"] = as_rank
        return job

    return spoil


def kept(*ranks: int) -> Callable[[Documents], Documents]:
    """Give only some ranks."""
    return lambda job: {rank: job[rank] for rank in ranks}


def header(rank: int, **values: Any) -> Callable[[Documents], Documents]:
    """Change what one rank's header says."""

    def spoil(job: Documents) -> Documents:
        for key, value in values.items():
            job[rank][key] = {**job[rank][key], **value} if isinstance(value, dict) else value
        return job

    return spoil


def versions(rank: int) -> Callable[[Documents], Documents]:
    """Let one rank say that it ran with another version of CUDA than the others."""

    def spoil(job: Documents) -> Documents:
        for each_rank, document in job.items():
            document["cuda_runtime_version"] = 12040 if each_rank == rank else 11080
        return job

    return spoil


def without_cpu(rows: Rows) -> Rows:
    """Lose every row of the CPU."""
    return [row for row in rows if category(row) not in (*OPERATOR, *RUNTIME)]


def in_other_units(rows: Rows) -> Rows:
    """Write times as if nanoseconds were microseconds."""
    for row in rows:
        for key in ("ts", "dur"):
            if key in row:
                row[key] = float(row[key]) * 1000
    return rows


def as_two_ranks(job: Documents) -> Documents:
    """Give one recording as both ranks of a job of two."""
    (document,) = job.values()
    return {rank: {**document, "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}} for rank in (0, 1)}


LOST, IDS, CLOCK, OVERLAP = ("kernels-lost",), ("ids-shared",), ("work-before-launch",), ("stream-overlap",)
UNMET, EARLY, UNEQUAL = ("ranks-do-not-meet",), ("returns-early",), ("repetitions-unequal",)
#: The shares of the kernels that are lost together with their launches.
PAIRS = (0.001, 0.003, 0.01)

CORRUPTIONS = (
    Corruption("30 % of the kernels lost", ONE, lose(0.3, *KERNEL), LOST),
    Corruption("3 % of the kernels lost", ONE, lose(0.03, *KERNEL), LOST),
    *(
        Corruption(f"{100 * share:g} % of the kernels lost with their launches, {what}", job, lose_pairs(share), UNEQUAL)
        for what, job, shares in (("5 steps", ONE, PAIRS), ("6 steps, oldest format", DDP, PAIRS), ("one step", VGG, PAIRS[-1:]))
        for share in shares
    ),
    Corruption("30 % of the kernels lost, oldest format", DDP, lose(0.3, *KERNEL), LOST),
    Corruption("30 % of the kernels lost on every rank", EIGHT, lose(0.3, *KERNEL), LOST),
    Corruption("a tenth of the device rows lost in one stretch", ONE, lose_stretch(0.5, 0.6), LOST),
    Corruption("device rows of the second half lost", ONE, lose_stretch(0.5, 1.0), LOST),
    Corruption("kernels of all streams but one lost", EIGHT, each(lose_stream), LOST),
    Corruption("30 % of the runtime calls lost", ONE, lose(0.3, *RUNTIME), ("launches-lost",)),
    Corruption("30 % of all rows lost", ONE, lose(0.3), (*LOST, "launches-lost")),
    Corruption("10 % of all rows lost on every rank", EIGHT, lose(0.1), (*LOST, "launches-lost")),
    Corruption("30 % of the operators lost", ONE, lose(0.3, *OPERATOR), ("operators-lost",)),
    Corruption("10 % of the operators lost on rank 3", EIGHT, of_ranks((3,), without_some_operators), ("rows-lost",)),
    Corruption("durations of a tenth of the kernels lost", ONE, each(without_durations), ("missing-duration",)),
    Corruption("durations of a tenth of the kernels negative", ONE, each(negative_durations), ("negative-duration",)),
    Corruption("all correlation ids equal", ONE, set_id(lambda _: 7), IDS),
    Corruption("all correlation ids equal, 8 ranks", EIGHT, set_id(lambda _: 7), IDS),
    Corruption("every second correlation id doubled", ONE, set_id(lambda value: value // 2), IDS),
    Corruption("device rows written twice", ONE, repeat_rows(2, *DEVICE), (*IDS, *OVERLAP)),
    Corruption("kernels with the id of the next launch", ONE, each(shift_ids), ("ids-disagree",)),
    Corruption("the device's clock 200 ms behind", ONE, move(-200_000, *DEVICE), CLOCK),
    Corruption("the device's clock 1 ms behind", DDP, move(-1_000, *DEVICE), CLOCK),
    Corruption("the device's clock 10 ms behind", VGG, move(-10_000, *DEVICE), CLOCK),
    Corruption("the device's clock 0.1 ms ahead", DDP, move(100, *DEVICE), EARLY),
    Corruption("the device's clock 1 ms ahead", ONE, move(1_000, *DEVICE), EARLY),
    Corruption("the device's clock 10 ms ahead", EIGHT, move(10_000, *DEVICE), EARLY),
    Corruption("the device's clock a tenth slower", ONE, faster_clock(1.1, *DEVICE), EARLY),
    Corruption("the CPU's clock a tenth faster", ONE, faster_clock(0.9, *OPERATOR, *RUNTIME), EARLY),
    Corruption("runtime calls 1 ms later than the rest", ONE, move(1_000, *RUNTIME), ("thread-overlap",)),
    Corruption("operators 1 ms earlier than the rest", ONE, move(-1_000, *OPERATOR), ("thread-overlap",)),
    Corruption("runtime calls half as long", DDP, stretch(0.5, *RUNTIME), EARLY),
    Corruption("device work half as long", ONE, stretch(0.5, *DEVICE), ("unexplained-idle",)),
    Corruption("one kernel lasts a day", ONE, each(one_of_a_day), ("duration-implausible",)),
    Corruption("one kernel starts a day late", ONE, each(one_a_day_late), ("start-implausible",)),
    Corruption("kernels threefold as long", ONE, stretch(3, *KERNEL), OVERLAP),
    Corruption("kernels threefold as long, 8 ranks", EIGHT, stretch(3, *KERNEL), OVERLAP),
    Corruption("all streams written as one", EIGHT, each(one_stream), OVERLAP),
    Corruption("operators three times as long", ONE, stretch(3, *OPERATOR), ("thread-overlap",)),
    Corruption("a VGG trace on another GPU as rank 7", EIGHT, replaced(7, VGG), ("ranks-unlike-models",)),
    Corruption("a DLRM trace on another GPU as rank 7", EIGHT, replaced(7, OTHER_DLRM), ("ranks-unlike-models", "ranks-unlike-devices")),
    Corruption("rank 2's recording as rank 3's", EIGHT, relabelled(2, 3), ("ranks-identical",)),
    Corruption("rank 2's recording as a ninth rank", EIGHT, relabelled(2, 8), ("ranks-identical", "rank-beyond-world")),
    Corruption("one recording as both ranks of a job", ONE, as_two_ranks, ("ranks-identical",)),
    Corruption("two of eight ranks", EIGHT, kept(0, 5), ("ranks-absent",)),
    Corruption("seven of eight ranks", EIGHT, kept(0, 1, 2, 3, 4, 5, 6), ("ranks-absent",)),
    Corruption("rank 3 cut in half", EIGHT, of_ranks((3,), cut(0.5)), UNMET),
    Corruption("rank 3's collectives lost", EIGHT, of_ranks((3,), without_collectives), UNMET),
    Corruption("rank 3 recorded another step", EIGHT, of_ranks((3,), rename_steps), ("ranks-share-no-step",)),
    Corruption(
        "rank 3 ran on another GPU", EIGHT, header(3, deviceProperties=[{"id": 0, "name": "NVIDIA H100"}]), ("ranks-unlike-devices",)
    ),
    Corruption("rank 3 is of a job of 16 ranks", EIGHT, header(3, distributedInfo={"world_size": 16}), ("world-sizes-differ",)),
    Corruption("rank 3 ran with other software", EIGHT, versions(3), ("ranks-unlike-software",)),
    Corruption("rank 3's operators and calls lost", EIGHT, of_ranks((3,), without_cpu), ("no-launches",)),
    Corruption("rank 3's times a thousandfold", EIGHT, of_ranks((3,), in_other_units), ("no-schedule", *UNMET)),
)


def load(job: str) -> Documents:
    """The documents of a public job, by rank."""
    found: Documents = {}
    for path in sorted(Path(os.environ["LUMOS_TRACES"]).glob(job)):
        document = json.loads(gzip.decompress(path.read_bytes()))
        found[document.get("distributedInfo", {}).get("rank", len(found))] = document
    return found


def answered(corruption: Corruption, whole: Documents, folder: Path) -> Seen:
    """Spoil a copy of the job, write it as a user would have it, and ask how far it is trusted."""
    for rank, document in corruption.spoil(copy.deepcopy(whole)).items():
        (folder / f"rank{rank}.json").write_text(json.dumps(document), encoding="utf-8")
    try:
        job = read(folder)
        graph = build(job)
    except LumosError as error:
        return Seen(corruption, None, str(error))
    return Seen(corruption, trust(graph), silent=tuple(silent(corruption, job, graph)))


def silent(corruption: Corruption, job: Job, graph: Graph) -> Iterator[str]:
    """The verbs that answer without a word about the corruption. `breakdown` and `critical-path` print what `trust` returns."""
    everything = Changes(durations=Durations(scales=(Scale("*", 0.5),)))
    verbs: dict[str, Callable[[], Trust]] = {
        "replay": lambda: replay(graph).trust,
        "compare": lambda: compare(job, job).a.trust,
        "whatif": lambda: answer_changes(job, graph, everything, force=True).trust,
    }
    if len(graph.ranks) > 1:
        verbs["stragglers"] = lambda: stragglers(graph, job, force=True).trust
    for verb, ask in verbs.items():
        try:
            if not names(corruption, ask()):
                yield verb
        except GraphError:  # the dependencies contradict each other, and the message says so
            continue


def every() -> Iterator[Seen]:
    """What is answered to every corruption."""
    whole = {job: load(job) for job in dict.fromkeys(c.job for c in CORRUPTIONS)}
    for corruption in CORRUPTIONS:
        with tempfile.TemporaryDirectory() as folder:
            yield answered(corruption, whole[corruption.job], Path(folder))


def main() -> int:
    if "LUMOS_TRACES" not in os.environ:
        print("LUMOS_TRACES is not set: there are no traces to spoil", file=sys.stderr)
        return 0
    seen = []
    for one in every():
        seen.append(one)
        grade = "refused" if one.trust is None else one.trust.grade
        codes = one.refused if one.trust is None else ", ".join(r.code for r in one.trust.reasons)
        print(f"{'ok  ' if one.named else 'MISS'} {one.corruption.what:50} {grade:8} {codes}", file=sys.stderr)
    write_result("validation/results/evidence.md", section(seen))
    return 0 if all(one.named for one in seen) else 1


def section(seen: list[Seen]) -> str:
    """The text of its result file."""
    named = sum(one.named for one in seen)
    rows = [
        (
            one.corruption.what,
            one.corruption.job.split("/")[0],
            "refused" if one.trust is None else str(one.trust.grade),
            "" if one.trust is None else ", ".join(f"`{r.code}`" for r in one.trust.reasons),
            "yes" if one.named else f"not by {', '.join(one.silent) or 'any'}",
        )
        for one in seen
    ]
    return "\n\n".join(
        [
            "Written by `python -m validation.evidence`. Public traces are spoilt in ways that happen to recordings; the codes are those of"
            " [trust](../../docs/trust.md), by which every verb that answers from a trace says how far its answer can be trusted.",
            markdown_table(("what", "to reach", "reached"), [("corruptions named", "all", f"{named} of {len(seen)}")]),
            markdown_table(("corruption", "trace", "grade", "reasons", "named"), rows),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
