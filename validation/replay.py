"""Replay every public trace and the project's own recordings, and write the accuracy tables of docs/accuracy.md.

    LUMOS_TRACES=... python -m validation.replay

Every Kineto file under LUMOS_TRACES is replayed on its own, and every folder of several ranks of one job as one job.
The text above the tables explains their columns; steps that are not scored are listed with the reason.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tools.document import ROOT, markdown_table, write_section

from lumos.analyze.probes import Probes, probes
from lumos.analyze.replay import ReplayResult, StepReplay
from lumos.analyze.replay import replay as compare
from lumos.analyze.steps import members, step_spans
from lumos.errors import LumosError
from lumos.graph.build import build
from lumos.graph.table import DEPENDENCY_NAMES, DEVICE_KINDS, Graph, Kind
from lumos.simulate import simulate
from lumos.simulate.timeline import measured
from lumos.trace import read
from lumos.trace.table import DEVICE_WORK, Category, Int64

#: Kinds whose worth the table of `--ignore` shows; thread order and launch are what every replay has.
IGNORED = ("hand-off", "stream-order", "stream-wait", "sync", "queue-depth", "occupancy", "rendezvous")
#: Kinds that two steps must share one by one before their durations can be exchanged.
ANCHORS = (Kind.LAUNCH, Kind.SYNC, *DEVICE_KINDS)


@dataclass(frozen=True)
class Case:
    """One job: its name, its files, and what its replay gave."""

    name: str
    graph: Graph
    result: ReplayResult
    probed: Probes
    without: dict[str, float | None]  # kind of dependency -> mean |step error| when it is ignored
    exchanged: float | None  # mean |error| with one step's durations in another step's graph


def main() -> int:
    folder = os.environ.get("LUMOS_TRACES")
    jobs = list(_recordings())
    if folder:
        jobs += list(_public(Path(folder)))
    else:
        print("LUMOS_TRACES is not set: only the project's own recordings are replayed", file=sys.stderr)
    cases = []
    for name, paths in jobs:
        try:
            cases.append(_case(name, paths))
        except LumosError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        print(f"{name}: {_percent(cases[-1].result.mean_abs_error)}", file=sys.stderr)
    summary = _summary(cases)
    write_section("docs/accuracy.md", "replay", _section(cases, summary))
    write_section("README.md", "accuracy", summary)
    return 0


def _recordings() -> Iterator[tuple[str, list[str]]]:
    for folder in sorted((ROOT / "examples").iterdir()):
        if folder.is_dir() and any(folder.glob("rank*.json.gz")):
            yield f"examples/{folder.name}", [str(p) for p in sorted(folder.glob("rank*.json.gz"))]


def _public(root: Path) -> Iterator[tuple[str, list[str]]]:
    """The Kineto files under the folder of public traces, the files of one job together."""
    for folder in sorted(p for p in root.iterdir() if p.is_dir()):
        files = [p for p in sorted(folder.glob("*.json.gz")) if _is_kineto(p)]
        ranks = [p for p in files if "rank" in p.name]
        if len(ranks) > 1:
            for stem in sorted({p.name.split("rank")[0] for p in ranks}):
                job = [str(p) for p in ranks if p.name.startswith(f"{stem}rank") and p.name.split("rank")[1][0].isdigit()]
                if len(job) > 1:
                    yield f"{folder.name} ({len(job)} ranks)", job
        for path in files:
            if len(ranks) <= 1 or path not in ranks or not path.name.split("rank")[1][:1].isdigit():
                yield f"{folder.name}/{path.name.removesuffix('.json.gz')}", [str(path)]


def _is_kineto(path: Path) -> bool:
    """Whether the file is a profiler trace: not an execution trace, a Chakra file or a timeline that another tool drew."""
    try:
        return any(t.is_any(Category.OPERATOR, Category.RUNTIME, *DEVICE_WORK).any() for t in read(path).traces)
    except LumosError:
        return False


def _case(name: str, paths: Sequence[str]) -> Case:
    graph = build(read(*paths))
    timeline = simulate(graph)
    result = compare(graph, timeline)
    without = {}
    for kind in IGNORED:
        try:
            dropped = replace(graph, ignored=frozenset(DEPENDENCY_NAMES[kind]))
            without[kind] = _mean_error(dropped)
        except LumosError:
            without[kind] = None
    return Case(name, graph, result, probes(graph, timeline), without, _exchange(graph))


def _mean_error(graph: Graph) -> float | None:
    """Mean |step error| over all steps, scored or not, so that a change is seen everywhere."""
    errors = [abs(s.error) for s in compare(graph).steps if s.error is not None]
    return statistics.fmean(errors) if errors else None


def _exchange(graph: Graph) -> float | None:
    """Mean |error| of predicting one step by its own durations in another step's graph, where both do the same things.

    Anchors (launches, synchronisations, returns, device work) must agree one by one; CPU time between two anchors is
    given to the other step's slices in proportion, since whole-microsecond clocks drop a slice here and there.
    """
    owners = members(graph)
    truth = step_spans(measured(graph), owners)
    length = truth[1] - truth[0]
    errors = []
    for i in range(len(owners.steps)):
        for j in range(len(owners.steps)):
            if i == j or owners.steps[i].rank != owners.steps[j].rank:
                continue
            durations = _transplant(graph, owners.tasks(i), owners.tasks(j))
            if durations is None:
                continue
            start, end = step_spans(simulate(graph, durations), owners)
            errors.append(abs(int(end[j] - start[j]) / int(length[i]) - 1))
    return statistics.fmean(errors) if errors else None


def _transplant(graph: Graph, source: Int64, target: Int64) -> Int64 | None:
    """All durations, with those of `target` tasks replaced by those of `source`; None where the steps do other things."""
    durations = graph.duration.copy()
    processors = np.union1d(graph.processor[source], graph.processor[target])
    for processor in processors:
        ours, theirs = source[graph.processor[source] == processor], target[graph.processor[target] == processor]
        anchored = [np.flatnonzero(np.isin(graph.kind[t], ANCHORS)) for t in (ours, theirs)]
        names = [graph.name[t[a]] for t, a in zip((ours, theirs), anchored, strict=True)]
        if len(names[0]) != len(names[1]) or (names[0] != names[1]).any():
            return None
        durations[theirs[anchored[1]]] = graph.duration[ours[anchored[0]]]
        edges = [np.concatenate(([-1], a, [len(t)])) for t, a in zip((ours, theirs), anchored, strict=True)]
        for k in range(len(edges[0]) - 1):
            mine = ours[edges[0][k] + 1 : edges[0][k + 1]]
            yours = theirs[edges[1][k] + 1 : edges[1][k + 1]]
            total, before = int(graph.duration[mine].sum()), int(graph.duration[yours].sum())
            if len(yours) and before:
                durations[yours] = np.rint(graph.duration[yours] * (total / before)).astype(np.int64)
            elif len(yours):
                durations[yours[0]] = total
    return durations


def _summary(cases: Sequence[Case]) -> str:
    """The figures to reach beside what was reached."""
    steps = [(case, step) for case in cases for step in case.result.steps]
    scored = [step for _, step in steps if step.scored]
    errors = [abs(step.error) for step in scored if step.error is not None]
    late = [step.kernel_start_error.p95 for step in scored if step.kernel_start_error.p95 is not None]
    per_trace = [
        statistics.fmean(values)
        for case in cases
        if (values := [s.kernel_start_error.p95 for s in case.result.steps if s.scored and s.kernel_start_error.p95 is not None])
    ]
    busy = [s.utilization_error for s in scored if s.utilization_error is not None]
    probed = {case.name.split("/")[0]: case.probed for case in cases}
    swapped = next((case.exchanged for case in cases if case.name.startswith("resnet50-v100-old-schema")), None)
    own = [
        abs(s.error) for case in cases if case.name.startswith("examples/gpt-2rank-cpu") for s in case.result.steps if s.error is not None
    ]

    def probe(trace: str, what: str) -> str:
        value = getattr(probed[trace], what) if trace in probed else None
        return "–" if value is None else f"{value:.2f}"

    return markdown_table(
        ("what", "to reach", "reached"),
        [
            ("mean absolute step error over scored steps", "≤ 0.5 %", _percent(statistics.fmean(errors))),
            ("worst scored step", "≤ 2 %", _percent(max(errors))),
            ("steps not scored", "≤ 1 in 5", f"{len(steps) - len(scored)} of {len(steps)} (reasons in the table of every step)"),
            ("kernel start error, 95th percentile: median over traces", "≤ 0.3 %", _percent(statistics.median(per_trace))),
            ("kernel start error, 95th percentile: worst step", "≤ 1.5 %", _percent(max(late))),
            ("waiting kept as CPU work, worst scored step", "≤ 1 %", _percent(max(s.kept_wait or 0.0 for s in scored))),
            (
                "`gpu_zero` on vgg13-h100, resnet-v100",
                "≤ 0.3, ≤ 0.5",
                f"{probe('vgg13-h100', 'gpu_zero')}, {probe('resnet-v100', 'gpu_zero')}",
            ),
            ("`cpu_double` on the same", "≤ 1.1", f"{probe('vgg13-h100', 'cpu_double')}, {probe('resnet-v100', 'cpu_double')}"),
            ("one step's durations in another's graph (resnet50-v100-old-schema)", "≤ 0.5 %", _percent(swapped)),
            ("utilization error, mean; worst step", "≤ 0.02", f"{statistics.fmean(busy):.4f}; {max(busy):.4f}"),
            ("the recorded CPU/gloo example, worst step", "≤ 1 %", _percent(max(own, default=None))),
        ],
    )


def _section(cases: Sequence[Case], summary: str) -> str:
    steps = [(case, step) for case in cases for step in case.result.steps]
    return "\n\n".join(
        [
            "Written by `python -m validation.replay` with `LUMOS_TRACES` set to the public traces (their sources are listed in"
            " [formats.md](formats.md)). Errors are shares of the measured step.",
            summary,
            "### Every step",
            "start: kernel start error, median and 95th percentile. kept: waiting that no rule explained, kept as CPU work."
            " unexplained: idle without a known cause. prefix: share covered by device work launched before the window. busy: mean"
            " difference of the busy-fraction curves."
            " A step is scored with at least 50 GPU rows and operator rows (without GPU rows 50 operators), unexplained ≤ 1 %,"
            " prefix ≤ 10 %.",
            markdown_table(
                ("job", "rank, step", "measured ms", "error", "start", "kept", "unexplained", "prefix", "busy", "scored"),
                [_step_row(case, step) for case, step in steps],
            ),
            "### What each dependency is worth",
            "Mean absolute step error over all steps when a kind of dependency is ignored (`lumos replay --ignore KIND`). A dash: the"
            " graph then has no schedule.",
            markdown_table(
                ("job", "none ignored", *IGNORED),
                [(c.name, _percent(_mean_error(c.graph)), *(_percent(c.without[k]) for k in IGNORED)) for c in cases],
            ),
            "### Constants and probes",
            "Constants in µs, per rank where they differ. Probes: the step with GPU work at zero and with CPU work doubled, as a multiple"
            " of the plain replay; exchange: one step's durations in another step's graph, mean absolute error. A replay that only"
            " copied the measured waits would give 1.0 and 2.0, whatever bounds the job. On a job whose queue is full, CPU work that"
            " takes twice as long can shorten the time from a step's first launch to its last kernel, which explains figures below 1.",
            markdown_table(
                ("job", "launch latency", "kernel gap", "sync return", "copy return", "gpu_zero", "cpu_double", "exchange"),
                [_constants_row(case) for case in cases],
            ),
        ]
    )


def _step_row(case: Case, step: StepReplay) -> tuple[str, ...]:
    start = step.kernel_start_error
    return (
        case.name,
        f"{step.rank}, {step.name}",
        f"{step.measured_ns / 1e6:.2f}",
        _percent(step.error, signed=True),
        "–" if start.median is None else f"{_percent(start.median)}, {_percent(start.p95)}",
        _percent(step.kept_wait),
        _percent(step.unexplained_idle),
        _percent(step.prefix),
        "–" if step.utilization_error is None else f"{step.utilization_error:.4f}",
        "yes" if step.scored else f"no: {step.unscored_reason}",
    )


def _constants_row(case: Case) -> tuple[str, ...]:
    found = case.result.constants

    def constant(name: str) -> str:
        values = sorted(set(found.get(name, ())))
        return "–" if not values else f"{values[0] / 1e3:.2f}" if len(values) == 1 else f"{values[0] / 1e3:.2f} to {values[-1] / 1e3:.2f}"

    def multiple(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f}"

    return (
        case.name,
        *(constant(n) for n in ("launch_latency_ns", "kernel_gap_ns", "sync_return_ns", "copy_return_ns")),
        multiple(case.probed.gpu_zero),
        multiple(case.probed.cpu_double),
        _percent(case.exchanged),
    )


def _percent(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "–"
    return f"{100 * value:{'+' if signed else ''}.2f} %"


if __name__ == "__main__":
    sys.exit(main())
