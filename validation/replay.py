"""Replay every public trace and the project's own recordings, and write validation/results/replay.md.

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

from tools.document import ROOT, markdown_table
from tools.figures import write_result
from validation.exchange import LEAST, Exchange, exchange
from validation.goals import marked

from lumos.analyze.loop.noise import FEW_STEPS, NEAR, identity
from lumos.analyze.loop.steady import Steady, steady
from lumos.analyze.loop.steps import members, step_times
from lumos.analyze.replay import Probes, ReplayResult, StepReplay, probes, relative
from lumos.analyze.replay import replay as compare
from lumos.analyze.trust import Trust, with_evidence
from lumos.errors import LumosError
from lumos.graph.build import build
from lumos.graph.table import DEPENDENCY_NAMES, Graph
from lumos.simulation import simulate
from lumos.simulation.timeline import Timeline, measured
from lumos.trace import read
from lumos.trace.table import DEVICE_WORK, Category
from lumos.vocabulary import Basis, Grade

#: Kinds whose worth the table of `--ignore` shows; thread order and launch are what every replay has.
IGNORED = ("hand-off", "stream-order", "stream-wait", "sync", "queue-depth", "occupancy", "rendezvous")
#: Why the steps that are not scored stay so.
UNSCORED_NOTES = (
    "Not scored, although they count. Eight recordings hold too little to judge a replay by: fewer than 50 operators or pieces of device"
    " work; of them, mi210-gpu-only has many kernels, but no operator. qwen1.5-0.5b begins while the device still works off what was"
    " launched before. mtia-inference: a server, whose threads wait for requests and for each other through queues that are not recorded."
)
#: What the scored steps have in common that are off.
OFF_NOTES = (
    "Scored, and off. switch-moe-a100: the device stops some fifteen times for 2.4 ms, also between kernels that were queued long before,"
    " whichever they are; it fits another process that takes turns on the device, and nothing in the recording shows when. incomplete is a"
    " sample: most rows were left out, so that kernels start where their causes are not recorded. Idle time without a known cause was a"
    " reason not to score a step before; now it shows in the error."
)
#: Waiting kept as CPU work where a step is above the figure to reach.
KEPT_NOTES = (
    "Kept above 1 %. examples/gpt-2rank-cpu: one pause of 2.8 ms of rank 0's main thread in step 11, at a place where it does not pause in"
    " the other steps; it counts because the thread that communicates works throughout it, and goes on long after, so that it is no wait"
    " for that thread's end. resnet-ddp-mi300x: one pause of 0.19 ms of the main thread, while the device works."
)

#: The constants of the table of probes and constants.
_CONSTANTS = ("launch_latency_ns", "kernel_gap_ns", "dispatch_ns", "stream_wait_ns", "sync_return_ns", "copy_return_ns")


@dataclass(frozen=True)
class Case:
    """One job: its name, its files, and what its replay gave."""

    name: str
    graph: Graph
    result: ReplayResult
    late: tuple[float | None, ...]  # of each step: error of the time from the first step's begin to its completion
    probed: Probes
    without: dict[str, float | None]  # kind of dependency -> mean |step error| when it is ignored
    exchanged: Exchange | None
    base: Steady
    off: float  # of the base, as a share of the measured step
    held: Trust  # what follows of that for answers


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
    write_result("validation/results/replay.md", _section(cases, summary))
    return 0


def _recordings() -> Iterator[tuple[str, list[str]]]:
    """The recordings of devices and processes in the examples; what was emulated is replayed as it was made."""
    for folder in sorted((ROOT / "examples").iterdir()):
        paths = [str(path) for path in sorted(folder.glob("rank*.json.gz"))]
        if paths and read(paths[0]).traces[0].origin is None:
            yield f"examples/{folder.name}", paths


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
    owners = members(graph)
    base = steady(owners)
    off, found = identity(graph, base, step_times(measured(graph), owners))
    held = with_evidence(result.trust, found)
    return Case(name, graph, result, _late(graph, timeline), probes(graph), without, exchange(graph), base, off, held)


def _late(graph: Graph, timeline: Timeline) -> tuple[float | None, ...]:
    """For each step of each rank: the error of the time from the begin of its rank's first step to its completion."""
    owners = members(graph)
    measured_steps, replayed_steps = step_times(measured(graph), owners).ranks, step_times(timeline, owners).ranks
    begins: dict[int, tuple[int, int]] = {}
    out = []
    for step, truth, found in zip(owners.steps, measured_steps, replayed_steps, strict=True):
        begin = begins.setdefault(step.rank, (truth.begin_ns, found.begin_ns))
        out.append(relative(found.completion_ns - begin[1], truth.completion_ns - begin[0]))
    return tuple(out)


def _mean_error(graph: Graph) -> float | None:
    """Mean |step error| over the steps that count, scored or not, so that a change is seen everywhere."""
    errors = [abs(s.error) for s in compare(graph).counted if s.error is not None]
    return statistics.fmean(errors) if errors else None


def _summary(cases: Sequence[Case]) -> str:
    """The figures to reach beside what was reached."""
    counted = [step for case in cases for step in case.result.counted]
    scored = [step for step in counted if step.scored]
    errors = [abs(step.error) for step in scored if step.error is not None]
    starts = [step.kernel_start_error.p95 for step in scored if step.kernel_start_error.p95 is not None]
    per_trace = [
        statistics.fmean(values)
        for case in cases
        if (values := [s.kernel_start_error.p95 for s in case.result.steps if s.scored and s.kernel_start_error.p95 is not None])
    ]
    busy = [s.utilization_error for s in scored if s.utilization_error is not None]
    probed = {case.name.split("/")[0]: case.probed for case in cases}
    late = [
        abs(error) for case in cases for step, error in zip(case.result.steps, case.late, strict=True) if step.scored and error is not None
    ]
    exchanges = [case.exchanged for case in cases if case.exchanged is not None]
    own = [
        abs(s.error) for case in cases if case.name.startswith("examples/gpt-2rank-cpu") for s in case.result.counted if s.error is not None
    ]

    unscored = len(counted) - len(scored)
    off = [case for case in cases if abs(case.off) > FEW_STEPS]
    sound_off = any(case.held.grade is Grade.SOUND for case in off)

    def probe(trace: str, what: str) -> str:
        value = getattr(probed[trace], what) if trace in probed else None
        return "–" if value is None else f"{value:.2f}"

    return markdown_table(
        ("what", "to reach", "reached"),
        [
            ("mean absolute step error over scored steps", "≤ 0.5 %", _within(statistics.fmean(errors), 0.005)),
            ("worst scored step", "≤ 2 %", _within(max(errors), 0.02)),
            ("completion of scored steps, from the start of the recording: worst", "–", _percent(max(late))),
            (
                "steps not scored (reasons in the table of every step)",
                "≤ 1 in 5",
                marked(f"{unscored} of {len(counted)}", 5 * unscored <= len(counted)),
            ),
            ("kernel start error, 95th percentile: median over traces", "≤ 0.3 %", _within(statistics.median(per_trace), 0.003)),
            ("kernel start error, 95th percentile: worst step", "≤ 1.5 %", _within(max(starts), 0.015)),
            ("waiting kept as CPU work, worst scored step", "≤ 1 %", _within(max(s.kept_wait or 0.0 for s in scored), 0.01)),
            (
                "`gpu_zero` on vgg13-h100, resnet-v100",
                "≤ 0.3, ≤ 0.5",
                f"{probe('vgg13-h100', 'gpu_zero')}, {probe('resnet-v100', 'gpu_zero')}",
            ),
            ("`cpu_double` on the same", "≤ 1.1", f"{probe('vgg13-h100', 'cpu_double')}, {probe('resnet-v100', 'cpu_double')}"),
            (
                "a step's period from its durations in another's graph: error as a share of that of the other's period",
                "≤ 0.50 each",
                ", ".join(marked(f"{x.alone / x.again:.2f}", x.alone <= 0.5 * x.again) for x in exchanges) + " (by trace below)",
            ),
            (
                "base of every answer against the measured mean: beyond 1 %, and of those sound",
                "none sound",
                marked(f"{len(off)} of {len(cases)}, {sum(c.held.grade is Grade.SOUND for c in off)}", not sound_off),
            ),
            ("utilization error: mean over steps", "≤ 0.02", marked(f"{statistics.fmean(busy):.4f}", statistics.fmean(busy) <= 0.02)),
            ("utilization error: worst step", "≤ 0.02", marked(f"{max(busy):.4f}", max(busy) <= 0.02)),
            ("the recorded CPU/gloo example, worst step", "≤ 1 %", _percent(max(own, default=None))),
        ],
    )


def _within(value: float, most: float) -> str:
    """A share, and whether it misses what is to be reached."""
    return marked(_percent(value), value <= most)


def _section(cases: Sequence[Case], summary: str) -> str:
    return "\n\n".join(
        [
            "Written by `python -m validation.replay` with `LUMOS_TRACES` set to the public traces (their sources are listed in"
            " [formats.md](../../docs/formats.md)). Errors are shares of the measured step: of its period or, in recordings that"
            " show none, of its latency ([what a step is](../../docs/how-it-works.md#what-a-step-is)).",
            summary,
            "## Every step",
            "error: of the period or, where basis says so, of the latency. completion: error of the time from the begin of the rank's"
            " first step to the completion of this one. start: kernel start error, median and 95th percentile. kept: waiting that no rule"
            " explained, kept as CPU work. unexplained: idle without a known cause. prefix: share covered by device work launched before"
            " the window. busy: mean difference of the busy-fraction curves. A step is scored with at least 50 GPU rows and operator rows"
            " (without GPU rows 50 operators), kept ≤ 5 %, prefix ≤ 10 %. The first step of a recording, and steps in which something"
            " happens once, are listed, but count in no figure.",
            markdown_table(
                (
                    *("job", "rank, step", "period ms", "latency ms", "basis", "error", "completion"),
                    *("start", "kept", "unexplained", "prefix", "busy", "scored"),
                ),
                [_step_row(case, step, late) for case in cases for step, late in zip(case.result.steps, case.late, strict=True)],
            ),
            UNSCORED_NOTES,
            OFF_NOTES,
            KEPT_NOTES,
            "## The base of every answer",
            "What-ifs and findings compare two loops of the recorded steps, and the base must take what was measured: up to"
            f" {FEW_STEPS:.0%} off, or what its steps differ by, it is sound, up to {NEAR:.0%} limited, beyond that unsound. off: of the"
            " base, against the measured mean; of a recording without periods, of its replayed latency, with all that happens once. passes:"
            " how often the steps were repeated until they settled. left out: dependencies on the step before the first that have no"
            " counterpart in the loop, and how many"
            " there are.",
            markdown_table(
                ("job", "basis", "steps", "measured ms", "base ms", "off", "replay", "grade", "passes", "tasks", "left out"),
                [_identity_row(case) for case in cases],
            ),
            "## One step's durations in another step's graph",
            "The period of step B, predicted by the graph of step A with the durations of B: mean absolute error over all pairs of steps of"
            f" a job whose periods differ by {100 * LEAST:.0f} % or more. again: taking the period of A instead. alone: with those of"
            " B alone. with the step before: with those of the step before B as well, which set how far the CPU is ahead when B begins."
            " replayed: mean absolute error of the replay itself, with every step's own durations.",
            markdown_table(
                ("job", "pairs", "again", "alone", "share of it", "with the step before", "replayed"),
                [_exchange_row(case, case.exchanged) for case in cases if case.exchanged is not None],
            ),
            "## What each dependency is worth",
            "Mean absolute step error, over the steps that count, when a kind of dependency is ignored (`lumos replay --ignore KIND`)."
            " A dash: the graph then has no schedule.",
            markdown_table(
                ("job", "none ignored", *IGNORED),
                [(c.name, _percent(_mean_error(c.graph)), *(_percent(c.without[k]) for k in IGNORED)) for c in cases],
            ),
            "## Constants and probes",
            "Constants in µs, per rank where they differ. Probes: what the loop takes for a step with GPU work at zero and with CPU work"
            " doubled, as a multiple of what it takes as it is. A replay that only copied the measured waits would give 1.0 and 2.0,"
            " whatever bounds the job.",
            markdown_table(
                ("job", "launch latency", "kernel gap", "dispatch", "stream wait", "sync return", "copy return", "gpu_zero", "cpu_double"),
                [_constants_row(case) for case in cases],
            ),
        ]
    )


def _step_row(case: Case, step: StepReplay, late: float | None) -> tuple[str, ...]:
    start = step.kernel_start_error
    return (
        case.name,
        f"{step.rank}, {step.name}",
        f"{step.measured_ns / 1e6:.2f}" if step.basis is Basis.PERIOD else "–",
        f"{step.latency_ns / 1e6:.2f}",
        step.basis.value,
        _percent(step.error, signed=True),
        _percent(late, signed=True),
        "–" if start.median is None else f"{_percent(start.median)}, {_percent(start.p95)}",
        _percent(step.kept_wait),
        _percent(step.unexplained_idle),
        _percent(step.prefix),
        "–" if step.utilization_error is None else f"{step.utilization_error:.4f}",
        "yes" if step.scored else f"no: {step.unscored_reason}",
    )


def _identity_row(case: Case) -> tuple[str, ...]:
    base, result = case.base, case.result
    looped = base.basis is Basis.PERIOD
    return (
        case.name,
        base.basis.value,
        str(len({step.name for step in result.counted})),
        f"{result.step_time_ns / 1e6:.2f}",
        f"{base.step_time_ns / 1e6:.2f}",
        _percent(case.off, signed=True),
        _percent(relative(result.replayed_step_time_ns, result.step_time_ns), signed=True),
        case.held.grade.value,
        str(len(base.loop.owners.job) // base.loop.steps) if looped else "–",
        f"{len(base.loop.graph):,}",
        f"{base.loop.dropped} of {base.loop.crossing}" if looped else "–",
    )


def _exchange_row(case: Case, found: Exchange) -> tuple[str, ...]:
    shares = _percent(found.again), _percent(found.alone), f"{found.alone / found.again:.2f}", _percent(found.before)
    return case.name, str(found.pairs), *shares, _percent(case.result.mean_abs_error)


def _constants_row(case: Case) -> tuple[str, ...]:
    found = case.result.constants

    def constant(name: str) -> str:
        values = sorted(set(found.get(name, ())))
        return "–" if not values else f"{values[0] / 1e3:.2f}" if len(values) == 1 else f"{values[0] / 1e3:.2f} to {values[-1] / 1e3:.2f}"

    def multiple(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f}"

    return (
        case.name,
        *(constant(n) for n in _CONSTANTS),
        multiple(case.probed.gpu_zero),
        multiple(case.probed.cpu_double),
    )


def _percent(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "–"
    return f"{100 * value:{'+' if signed else ''}.2f} %"


if __name__ == "__main__":
    sys.exit(main())
