"""The job under examination, and the price of a change to it.

Every price is the answer of `lumos whatif` to words that a finding prints: what the step becomes shorter by, its interval and its grade.
The engine that answers is that of the command (`changes.whatif`); nothing here simulates a finding by other rules. Since an answer takes
several simulations, the changed loop alone tells first whether a change is worth asking for.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.analyze.breakdown import LOADING, breakdowns
from lumos.analyze.loop.noise import identity, spread
from lumos.analyze.loop.steady import altered, steady
from lumos.analyze.loop.steps import is_operation_level, members, step_times
from lumos.analyze.ranks.equal_work import Like
from lumos.analyze.ranks.straggler_causes import described
from lumos.analyze.trust import trust, with_evidence
from lumos.changes.certainty.probe import probe_of_base
from lumos.changes.durations import Durations
from lumos.changes.facade import changes_of
from lumos.changes.ranges import inside
from lumos.changes.whatif import answer_changes
from lumos.errors import LumosError
from lumos.findings.finding import Finding, FindingCode, FindingPlace
from lumos.segment.segment import Cut
from lumos.simulation import measured, simulate
from lumos.trace.table import unique
from lumos.vocabulary import Grade

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from lumos.analyze.breakdown import StepBreakdown
    from lumos.analyze.loop.steady import Steady
    from lumos.analyze.loop.steps import Members, StepTime, StepTimes
    from lumos.analyze.trust import Trust
    from lumos.changes.changes import Changes
    from lumos.changes.words import ChangeWords
    from lumos.graph.table import Graph
    from lumos.simulation.timeline import Timeline
    from lumos.trace.table import Int64, Job

#: A finding is listed where it is worth this share of the step. Steps of a healthy job differ by about as much
#: (`analyze.loop.noise.FEW_STEPS`).
LEAST_WORTH = 0.02
#: What launches can still be worth once other causes are fixed: the work of the CPU takes no time.
REMAINS: ChangeWords = {"scale": {"cpu:*": 0}}


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A measured job. paths: its files as a shell has them. at: the position in `owners.job` of the step of median time. base: the loop of
    the steps. truth: the measured run, and times: of its steps. parts: where the time of every step that counts went, on each rank. noise:
    half-width of the interval of a step, as a share of it. cut: the job cut into layers, for all prices. grounds: how far the recording can
    be trusted, before what is said of its base. loading: the tasks that load data, bool[n]. force: whether to price on unsound evidence.
    origin: where in the script a task comes from, "" where that is not known. asked: the changes that were asked for, by their options, and
    what they are worth. refused: why others have no answer."""

    job: Job
    graph: Graph
    paths: str
    owners: Members
    truth: Timeline
    times: StepTimes
    trust: Trust
    at: int
    base: Steady
    parts: tuple[StepBreakdown, ...]
    noise: float
    cut: Cut
    grounds: Trust
    loading: NDArray[np.bool_]
    force: bool
    origin: Callable[[int], str]
    asked: dict[str, Worth | None] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def step_ns(self) -> float:
        """The time of the job's step, as measured."""
        return self.times.mean_ns

    @property
    def has_device(self) -> bool:
        """Whether the job ran on devices."""
        return bool(self.owners.on_device.any()) and not is_operation_level(self.graph)

    @property
    def counted(self) -> NDArray[np.bool_]:
        """The tasks of the steps that count, bool[n]."""
        return self.times.tasks_counted()

    @property
    def steps(self) -> int:
        """How many steps count."""
        return max(len(self.times.counted), 1)

    def ask(self, words: ChangeWords) -> Worth | None:
        """What `lumos whatif` answers to those words. None where that is not worth a finding, and where the recording does not support the
        change or its answer is refused, which `refused` then tells."""
        changes = changes_of(words)
        asked = options(changes)
        if asked not in self.asked:
            self.asked[asked] = self._asked(words, changes, asked)
        return self.asked[asked]

    def _asked(self, words: ChangeWords, changes: Changes, asked: str) -> Worth | None:
        try:
            if not changes.structural and not self.matters(self._quickly(changes)):
                return None
            answer = answer_changes(self.job, self.graph, changes, self.cut, trust=self.grounds, force=self.force, step_only=True)
        except LumosError as error:
            self.refused[asked] = str(error)
            return None
        base, after = answer.base.step_time_s, answer.outcome
        worth, low, high = (base - time for time in (after.step_time_s, after.step_time_high_s, after.step_time_low_s))
        price = Worth(worth, low, high, answer.trust.grade, words)
        return price if self.matters(1e9 * worth) else None

    def _quickly(self, changes: Changes) -> float:
        """How much shorter the loop's step is with other durations, ns. Raises LumosError as `Durations.apply` does."""
        changed = changes.durations.apply(self.graph, self.job)
        return self.base.step_time_ns - altered(self.base, replace(self.owners, graph=changed)).step_time_ns

    def matters(self, worth_ns: float) -> bool:
        """Whether that much of a step is worth a finding: more than LEAST_WORTH of it, and than the mean over its steps differs anyhow."""
        return bool(worth_ns >= max(LEAST_WORTH, self.noise / self.steps**0.5) * self.step_ns)

    def loads_mostly(self, excess: Int64) -> bool:
        """Whether most of a time that tasks take too long, int64[n] ns, is in loading data: then it is the loader's."""
        return bool(2 * excess[self.loading].sum() > excess.sum())

    def mean_part_ns(self, *names: str) -> float:
        """The named parts of `analyze.breakdown` together, the mean over ranks and steps that count, ns."""
        return float(np.mean([sum(getattr(step.parts, f"{name}_ns") for name in names) for step in self.parts])) if self.parts else 0.0

    def at_longest(self, tasks: NDArray[np.bool_] | Int64, time: Int64 | None = None, ranks: Sequence[int] | None = None) -> FindingPlace:
        """Where the longest of `tasks` is, preferably in a step that counts. time: int64[n] ns by which to compare, else the durations.
        ranks: all that the finding concerns, else those of the tasks."""
        chosen = np.flatnonzero(tasks) if tasks.dtype == bool else tasks
        counted = chosen[self.counted[chosen]]
        chosen = counted if len(counted) else chosen
        time = self.graph.duration if time is None else time
        worst = int(chosen[np.argmax(time[chosen])])
        owner = int(self.owners.step[worst])
        step = self.times.of_ranks()[owner][0] if owner >= 0 else self.times.middle
        concerned = unique(self.owners.rank[chosen]).tolist() if ranks is None else None
        of = tuple(self.graph.ranks[i] for i in concerned) if concerned is not None else tuple(ranks or ())
        return self.place(worst, step, of)

    def place(self, task: int, step: StepTime, ranks: tuple[int, ...]) -> FindingPlace:
        """Where a task is in a step. ranks: all that the finding concerns."""
        start = int(self.truth.start[task]) - step.begin_ns
        return FindingPlace(ranks, step.name, start, described(self.graph, task), self.origin(task))

    def finding(self, code: FindingCode, title: str, where: FindingPlace, price: Worth, *, evidence: str, fix: str) -> Priced:
        """A finding of that price."""
        command = self.command(options(changes_of(price.words), force=price.grade is Grade.UNSOUND))
        priced = price.worth_s, price.low_s, price.high_s, price.worth_s, price.grade
        return Priced(Finding(code, title, where, *priced, evidence=evidence, fix=fix, command=command), price.words)

    def command(self, options: str) -> str:
        """The what-if of the job with these options."""
        return f"lumos whatif {self.paths} {options}"

    def one_after_another(self, candidates: Sequence[Priced]) -> tuple[Finding, ...]:
        """The findings with what each is worth once those above it are fixed, the largest such worth first.

        A cause is fixed before its victims: first work that takes longer than equal work elsewhere, last calls that wait and launches, for
        which devices idle for any other reason too; within these by what each is worth alone. Changes of durations are simulated with all
        before them. What only pays once another is fixed is worth no more for that; no more than the step can be saved in all. What is not
        worth a finding then shows the victim of another: it is left out.
        """
        left, saved, so_far, out = 1e-9 * self.base.step_time_ns, 0.0, Durations(), []
        for finding, words in sorted(candidates, key=lambda priced: (priced.order, -priced.finding.worth_s)):
            after, changes = finding.worth_s, changes_of(REMAINS if finding.code is FindingCode.LAUNCH_BOUND else words)
            if words and not changes.structural:
                so_far = so_far.beside(changes.durations)
                try:
                    total = 1e-9 * self._quickly(replace(changes, durations=so_far))
                except LumosError:  # together they leave a rank without work
                    total = saved
                after, saved = min(total - saved, after), max(total, saved)
            after = min(max(after, 0.0), left)
            if self.matters(1e9 * after):
                left -= after
                out.append(replace(finding, worth_after_s=after))
        return tuple(sorted(out, key=lambda finding: -finding.worth_after_s))


class Worth(NamedTuple):
    """What a change saves a step and its 80 % interval, seconds, how far that can be trusted, and the words that ask for it."""

    worth_s: float
    low_s: float
    high_s: float
    grade: Grade
    words: ChangeWords

    def is_told_by(self, findings: Sequence[Priced]) -> bool:
        """Whether findings are worth more than half of it together: then it may be another name for them."""
        return self.worth_s < 2 * sum(one.finding.worth_s for one in findings)


class Priced(NamedTuple):
    """A finding, and the change that would fix it; no words where only a changed script says what it is."""

    finding: Finding
    words: ChangeWords

    @property
    def order(self) -> int:
        """-1 for a CPU without its processor, which slows all its work; 0 for a deviation from equal work, 1 for most; then idle time that
        belongs to nobody else: calls that wait, then launches."""
        if self.finding.code in (FindingCode.BLOCKING_CALLS, FindingCode.LAUNCH_BOUND):
            return 2 + (self.finding.code is FindingCode.LAUNCH_BOUND)
        if self.finding.code in (FindingCode.STARVED, FindingCode.HOST_STALLS):
            return -1
        return 0 if any(factor in tuple(Like) for factor in self.words.get("scale", {}).values()) else 1


def options(changes: Changes, *, force: bool = False) -> str:
    """The options of `lumos whatif` that ask for changes."""
    said: list[str] = []
    for key, value in {**changes.words, **({"force": True} if force else {})}.items():
        option, values = f"--{key.replace('_', '-')}", value if isinstance(value, list) else [value]
        said += [option] if value is True else [f"{option} {shlex.quote(str(word))}" for word in values]
    return " ".join(said)


def case_of(job: Job, graph: Graph, paths: Sequence[str], origin: Callable[[int], str] = lambda _: "", *, force: bool = False) -> Case:
    """The examination of a measured job. paths: its files, as the user named them. origin, force: as in `Case`. Raises GraphError where no
    step owns any work, or where the graph was not measured or has no schedule."""
    owners, truth = members(graph), measured(graph)
    times, base = step_times(truth, owners), steady(owners)
    off, grounds = identity(graph, base, times)
    recorded = trust(graph, simulate(graph), owners)
    lengths = sorted((times.job[i].length_ns, i) for i in owners.counted)
    return Case(
        job=job,
        graph=graph,
        paths=" ".join(map(shlex.quote, paths)),
        owners=owners,
        truth=truth,
        times=times,
        trust=with_evidence(recorded, (*grounds, *probe_of_base(job, owners, base))),
        at=lengths[(len(lengths) - 1) // 2][1],
        base=base,
        parts=tuple(step for step in breakdowns(truth, owners, job) if step.counts),
        noise=spread(times, off),
        cut=Cut(job, graph),
        grounds=recorded,
        loading=inside(graph, job, LOADING.search) & ~owners.on_device,
        force=force,
        origin=origin,
    )
