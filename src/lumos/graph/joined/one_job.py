"""Whether the given recordings are the ranks of one job, by what each says of its device, software, model and steps.

A rank that is of another job cannot meet the others, and a simulation of both says nothing about either. What is found is returned as
`Evidence`; `analyze.trust` grades it. Recordings of whole operations state the plan that they were made under, which the reader compares.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from lumos.graph.places import is_step_mark
from lumos.graph.table import Evidence
from lumos.trace.table import Category, Origin, Trace, unique
from lumos.units import count
from lumos.vocabulary import Grade

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumos.graph.table import Graph

#: Ranks of one job have more than this share of their operators' names in common with some other rank. In the public traces two ranks of a
#: job share more than 0.9 of them, ranks of two models at most 0.65.
ALIKE = 0.5

#: The origin of a job whose script ran without its devices.
EMULATED = Origin("emulated")

#: The code of evidence that no device ran a job.
MODELLED = "durations-modelled"

#: The code of evidence that recordings of some ranks were not given.
RANKS_ABSENT = "ranks-absent"

#: A rank with fewer distinct operators says too little about its model.
FEWEST_OPERATORS = 10

#: No two recordings of real work agree in every row where so many different durations occur.
FEWEST_TIMES = 20

#: What a recording's header says of the software that it was made with.
SOFTWARE = ("cuda_runtime_version", "cuda_driver_version", "hip_runtime_version", "hip_driver_version")


def job_evidence(traces: Sequence[Trace], graph: Graph) -> tuple[Evidence, ...]:
    """The findings in the recordings of one job. graph: the job's, its ranks joined."""
    evidence = [*_world(traces), *_absent(traces, graph)]
    if len(traces) > 1:
        evidence += _identical(traces)
        evidence += _unlike(traces)
        evidence += _model(traces)
        evidence += _steps(traces)
    return tuple(evidence)


def listed(ranks: Sequence[int]) -> str:
    """Ranks as text: "rank 3", "ranks 0, 1 and 7"; of many only the first."""
    ranks = sorted(ranks)
    if len(ranks) > 6:
        return f"ranks {', '.join(map(str, ranks[:5]))} and {len(ranks) - 5} more"
    *first, last = map(str, ranks)
    return f"ranks {', '.join(first)} and {last}" if first else f"rank {last}"


def _world(traces: Sequence[Trace]) -> Iterator[Evidence]:
    """Sizes of the job that contradict each other, and ranks beyond them."""
    sizes = {trace.world_size for trace in traces if trace.world_size is not None}
    if len(sizes) > 1:
        text = " and ".join(map(str, sorted(sizes)))
        yield Evidence("world-sizes-differ", f"the recordings say that their job has {text} ranks: they are of several jobs", Grade.UNSOUND)
    beyond = [trace.rank for trace in traces if trace.rank >= max(sizes, default=trace.rank + 1)]
    if beyond:
        yield Evidence("rank-beyond-world", f"{listed(beyond)} cannot be of a job of {max(sizes)} ranks", Grade.UNSOUND)


def _absent(traces: Sequence[Trace], graph: Graph) -> Iterator[Evidence]:
    """Ranks of which no recording was given, although those that were given communicate with them."""
    world = max((trace.world_size or 0 for trace in traces), default=0)
    lone = graph.waiting_unknown
    if world > len(traces) and len(lone):
        given, kept = f"{len(traces)} of {count(world, 'rank')} given", count(len(lone), "collective")
        message = f"{given}: the time of {kept} may hold waiting for the others"
        yield Evidence(RANKS_ABSENT, message, Grade.LIMITED)


def modelled_origin(origin: Origin | None) -> tuple[Evidence, ...]:
    """The finding that no device ran a job, so that no answer from it is better than what it comes from, and none is measured."""
    if origin is None:
        return ()
    message = f"no device ran this job, which was {origin.what}: its durations are modelled, and their errors are those of the cost models"
    return (Evidence(MODELLED, message, Grade.UNSOUND if origin.grade is Grade.UNSOUND else Grade.LIMITED),)


def _identical(traces: Sequence[Trace]) -> Iterator[Evidence]:
    """Recordings with the same rows at the same times: one of them has the wrong rank. Predicted and drawn jobs, whose times are
    regular, may have such ranks."""
    alike: dict[int, list[Trace]] = {}
    for trace in traces:
        if "lumos" not in trace.metadata:
            alike.setdefault(hash(trace.duration.tobytes()), []).append(trace)
    for group in alike.values():
        first, *others = group
        same = [trace.rank for trace in others if _same_rows(first, trace)]
        if same and len(unique(first.duration)) >= FEWEST_TIMES:
            message = f"{listed([first.rank, *same])} are one recording under several ranks: their rows are the same to the nanosecond"
            yield Evidence("ranks-identical", message, Grade.UNSOUND)


def _same_rows(one: Trace, other: Trace) -> bool:
    """Whether two recordings have the same threads and, on them, the same rows at the same times from their begin."""
    return (
        tuple((lane.pid, lane.tid) for lane in one.lanes) == tuple((lane.pid, lane.tid) for lane in other.lanes)
        and np.array_equal(one.duration, other.duration)
        and np.array_equal(one.start - one.start[0], other.start - other.start[0])
    )


def _unlike(traces: Sequence[Trace]) -> Iterator[Evidence]:
    """Ranks with other devices or other versions of software than most of them. Some jobs do run on unlike machines."""
    devices = {t.rank: ", ".join(sorted({d["name"] for d in t.devices if d.get("name")})) for t in traces}
    software = {t.rank: ", ".join(f"{key} {t.metadata[key]}" for key in SOFTWARE if t.metadata.get(key)) for t in traces}
    for code, words, said in (("ranks-unlike-devices", "ran on", devices), ("ranks-unlike-software", "ran with", software)):
        values = {rank: text for rank, text in said.items() if text}
        usual = Counter(values.values()).most_common(1)[0][0] if values else ""
        others = [rank for rank, value in values.items() if value != usual]
        if others:
            message = f"{listed(others)} {words} {values[others[0]]}, most other ranks {words.split()[1]} {usual}"
            yield Evidence(code, message, Grade.LIMITED)


def _model(traces: Sequence[Trace]) -> Iterator[Evidence]:
    """Ranks whose operators are those of no other rank."""
    names = {trace.rank: _operators(trace) for trace in traces}
    names = {rank: some for rank, some in names.items() if len(some) >= FEWEST_OPERATORS}
    strange = [
        rank
        for rank, own in names.items()
        if len(names) > 1 and not any(len(own & it) > ALIKE * len(own | it) for other, it in names.items() if other != rank)
    ]
    if strange:
        message = f"{listed(strange)} ran other operators than every other rank, as ranks of another model do"
        yield Evidence("ranks-unlike-models", message, Grade.UNSOUND)


def _operators(trace: Trace) -> frozenset[str]:
    """The names of a recording's operators."""
    present = np.zeros(len(trace.strings), bool)
    present[trace.name[(trace.category == Category.OPERATOR) & ~is_step_mark(trace)]] = True
    return frozenset(trace.strings[i] for i in np.flatnonzero(present).tolist())


def _steps(traces: Sequence[Trace]) -> Iterator[Evidence]:
    """Ranks that recorded none of the steps that most ranks recorded, or not all of them."""
    marked = {trace.rank: frozenset(trace.strings[i] for i in trace.name[is_step_mark(trace)].tolist()) for trace in traces}
    usual, _ = Counter(marked.values()).most_common(1)[0]
    if not usual:
        usual = max(marked.values(), key=len)
    none = [rank for rank, steps in marked.items() if usual and not steps & usual]
    some = [rank for rank, steps in marked.items() if steps & usual and steps != usual]
    if none:
        message = f"{listed(none)} recorded none of the {count(len(usual), 'step')} that the other ranks recorded"
        yield Evidence("ranks-share-no-step", message, Grade.UNSOUND)
    if some:
        message = f"{listed(some)} recorded other steps than most ranks; the job's steps are those that all ranks recorded"
        yield Evidence("ranks-record-other-steps", message, Grade.LIMITED)
