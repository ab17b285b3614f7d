"""How far an answer from a trace can be trusted.

The evidence comes from where it is found: `graph.evidence` and `graph.joined.one_job` read it from the rows, `analyze.evidence` from
the replay. Here it is only graded. An answer is *sound* where nothing was found that could move it beyond its interval, *limited* where
something that it depends on is unknown, and *unsound* where the recording or its replay is wrong. An unknown share of a step widens the
interval of a what-if, which then holds it; the answer is limited where all such shares together are more than the recording leaves
unknown anyway, by how much its steps differ (`analyze.loop.noise.resolution`). Rows that break a rule are wrong where they are more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lumos.analyze.evidence import replay_evidence
from lumos.analyze.loop.noise import resolution
from lumos.analyze.loop.steps import members, step_times
from lumos.diagnostics import Diagnostic
from lumos.errors import GraphError, LumosError
from lumos.graph.evidence import NEVER_MEASURED
from lumos.graph.joined.one_job import MODELLED
from lumos.graph.table import Evidence
from lumos.simulation import measured, simulate
from lumos.vocabulary import Grade

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lumos.analyze.loop.steps import Members
    from lumos.graph.table import Graph
    from lumos.simulation.timeline import Timeline

_WORST_FIRST = (Grade.UNSOUND, Grade.LIMITED, Grade.SOUND)


class Trust(NamedTuple):
    """A grade, why it is no better, the gravest reason first, and the share of a step's time that the reasons leave unknown."""

    grade: Grade
    reasons: tuple[Diagnostic, ...] = ()
    unknown: float = 0.0

    @property
    def why(self) -> str:
        """The gravest reason in words; empty where the grade is sound."""
        return self.reasons[0].message if self.reasons and self.grade is not Grade.SOUND else ""

    def timed(self, run: str = "measured") -> str:
        """What a run of the job is called: one that is given as measured was "modelled" where no device ran it."""
        return "modelled" if run == "measured" and any(reason.code == MODELLED for reason in self.reasons) else run


#: The trust in a job of which nothing speaks against it.
SOUND = Trust(Grade.SOUND)


def trust(graph: Graph, timeline: Timeline | None = None, owners: Members | None = None) -> Trust:
    """How far answers about the job of `graph` can be trusted.

    timeline: the replay, and owners: what `lumos.analyze.loop.steps.members` gives for the graph; worked out here where they are not given.
    A graph that has no schedule is graded `unsound`.
    """
    if graph.measured_start is None or any(finding.code == NEVER_MEASURED for finding in graph.evidence):
        return grade(graph.evidence)
    try:
        replayed = simulate(graph) if timeline is None else timeline
    except GraphError as error:
        summary = str(error).splitlines()[0]
        return grade((*graph.evidence, Evidence("no-schedule", f"the dependencies contradict each other: {summary}", Grade.UNSOUND)))
    truth = measured(graph)
    times = step_times(truth, members(graph) if owners is None else owners)
    known, evidence = resolution(times), (*graph.evidence, *replay_evidence(times, truth, replayed))
    few = [e._replace(grade=Grade.SOUND) if e.grade is Grade.UNSOUND and 0 < e.share <= known else e for e in evidence]
    return with_unknown(grade(few), known)


def without_graph(error: LumosError) -> Trust:
    """The trust in a job of which no graph can be made, for the reason that `error` says."""
    return grade([Evidence("no-graph", str(error), Grade.UNSOUND)])


def grade(evidence: Iterable[Evidence]) -> Trust:
    """The grade that the evidence allows: that of its gravest finding. Findings of one code become one reason."""
    by_code: dict[str, list[Evidence]] = {}
    for finding in sorted(evidence, key=lambda finding: (_WORST_FIRST.index(finding.grade), -finding.share)):
        by_code.setdefault(finding.code, []).append(finding)
    more = {code: f" (and {len(findings) - 1} more like it)" for code, findings in by_code.items() if len(findings) > 1}
    reasons = tuple(Diagnostic(code, findings[0].message + more.get(code, "")) for code, findings in by_code.items())
    gravest = next((findings[0].grade for findings in by_code.values()), Grade.SOUND)
    unknown = sum(max(finding.share for finding in findings) for findings in by_code.values())
    return Trust(gravest, reasons, min(unknown, 1.0))


def with_evidence(trust: Trust, evidence: tuple[Evidence, ...]) -> Trust:
    """The trust with further findings."""
    return together(trust, grade(evidence))


def together(trust: Trust, more: Trust) -> Trust:
    """The trust for the reasons of both, those of the graver first."""
    graver, other = sorted((trust, more), key=lambda either: _WORST_FIRST.index(either.grade))
    return Trust(graver.grade, (*graver.reasons, *other.reasons), min(trust.unknown + more.unknown, 1.0))


def with_unknown(trust: Trust, known: float) -> Trust:
    """The trust, limited where more of a step is unknown than `known`, the share up to which it is never known better."""
    return trust._replace(grade=Grade.LIMITED) if trust.grade is Grade.SOUND and trust.unknown > known else trust


def check_sound(trust: Trust, what: str, *, force: bool = False) -> None:
    """Raise LumosError where the evidence is unsound, unless `force`. what: the question, such as "whatif"."""
    if trust.grade is Grade.UNSOUND and not force:
        raise LumosError(f"{what}: the recording cannot give a sound answer: {trust.why}; pass --force to get the answer all the same")
