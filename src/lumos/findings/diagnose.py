"""`lumos.diagnose`: what to fix first in a job, and what it is worth.

A changed script may be a fix: what it saves is the worth of the finding that it fixes, else a finding of its own. It fixes a finding where
it calls less often what stands at the line and in the module that the finding names, and saves what the finding says that this is worth,
within its interval. Both scripts are run without devices (`scripted`): no rule says what a change does.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lumos.analyze.loop.steps import is_operation_level
from lumos.analyze.trust import check_sound
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.findings.case import Priced, case_of
from lumos.findings.communication import communication_findings
from lumos.findings.finding import Diagnosis, Finding, FindingCode
from lumos.findings.host import stall_findings, starved_findings
from lumos.findings.launches import launch_findings, launches_seen
from lumos.findings.loader import loader_findings
from lumos.findings.plan_choices import plan_findings
from lumos.findings.ranks import MOST_TRIED, rank_findings
from lumos.findings.slow_steps import slow_step_findings
from lumos.findings.waits import blocking_findings
from lumos.graph.build import build
from lumos.scripted.facade import matched_script
from lumos.stages import stage
from lumos.trace.source import OfJob, as_job, paths_of
from lumos.trace.table import Category, Job
from lumos.units import count, duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lumos.analyze.ranks.stragglers import Stragglers
    from lumos.findings.case import Case
    from lumos.graph.table import Graph
    from lumos.scripted.answer import ChangedScript
    from lumos.scripted.origin import TaskOrigins
    from lumos.trace.source import Source

#: How many kinds of operators are named.
_NAMED = 3


def with_changed_scripts(
    case: Case, findings: Sequence[Priced], changed: Sequence[ChangedScript]
) -> tuple[list[Priced], list[Diagnostic]]:
    """The findings with those that changed scripts fix at the scripts' prices, and what is said of scripts that save too little."""
    out, said = list(findings), []
    for script in changed:
        base, after = script.answer.base.step_time_s, script.answer.outcome
        worth, low, high = (base - time for time in (after.step_time_s, after.step_time_high_s, after.step_time_low_s))
        if not case.matters(1e9 * worth):
            message = f"--after {script.after}: saves {duration(1e9 * worth)} a step ({duration(1e9 * low)} to {duration(1e9 * high)})"
            said.append(Diagnostic("script-saves-little", message))
            continue
        lines = {line for lost in script.gone for line in lost.origins} - {""}
        fixed = [
            i
            for i, (finding, _) in enumerate(out)
            if finding.where.script in lines and finding.worth_low_s <= worth <= finding.worth_high_s
        ]
        position = max(fixed, key=lambda i: out[i].finding.worth_s, default=len(out))
        command = case.command(f"--before {shlex.quote(script.before)} --after {shlex.quote(script.after)}")
        one, words = out[position] if fixed else _of_its_own(case, script)
        priced = replace(one, worth_s=worth, worth_low_s=low, worth_high_s=high, worth_after_s=worth, grade=script.answer.trust.grade)
        out[position : position + 1] = [Priced(replace(priced, fix=f"as in {script.after}", command=command), words)]
    return out, said


def _of_its_own(case: Case, script: ChangedScript) -> Priced:
    """A finding, without its price, about what the changed script calls less often."""
    where, evidence = case.at_longest(case.counted), "the same operators, of other sizes or with others beside them"
    if script.gone:
        where = where._replace(task=script.gone[0].operator, script=script.gone[0].origins[0])
        named = ", ".join(f"{lost.calls:.0f} {lost.operator}" for lost in script.gone[:_NAMED])
        more = f" and {count(len(script.gone) - _NAMED, 'kind')} more" if len(script.gone) > _NAMED else ""
        evidence = f"fewer calls a step: {named}{more}"
    title, grade = "a changed script takes less", script.answer.trust.grade
    return Priced(Finding(FindingCode.CHANGED_SCRIPT, title, where, 0.0, 0.0, 0.0, 0.0, grade, evidence, "", ""), {})


def diagnose(
    job: Source,
    *,
    graph: Graph | None = None,
    repair: bool = False,
    force: bool = False,
    before: str | Sequence[str] | None = None,
    after: Sequence[str | Sequence[str]] = (),
) -> Diagnosis:
    """What to fix first in a recorded job: findings with their worth, place and evidence. The one comes first that
    is worth most when those above it are fixed.

    job: trace files or a folder, or a job from `lumos.read`. graph: the job's graph from `lumos.build`, to save building it again. force:
    answer also where the recording cannot give a sound answer. before: the command that made the recording; it is run without devices, and
    findings name its lines and modules. after: commands of changed scripts, which are run too: what each saves is the worth of the finding
    that it fixes, or a finding of its own. Raises TraceError as `lumos.read` does, GraphError where no step owns any work, LumosError where
    the job was never measured, its evidence is unsound, or it is not of `before`.
    """
    read = as_job(job, repair=repair)
    built = build(read) if graph is None else graph
    paths = named_paths(read) if isinstance(job, Job | OfJob) else paths_of(job)
    script = matched_script(read, built, before, force=force) if before is not None or after else None
    changed = script.changed_scripts(after) if script else ()
    return diagnose_paths(read, paths, graph=built, force=force, origin=script.origins if script else None, changed=changed)


def named_paths(job: Job) -> tuple[str, ...]:
    """What to name on the command line to read a job again: its file, or the folder that has all of its files."""
    files = dict.fromkeys(trace.path for trace in job.traces)
    folders = dict.fromkeys(str(Path(file).parent) for file in files)
    return tuple(folders if len(files) > 1 and len(folders) == 1 else files)


@stage("diagnosing")
def diagnose_paths(
    job: Job,
    paths: Sequence[str],
    *,
    graph: Graph | None = None,
    compared: Stragglers | None = None,
    force: bool = False,
    origin: TaskOrigins | None = None,
    changed: Sequence[ChangedScript] = (),
) -> Diagnosis:
    """The same for a job that was read from `paths`, which the commands of its findings name. compared: what `lumos.stragglers` gives for
    it, where it is known already. origin: where in the script its tasks come from, and changed: changed scripts; nothing here runs one."""
    built = build(job) if graph is None else graph
    if built.measured_start is None:
        raise LumosError(f"{paths[0]}: diagnose needs a measured job, and this one holds no times; record it with lumos collect")
    case = case_of(job, built, paths, origin or (lambda _: ""), force=force)
    check_sound(case.trust, "diagnose", force=force)
    starved = [*starved_findings(case)]
    unequal = [*starved, *rank_findings(case, compared), *slow_step_findings(case, starved)]
    priced = [
        *unequal,
        *stall_findings(case, unequal),
        *loader_findings(case),
        *communication_findings(case),
        *launch_findings(case),
        *blocking_findings(case),
        *plan_findings(case),
    ]
    priced, worthless = with_changed_scripts(case, priced, changed)
    headline = case.times.headline
    return Diagnosis(
        ranks=len(built.ranks),
        step_time_s=headline.step_time_ns * 1e-9,
        latency_s=headline.latency_ns * 1e-9,
        basis=headline.basis,
        trust=case.trust,
        findings=case.one_after_another(priced),
        lacks=tuple(lacks(case)),
        diagnostics=(*worthless, *built.diagnostics, *case.times.findings(), *case.base.findings("the job")),
    )


def lacks(case: Case) -> Iterator[Diagnostic]:
    """One diagnostic for each thing that a better recording would show."""
    traces, graph = case.job.traces, case.graph
    for asked, why in case.refused.items():
        yield Diagnostic("not-priced", f"what lumos whatif {asked} would save is not known: {why}")
    if len(graph.ranks) == 1:
        world = traces[0].world_size
        others = f"{count(world - 1, 'other rank')} of the job" if world and world > 1 else "others"
        yield Diagnostic("one-rank", f"the recording has one rank: whether it waits for {others} cannot be seen")
    elif len(graph.ranks) == 2:
        yield Diagnostic("two-ranks", "two ranks have no majority: which of them is off cannot be told; record a third")
    if len(graph.ranks) * len(graph) > MOST_TRIED:
        message = f"{len(graph.ranks)} ranks of {len(graph):,} tasks are too many to compare one by one here; ask lumos stragglers"
        yield Diagnostic("ranks-not-compared", message)
    if is_operation_level(graph):
        message = "the recording has whole operations only: launches, kernels, copies and loaders cannot be seen"
        yield Diagnostic("operations-only", message)
        return
    if not case.has_device:
        yield Diagnostic("no-device", "no device work is recorded: launches and kernels cannot be judged (ProfilerActivity.CUDA)")
    elif not launches_seen(case):
        yield Diagnostic("no-launches", "no launch calls are recorded (ProfilerActivity.CPU): why the devices idle cannot be seen")
    if len(case.times.counted) < 2:
        yield Diagnostic("few-steps", "one step counts: what happens only now and then cannot be seen; record four steps or more")
    if not any("Input Dims" in trace.args for trace in traces):
        yield Diagnostic("no-shapes", "no shapes are recorded (record_shapes=True): uneven inputs and stalls of operators cannot be told")
    if case.has_device and not any((trace.category == Category.SYNC).any() for trace in traces):
        yield Diagnostic("no-sync-rows", "no synchronisation rows (enable_cuda_sync_events): waits are inferred from the order of calls")
    if not any(trace.metadata.get("lumos_host") for trace in traces) and case.job.origin is None:
        yield Diagnostic("no-host-rows", "what processes got of their CPUs is not recorded (lumos.collect): starved ones cannot be told")
