"""Collect everything that a report shows of a job in one JSON document, which the browser's modules (static/) draw.

The numbers come from the analyses; this module only puts them together.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.analyze.collectives import collective_times
from lumos.analyze.contents import memory_curves
from lumos.analyze.critical_path import CriticalPath, critical_paths
from lumos.analyze.device_load import BIN_NS, busy_curves
from lumos.analyze.loop.steps import Members, StepTimes, is_operation_level, members, step_times
from lumos.analyze.ranks.equal_work import EqualWork, equal_work
from lumos.analyze.ranks.straggler_causes import described
from lumos.analyze.ranks.stragglers import Stragglers, stragglers
from lumos.analyze.replay import ReplayResult, replay
from lumos.analyze.tables import class_times
from lumos.changes.answer import contracted
from lumos.changes.certainty.trusted import interval_causes
from lumos.changes.whatif import answer_changes
from lumos.cost.from_trace import modelled_collectives
from lumos.errors import GraphError, LumosError
from lumos.findings.diagnose import diagnose_paths, named_paths
from lumos.findings.ranks import MOST_TRIED
from lumos.graph.build import build
from lumos.reports.page.html import column
from lumos.reports.page.steps import device_use, steps_shown
from lumos.reports.page.timeline_levels import Limits, drawing
from lumos.reports.text.format import a_step, kernel_name, short_name
from lumos.result import plain
from lumos.segment.outline import outline
from lumos.segment.segment import Cut
from lumos.simulation import Frozen, Timeline, freeze, measured, simulate
from lumos.stages import stage
from lumos.trace.table import unique
from lumos.units import count, duration
from lumos.vocabulary import Grade

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.analyze.trust import Trust
    from lumos.changes.changes import Changes
    from lumos.findings.finding import Diagnosis
    from lumos.graph.table import Graph
    from lumos.trace.table import Job

#: Jobs of more ranks show the mean and the range of busy curves over ranks, not each rank's.
MOST_CURVES = 16
#: The most points of a memory curve.
_MOST_POINTS = 2000
#: The most pieces of the timelines of all steps but the first shown, the most cells of a level of one of them, and the most such steps.
OTHER_TASKS, OTHER_CELLS, MOST_OTHERS = 200_000, 50_000, 24
#: How many of the longest links of the critical path the report lists.
LONGEST_LINKS = 24


@dataclass(frozen=True)
class ReportedJob:
    """A recorded job with its graph and replay. What several parts of a report need of them is computed once, when needed.

    force: answer what-ifs, and compare ranks, also where the recording cannot give a sound answer.
    """

    job: Job
    graph: Graph
    replayed: Timeline
    force: bool = False

    @classmethod
    def of(cls, job: Job, *, force: bool = False) -> ReportedJob:
        """The job with its graph, simulated. Raises GraphError where the job contains no work or has no schedule."""
        graph = build(job)
        return cls(job, graph, simulate(graph), force)

    @cached_property
    def measured(self) -> Timeline:
        """The job as it was recorded."""
        return measured(self.graph)

    @cached_property
    def membership(self) -> Members:
        """Which tasks each step has. GraphError where no step has any."""
        membership = members(self.graph)
        if not membership.steps:
            raise GraphError(f"{self.job.traces[0].path}: no step contains any task; the profiler window may have cut every step")
        return membership

    @cached_property
    def frozen(self) -> Frozen:
        """The graph with every dependency fixed, for sweeps."""
        return freeze(self.graph)

    @cached_property
    def result(self) -> ReplayResult:
        """The replay, compared with the recording."""
        return replay(self.graph, self.replayed)

    @property
    def trust(self) -> Trust:
        """How far answers about the job can be trusted."""
        return self.result.trust

    @cached_property
    def paths(self) -> dict[str, dict[str, CriticalPath]]:
        """The critical path by run and step."""
        runs = {"measured": self.measured, "replayed": self.replayed}
        return {k: {p.name: p for p in critical_paths(run, self.membership, frozen=self.frozen)} for k, run in runs.items()}

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of the job's steps, in order."""
        return tuple(step.name for step in self.membership.job)

    @cached_property
    def times(self) -> StepTimes:
        """The times of the steps as measured."""
        return step_times(self.measured, self.membership)

    @cached_property
    def classes(self) -> EqualWork:
        """The class of work of every task."""
        return equal_work(self.graph, self.membership, self.job)

    @cached_property
    def compared(self) -> Stragglers | None:
        """The ranks compared; None for a job of one rank, and for one that `_left_out` names."""
        if len(self.graph.ranks) < 2 or _left_out(self):
            return None
        return stragglers(self.graph, self.job, force=self.force)

    @cached_property
    def diagnosis(self) -> Diagnosis | LumosError:
        """What to fix first; why that has no answer where the evidence is unsound."""
        try:
            paths = named_paths(self.job)
            return diagnose_paths(self.job, paths, graph=self.graph, compared=self.compared, force=self.force)
        except LumosError as error:
            return error

    @cached_property
    def cut(self) -> Cut:
        """The job cut into layers, for what-ifs."""
        return Cut(self.job, self.graph)

    def drawing(self, step: str, limits: Limits = Limits(), changed: Timeline | None = None) -> dict[str, Any]:
        """The timeline of a step: measured, replayed where that can be told from it, and changed where a changed run is given."""
        runs = {"measured": self.measured, "replayed": self.replayed}
        paths = {run: self.paths[run][step] for run in runs}
        if changed is not None:
            runs["changed"] = changed
            (paths["changed"],) = critical_paths(changed, self.membership, frozen=self.frozen, names=(step,))
        return drawing(runs, self.membership, step, paths, self.job, limits, frozen=self.frozen, classes=self.classes)


@stage("writing the report")
def document(
    recording: ReportedJob,
    *,
    command: Sequence[str] = (),
    step: str | None = None,
    changes: Changes | None = None,
    timeline: bool = True,
) -> dict[str, Any]:
    """The report of a job as values that JSON can hold.

    step: the step whose timeline is shown (default: the one whose time is nearest to the mean). changes: a what-if; the report shows its
    answer, and its timeline where only durations change. timeline: whether to include the timeline.
    Raises GraphError where the job was never measured, has no schedule, or no step has a task.
    """
    headline = recording.times.headline
    middle = recording.times.middle.name
    unfound = [{"code": "findings-left-out", "message": str(e)} for e in (recording.diagnosis,) if isinstance(e, LumosError)]
    step = step or middle
    redrawn = timeline and changes is not None and not changes.structural
    rerun = simulate(changes.durations.apply(recording.graph, recording.job)) if changes is not None and redrawn else None
    return {
        "headline": report_headline(recording),
        "step_time_ns": headline.step_time_ns,
        "latency_ns": headline.latency_ns,
        "basis": headline.basis,
        "middle": middle,
        "median_ns": headline.median_ns,
        "trust": plain(recording.trust),
        "called": {"measured": recording.trust.timed()},
        "use": _use(recording),
        "about": _about(recording, command),
        "diagnosis": _diagnosis(recording),
        "step": step,
        "step_names": recording.steps,
        "steps": steps_shown(recording.measured, recording.replayed, recording.membership, recording.job),
        "replay": plain(recording.result),
        "busy": _busy(recording),
        "classes": _classes(recording),
        "collectives": _collectives(recording),
        "path": _paths(recording),
        "stragglers": _stragglers(recording),
        "memory": _memory(recording.job),
        "outline": _outline(recording),
        "diagnostics": [*plain(recording.result.diagnostics), *_left_out(recording), *unfound],
        "whatif": None if changes is None else what_if(recording, changes),
        **(_drawings(recording, step, rerun) if timeline else {"timeline": None, "other_timelines": {}}),
    }


def _drawings(recording: ReportedJob, step: str, changed: Timeline | None) -> dict[str, Any]:
    """`timeline`, that of `step`, with the changed run where one is given; `other_timelines`, by step, as far as there is room.

    A report has to stay small enough to be sent around. So the tasks of the other steps are in it, from the first step on, as long as they
    are few together; what has no tasks has levels of few bins.
    """
    left, others = OTHER_TASKS, {}
    for name in [name for name in recording.steps if name != step][:MOST_OTHERS]:
        others[name] = recording.drawing(name, Limits(cells=OTHER_CELLS, tasks=left))
        left -= sum(run["tasks"]["task"]["length"] for run in others[name]["runs"] if run["tasks"] is not None)
    return {"timeline": recording.drawing(step, changed=changed), "other_timelines": others}


def what_if(recording: ReportedJob, changes: Changes, *, moved: bool = True) -> dict[str, Any]:
    """The answer to changes, with the keys of `lumos whatif --json`, the difference, and what its interval comes from. moved: of durations,
    also memory and what moved on the critical path, which take longer. LumosError where the evidence is unsound and not forced."""
    job, graph, full = recording.job, recording.graph, moved or changes.structural
    answered = answer_changes(job, graph, changes, recording.cut, trust=recording.trust, force=recording.force, step_only=not full)
    answer = {**contracted(answered), "interval": plain(interval_causes(graph, answered))}
    before, after = answered.base.step_time_s, answered.outcome.step_time_s
    left_out = () if full else ("moved", "share")
    shown = {key: value for key, value in answer.items() if key not in left_out}
    return {**shown, "difference_s": after - before, "change": after / before - 1 if before else None}


def report_headline(recording: ReportedJob) -> str:
    """The first finding and what it is worth; where there is none, the time of the job's step."""
    diagnosis, graph = recording.diagnosis, recording.graph
    ranks = count(len(graph.ranks), "rank") if len(graph.ranks) > 1 else f"rank {graph.ranks[0]}"
    step = f"{a_step(recording.times.headline)} on {ranks}"
    if isinstance(diagnosis, LumosError):
        return f"{step}."
    if not diagnosis.findings:
        return f"{step}; nothing was found that is worth 2 % of it."
    first = diagnosis.findings[0]
    title = " ".join(short_name(word) for word in first.title.split(" "))
    return f"{title}: worth {duration(1e9 * first.worth_s)} of {step}."


def _about(recording: ReportedJob, command: Sequence[str]) -> dict[str, Any]:
    from importlib.metadata import version

    devices = {str(each.get("name")) for trace in recording.job.traces for each in trace.devices}
    return {
        "command": list(command),
        "lumos": version("lumos-trace"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "devices": sorted(devices),
        "files": [{"path": t.path, "rank": t.rank, "rank_source": t.rank_source, "events": len(t)} for t in recording.job.traces],
    }


def _use(recording: ReportedJob) -> dict[str, float | None]:
    times = recording.times
    together = times.mean_ns * max(len(times.counted), 1)
    return device_use(recording.measured, recording.membership, recording.job, times.tasks_counted(), together)._asdict()


def _busy(recording: ReportedJob) -> list[dict[str, Any]]:
    """For each step of the job the busy share of each of its bins of `bin_ms`, measured and replayed, per rank or as the mean of many."""
    membership = recording.membership
    runs = (recording.measured, recording.replayed)
    curves_of_runs = busy_curves(runs, membership, [step_times(run, membership).job_intervals() for run in runs])
    out = []
    for name, parts, *_ in membership.job:
        curves = [[run.steps[i] for i in parts] for run in curves_of_runs]
        ranks = [membership.steps[i].rank for i in parts]
        if len(ranks) > MOST_CURVES:
            curves = [[_mean_curve(of_run)] for of_run in curves]
            labels = [f"mean of {len(ranks)} ranks"]
        else:
            labels = [f"rank {rank}" for rank in ranks]
        rows = zip(labels, *curves, strict=True)
        bin_ms = curves_of_runs[0].bin_ns // BIN_NS
        out.append(
            {"step": name, "bin_ms": bin_ms, "curves": [{"name": n, "measured": _bytes(m), "replayed": _bytes(r)} for n, m, r in rows]}
        )
    return out


def _mean_curve(curves: Sequence[Any]) -> Any:
    bins = max(len(c) for c in curves)
    return np.mean([np.pad(c, (0, bins - len(c))) for c in curves], axis=0)


def _bytes(curve: Any) -> dict[str, Any]:
    """Shares from 0 to 1 encoded as whole numbers from 0 to 255."""
    return column(np.rint(np.asarray(curve) * 255).astype(np.uint8))


def _classes(recording: ReportedJob) -> dict[str, Any]:
    runs = {}
    for name, run in (("measured", recording.measured), ("replayed", recording.replayed)):
        times = class_times(run, recording.membership, recording.job)
        runs[name] = {"labels": times.labels, "time_ns": times.time_ns.tolist(), "waiting_ns": times.waiting_ns.tolist()}
    return {"ranks": recording.graph.ranks, **runs}


def _collectives(recording: ReportedJob) -> dict[str, Any]:
    rows = collective_times(recording.measured, recording.membership)
    expected, model = modelled_collectives(rows, recording.job) if rows else ([], "")
    return {
        "rows": [{**plain(row), "modelled": plain(m)} for row, m in zip(rows, expected, strict=True)],
        "model": model,
        "known": any(m is not None for m in expected),
    }


def _paths(recording: ReportedJob) -> list[dict[str, Any]]:
    """For each step the classes of work on the measured and the replayed critical path, and the longest links of the measured."""
    graph, out = recording.graph, []
    for name, path in recording.paths["measured"].items():
        other = recording.paths["replayed"][name]
        longest = sorted(path.links, key=lambda link: link.start_ns - link.end_ns)[:LONGEST_LINKS]
        links = [
            {
                "task": link.task,
                "name": kernel_name(graph.names[graph.name[link.task]]),
                "rank": link.rank,
                "processor": graph.processors[graph.processor[link.task]].name,
                "class": link.label,
                "start_ns": link.start_ns - path.start_ns,
                "time_ns": link.end_ns - link.start_ns,
            }
            for link in sorted(longest, key=lambda link: link.start_ns)
        ]
        summary = {"step": name, "duration_ns": path.duration_ns, "by_class": path.by_class, "by_group": path.by_group}
        replayed = {"duration_ns": other.duration_ns, "by_class": other.by_class, "by_group": other.by_group}
        out.append({**summary, "by_rank": plain(path.by_rank), "links": plain(links), "count": len(path.links), "replayed": replayed})
    return out


def _stragglers(recording: ReportedJob) -> dict[str, Any] | None:
    if recording.compared is None:
        return None
    answer: dict[str, Any] = plain(recording.compared)
    _number_tasks(recording, answer["findings"])
    answer["diagnostics"] = [d for d in answer["diagnostics"] if d not in plain(recording.result.diagnostics)]
    return answer


def _diagnosis(recording: ReportedJob) -> dict[str, Any] | None:
    """What to fix first; None where that is left out."""
    diagnosis = recording.diagnosis
    if isinstance(diagnosis, LumosError):
        return None
    answer = {key: plain(getattr(diagnosis, key)) for key in ("findings", "lacks", "step_time_s")}
    _number_tasks(recording, answer["findings"])
    return answer


def _number_tasks(recording: ReportedJob, findings: Sequence[dict[str, Any]]) -> None:
    """Add to the place of each finding the number of its task, by which links lead there."""
    graph, begin = recording.graph, {time.name: time.begin_ns for time in recording.times.job}
    for where in (finding["where"] for finding in findings):
        at = np.flatnonzero(recording.measured.start == begin[where["step"]] + where["start_ns"])
        where["number"] = next((task for task in at.tolist() if described(graph, task) == where["task"]), None)


def _left_out(recording: ReportedJob) -> list[dict[str, str]]:
    """The diagnostic that the stragglers are left out: too many ranks and tasks to try every rank, or unsound evidence."""
    ranks = len(recording.graph.ranks)
    if ranks * len(recording.graph) > MOST_TRIED:
        message = f"{ranks} ranks of {len(recording.graph):,} tasks are too many to try one by one here; ask lumos stragglers"
    elif ranks > 1 and recording.trust.grade is Grade.UNSOUND and not recording.force:
        message = f"stragglers are left out, as the recording cannot give a sound answer: {recording.trust.why}; --force shows them"
    else:
        return []
    return [{"code": "stragglers-left-out", "message": message}]


def _outline(recording: ReportedJob) -> dict[str, Any] | None:
    """The blocks of one step of the first rank; None where only whole operations were recorded, which show no layers."""
    if is_operation_level(recording.graph):
        return None
    first = replace(recording.job, traces=recording.job.traces[:1])
    shown: dict[str, Any] = plain(outline(first, graph=recording.graph if first.ranks == recording.job.ranks else None))
    return shown


def _memory(job: Job) -> list[dict[str, Any]]:
    """Memory curves, reduced to the highest point of each of MOST_POINTS equal parts of their points."""
    out = []
    for trace in job.traces[:MOST_CURVES]:
        for curve in memory_curves(trace):
            time, allocated = curve.time - int(curve.time[0]), curve.allocated
            if len(time) > _MOST_POINTS:
                edges = unique(np.linspace(0, len(time), _MOST_POINTS + 1).astype(np.int64))[:-1]
                at = [int(a + np.argmax(allocated[a:b])) for a, b in zip(edges, [*edges[1:], len(time)], strict=True)]
                time, allocated = time[at], allocated[at]
            out.append({"name": f"rank {trace.rank} {curve.name}", "time_ns": time.tolist(), "allocated_bytes": allocated.tolist()})
    return out
