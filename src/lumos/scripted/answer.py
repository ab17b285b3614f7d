"""From a recording and two commands to the answer of a what-if, with how far the scripts explain the recording.

The base is the emulated script as it was recorded, at the recording's prices; its difference from what was measured says how well that
script, on its exact dependencies, stands for the recording.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

import numpy as np

from lumos.analyze.contents import memory_curves
from lumos.analyze.loop.noise import NEAR, measured_step, noise_unknown, resolution, spread, step_times_of
from lumos.analyze.loop.steady import Steady, steady, with_other_durations
from lumos.analyze.loop.steps import members
from lumos.analyze.trust import Trust, check_sound, grade, together
from lumos.analyze.trust import trust as trust_in
from lumos.changes.answer import Answer, Changed, LoopFigures, Outcome, PeakMemory, StepWork, contributions, outcome
from lumos.changes.certainty.trusted import widened
from lumos.changes.certainty.unmeasured import mostly_modelled
from lumos.changes.machine import has_device, recorded_cluster
from lumos.diagnostics import Diagnostic
from lumos.emulation.accelerators import ON_CPUS
from lumos.emulation.record import MemoryKind
from lumos.errors import LumosError, UsageError
from lumos.graph.table import Evidence
from lumos.scripted.carry import MeasuredPrices, PriceSource
from lumos.scripted.command import parse
from lumos.scripted.match import match_script
from lumos.scripted.origin import TaskOrigins, differing_steps, first_difference, gone
from lumos.scripted.recorded import RecordedCosts
from lumos.scripted.script import emulated, emulated_again
from lumos.simulation.durations import with_durations
from lumos.units import count, duration, size
from lumos.vocabulary import Grade

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from lumos.analyze.loop.steps import StepTimes
    from lumos.emulation.peak import Peak
    from lumos.emulation.record import Process
    from lumos.graph.table import Graph
    from lumos.scripted.carry import Carried, RankPrices
    from lumos.scripted.command import Command
    from lumos.scripted.match import Coverage, Lone
    from lumos.scripted.origin import Gone
    from lumos.scripted.script import Kindred, Script
    from lumos.trace.table import Int64, Job

#: The most steps that are emulated: those of a longer recording repeat themselves.
MOST_STEPS = 8
#: Shares of the recorded time that have a partner in the script: from the first an answer may be sound, below the second there is none.
ENOUGH, LEAST = 0.9, 0.7
#: Kinds of memory that a step does not make anew.
_STATES = (MemoryKind.PARAMETER, MemoryKind.GRADIENT, MemoryKind.OPTIMIZER_STATE)
#: How many operators are named in a message.
_NAMED = 3

#: Run a command without its devices: the command, the cluster, ranks, steps, and the seconds that each process may take; and rank 0 of a
#: script once more: the script, its steps, and these seconds.
Emulate: TypeAlias = "Callable[[Command, str, int, int, float], Script]"
Again: TypeAlias = "Callable[[Script, int, float], Process]"


class Asked(NamedTuple):
    """How two scripts are emulated. ranks: of the changed one, where its launcher does not say. cluster: where it is to run, where that is
    another than the recorded one; base_cluster: that one, where the trace does not say. limit_s: for each process."""

    ranks: int | None = None
    cluster: str | None = None
    base_cluster: str | None = None
    limit_s: float = 1800.0
    force: bool = False


class ChangedScript(NamedTuple):
    """A changed script answered. before, after: the commands. gone: what rank 0 does less often, most calls first."""

    before: str
    after: str
    answer: Answer
    gone: Sequence[Gone]


class Base:
    """A recording matched with its script, for any number of changed ones. emulate, again: run a command without its devices. Raises
    LumosError where the script is not that of the recording, does something else in another run, or cannot be emulated."""

    def __init__(
        self, job: Job, graph: Graph, before: Command, asked: Asked, emulate: Emulate = emulated, again: Again = emulated_again
    ) -> None:
        self.graph, self.asked, self.emulate, self.again = graph, asked, emulate, again
        self.trust = trust_in(graph)
        check_sound(self.trust, "whatif", force=asked.force)
        owners = members(graph)
        self.times: StepTimes = step_times_of(graph, owners)
        self.recording = RecordedCosts(job, owners, MOST_STEPS)
        self.world = max((max((trace.world_size or 1 for trace in job.traces)), *(rank + 1 for rank in graph.ranks)))
        if before.ranks not in (None, self.world):
            raise LumosError(
                f"--before starts {count(before.ranks or 0, 'rank')}, and the recording is of a job of {self.world}: give the command that"
                " made this recording"
            )
        self.on_device = has_device(graph)
        self.cluster = recorded_cluster(job, graph, asked.base_cluster).name if self.on_device else ON_CPUS
        self.script = emulate(before, self.cluster, self.world, len(self.recording.names), asked.limit_s)
        self._check_again(self.script, "--before")
        self.matched = match_script(self.recording, self.script)
        self._check()
        self.memory = memory_scale(job, self.script.peaks, on_host=self.script.on_host)
        self.measured = MeasuredPrices(self.script, self.matched)
        self.repeat = True if owners.has_period else None
        self.job = self._priced(self.script)

    def run(self, after: Command) -> Script:
        """A changed script, run without its devices."""
        ranks, cluster = _ranks(after, self.asked.ranks, self.world), self.asked.cluster or self.cluster
        if (after.words, ranks, cluster) == (self.script.command.words, self.world, self.cluster):
            return self.script
        return self.emulate(after, cluster, ranks, self.script.steps, self.asked.limit_s)

    @property
    def origins(self) -> TaskOrigins:
        """Where in the script the recording's tasks come from."""
        return TaskOrigins(self.recording, self.matched, self.script)

    @property
    def share(self) -> Coverage:
        """The recorded time that decides, and how much of it has a partner: the devices', or the threads' of a job on CPUs."""
        return self.matched.device if self.on_device else self.matched.host

    def _check_again(self, script: Script, option: str) -> None:
        """Raises LumosError where another run of the script does something else. Where the last rank does what rank 0 does, that has been
        seen. Else a script is run again where its steps differ among themselves; the first one also where they do not, by one step."""
        first = script.kinds[0].process
        if self.asked.force or len(script.ranks.of) - 1 in first.copies:
            return
        if not (differ := differing_steps(first)) and script is not self.script:
            return
        if difference := first_difference(first, self.again(script, script.steps if differ else 1, self.asked.limit_s)):
            raise LumosError(
                f"{option} {script.command.text}: two runs of this script differ: {difference}; let nothing depend on chance (set the seeds"
                " of random, numpy and torch, and PYTHONHASHSEED for the order of sets), or --force"
            )

    def _check(self) -> None:
        if self.share.part < LEAST and not self.asked.force:
            first = f"; first: {self.matched.first}" if self.matched.first else ""
            lone = ", ".join(f"{unmatched.what} ({duration(unmatched.ns)} a step)" for unmatched in self.matched.only_recorded[:_NAMED])
            raise LumosError(
                f"--before {self.script.command.text}: this script explains {self.share.part:.0%} of the recorded time, less than"
                f" {LEAST:.0%}, so it is not the one that was recorded{first}; only in the recording: {lone or 'nothing'}; give the command"
                " and the checkout that made this recording, or --force"
            )

    def answer(self, after: Command | Begun) -> Answer:
        """What a changed script takes for a step."""
        return self._answered(after)[1]

    def changed(self, after: Command) -> ChangedScript:
        """The same, with what the changed script does no more."""
        script, answer = self._answered(after)
        return ChangedScript(self.script.command.text, script.command.text, answer, gone(self.script.kinds[0], script.kinds[0]))

    def _answered(self, after: Command | Begun) -> tuple[Script, Answer]:
        script = after.taken() if isinstance(after, Begun) else self.run(after)
        if not (same := script is self.script):
            self._check_again(script, "--after")
        return script, self._compared(script, self.job if same else self._priced(script))

    def _priced(self, script: Script) -> PricedJob:
        return at_prices(script, self.measured.carried(script), self.recording.calls, repeat=self.repeat)

    def changed_scripts(self, after: Iterable[str | Sequence[str]]) -> list[ChangedScript]:
        """The same of several commands."""
        return [self.changed(parse(command, "--after")) for command in after]

    def _compared(self, script: Script, job: PricedJob) -> Answer:
        first, second = self.job.loop, job.loop
        figures, changed_figures = LoopFigures(first), LoopFigures(second)
        off = first.step_time_ns / self.times.mean_ns - 1 if self.times.mean_ns else 0.0
        error = spread(self.times, off)
        length = max(second.step_time_ns, 1)
        interval = (job.low_ns / length * (1 - error), job.high_ns / length * (1 + error))
        graph = script.ranks.graph
        changed = Changed(graph, script.owners, graph.duration, graph.duration, job.scaled, job.modelled)
        share = changed_figures.provenance(changed)
        before, after = self.script.command.text, script.command.text
        answer = Answer(
            _with_memory(outcome(changed_figures, interval, StepWork()), script.peaks, self.memory),
            _with_memory(outcome(figures, (1 - error, 1 + error), StepWork()), self.script.peaks, self.memory),
            measured_step(self.graph, self.times),
            (f"after: {after}", f"before: {before}"),
            contributions(figures.by_class, changed_figures.by_class),
            share,
            (*self._said(script, job), *noise_unknown(self.times), *first.findings("the job"), *second.findings("the changed job")),
            trust=Trust(Grade.SOUND),
            job=second,
            altered=second.step_time_ns != first.step_time_ns,
        )
        answer = widened(answer, together(self.trust, grade((*self._evidence(off), *mostly_modelled(share.modelled)))))
        check_sound(answer.trust, "whatif", force=self.asked.force)
        return answer

    def _evidence(self, off: float) -> Iterator[Evidence]:
        if abs(off) > min(resolution(self.times), NEAR):
            message = (
                f"the script as recorded, at the recording's prices, takes {duration(self.job.loop.step_time_ns)} a step, and"
                f" {duration(self.times.mean_ns)} were measured ({off:+.1%}): something sets the pace that the script does not show"
            )
            yield Evidence("base-off", message, Grade.LIMITED if abs(off) <= NEAR else Grade.UNSOUND)
        if self.share.part < ENOUGH:
            message = f"the script explains {self.share.part:.0%} of the recorded time; what is only in the recording is in neither step"
            yield Evidence("script-explains-part", message, Grade.LIMITED, 1 - self.share.part)
        absent = self.world - len(self.graph.ranks)
        if absent > 0:
            yield Evidence("ranks-alike", f"{count(absent, 'rank')} without a recording cost what the recorded ones do", Grade.LIMITED)

    def _said(self, script: Script, job: PricedJob) -> Iterator[Diagnostic]:
        """What was matched, and what only one of the three has."""
        matched = self.matched
        shares = [f"{matched.host.part:.1%} of the CPU's"]
        if matched.device.whole:
            shares.insert(0, f"{matched.device.part:.1%} of the recorded time of devices")
        yield Diagnostic("script-matched", f"the script explains {' and '.join(shares)} time")
        for code, what, lone in (
            ("only-recorded", "only in the recording", matched.only_recorded),
            ("only-emulated", "only in the script, with device work at the models' prices", matched.only_emulated),
            ("new-operators", "only in the changed script, and modelled", job.new),
        ):
            if lone:
                yield Diagnostic(code, _named(what, lone))
        here = script.kinds[0].process.torch
        if round(self.memory, 2) != 1:
            message = f"the recording's peak is {self.memory:.2f} times that of the emulated script: both memories are scaled so"
            yield Diagnostic("memory-scaled", message)
        for which, peaks in (("the script as recorded", self.script.peaks), ("the changed script", script.peaks)):
            peak = max(peaks, key=lambda one: one.reserved_bytes)
            sizes = (f"{size(self.memory * its.bytes)} {its.kind} {its.module or 'outside of modules'}" for its in peak.held[:_NAMED])
            message = f"{which} holds at most {size(self.memory * peak.allocated_bytes)}, most of it {', '.join(sizes)}"
            yield Diagnostic("memory-held", message)
        if self.recording.torch and self.recording.torch != here:
            yield Diagnostic("other-torch", f"recorded with torch {self.recording.torch}, and emulated with {here}: operators may differ")
        yield Diagnostic("python-kept", "Python between operators, loading of data and threads beside the loop take what was recorded")
        for remark in {(note.code, note.where): note for kind in script.kinds for note in kind.process.notes}.values():
            yield Diagnostic(remark.code, f"{remark.message}{f' ({remark.where})' if remark.where else ''}")


def _named(what: str, every: Sequence[Lone]) -> str:
    named = ", ".join(f"{one.what} ({one.calls:.0f} calls, {duration(one.ns)} a step)" for one in every[:_NAMED])
    more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return f"{what}: {named}{more}"


class Begun(threading.Thread):
    """A changed script that is being run without its devices, beside what else is done; the end of this process ends it."""

    def __init__(self, run: Callable[[], Script]) -> None:
        super().__init__(daemon=True)
        self._emulate = run
        self._done: Script | BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._done = self._emulate()
        except BaseException as error:  # noqa: BLE001 - it is raised where the script is asked for
            self._done = error

    def taken(self) -> Script:
        """What has run, once. Raises what its run did."""
        self.join()
        done, self._done = self._done, None
        if isinstance(done, BaseException):
            raise done
        return cast("Script", done)


def _ranks(after: Command, asked: int | None, world: int) -> int:
    if asked is not None and after.ranks not in (None, asked):
        raise UsageError(f"--ranks {asked}: --after starts {count(after.ranks or 0, 'rank')}; leave out --ranks, or change the command")
    return asked or after.ranks or world


def memory_scale(job: Job, peaks: Iterable[Peak], *, on_host: bool) -> float:
    """The most memory that a recording shows in its steps on a device, or on the host, by the most that the emulated script holds in them;
    1 where the recording has no rows of memory. peaks: of the kinds of ranks."""
    curves = [curve for trace in job.traces for curve in memory_curves(trace) if (curve.name == "CPU") is on_host]
    recorded, emulated_bytes = (max(sizes, default=0) for sizes in ((c.peak_bytes for c in curves), (peak.steps_bytes for peak in peaks)))
    return recorded / emulated_bytes if recorded and emulated_bytes else 1.0


def _with_memory(figures: Outcome, peaks: Iterable[Peak], scale: float) -> Outcome:
    """The figures with the memory of the kind of rank that holds most. scale: of `memory_scale`."""
    most = max(peaks, key=lambda peak: peak.reserved_bytes)
    by_kind = most.by_kind()
    states = [by_kind.get(kind, 0) for kind in _STATES]
    parameters, gradients, optimizer, rest, whole = (
        round(scale * held) for held in (*states, most.allocated_bytes - sum(states), most.allocated_bytes)
    )
    fits = scale * most.reserved_bytes <= most.room_bytes if most.room_bytes else None
    return replace(figures, memory=PeakMemory(parameters, gradients, optimizer, rest, whole, fits))


@dataclass(frozen=True, eq=False)
class PricedJob:
    """loop: what the job takes. low_ns, high_ns: a step of it at the ends of the prices' intervals. scaled, modelled: bool by task of the
    job, whether a part of its time was scaled, or more than half of it modelled. new: as in `Carried`."""

    loop: Steady
    low_ns: float
    high_ns: float
    scaled: NDArray[np.bool_]
    modelled: NDArray[np.bool_]
    new: list[Lone]


def at_prices(script: Script, carried: Carried, calls: Mapping[str, float], *, repeat: bool | None) -> PricedJob:
    """Simulate a job. calls: what calls that order work take, by name, ns. repeat: whether its steps are a loop."""
    of_each = [_durations(kindred, prices, calls) for kindred, prices in carried.each]
    best, low, high, scaled, modelled = (np.concatenate([of_each[i][column] for i in carried.of]) for column in range(5))
    owners = replace(script.owners, graph=with_durations(script.ranks.graph, best))
    loop = steady(owners, repeat=repeat)
    ends = [
        with_other_durations(loop, prices).step_time_ns if not np.array_equal(prices, best) else loop.step_time_ns
        for prices in (low, high)
    ]
    return PricedJob(loop, min(*ends, loop.step_time_ns), max(*ends, loop.step_time_ns), scaled > 0, 2 * modelled > best, carried.new)


def _durations(kindred: Kindred, prices: RankPrices, calls: Mapping[str, float]) -> Int64:
    """What the tasks of a rank take at the best prices and at both ends, how much of it was scaled, and modelled: ns, int64[5, tasks]."""
    ends = [kindred.durations(end, calls) for end in (prices.best, prices.low, prices.high)]
    parts = (np.where(prices.source == source, prices.best, 0.0) for source in (PriceSource.SCALED, PriceSource.MODELLED))
    return np.rint(np.stack([*ends, *(kindred.durations(part, None) for part in parts)])).astype(np.int64)
