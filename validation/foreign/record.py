"""Record the jobs of the pairs: the files of every base, and what a step of every base and target takes.

    python -m validation.foreign --record DIR       needs torch and transformers

`DIR/<base>/rank<R>.json.gz` are the recordings, `DIR/truth.json` the times of a step in ms by pair. `proportional_ms` is
what the machine says of the changed script with every launch in its place, where a kernel that the base did not have takes the time of its
nearest like in the base in proportion to their work, above that of the shortest kernel. It shows how far off an answer is that knows the
whole structure and nothing about how a kernel scales.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache, partial
from math import prod
from pathlib import Path

from validation.foreign.job import Job
from validation.foreign.kineto import write
from validation.foreign.loop import Group, Launch, Place, Recorded, Ways, rank_of
from validation.foreign.nodes import Node
from validation.foreign.operators import operators
from validation.foreign.pairs import PAIRS, Pair, folder_of
from validation.foreign.parallel import process_group
from validation.foreign.prices import PEAK, Kind
from validation.foreign.training import fake_step
from validation.machine import run
from validation.machine_run import Run
from validation.program import Action, Operator, Program, Rank

#: Steps that the machine runs, and how many of them are recorded: the last.
STEPS, RECORDED = 6, 3


def ranks_of(job: Job) -> list[Recorded]:
    """What every rank of a job does in a step."""
    ways = Ways("tf32" in job.precision, job.reads_loss, job.host)
    of_stage = [_recorded_step(job, first) for first in range(0, prod(job.mesh.values()), job.ranks_of_stage)]
    return [rank_of(of_stage[place.number // job.ranks_of_stage], ways, place) for place in places(job.mesh)]


def _recorded_step(job: Job, rank: int) -> list[Node]:
    """The operators of a step of one rank."""
    with process_group(job, rank):
        found = operators(partial(fake_step, job, rank * job.pp // max(prod(job.mesh.values()), 1)))
    return next(node for node in found if node.name == "recorded").children


def places(mesh: Mapping[str, int]) -> list[Place]:
    """The ranks of a mesh and their groups. The group of all ranks is called 0, as PyTorch does."""
    world = prod(mesh.values())
    out = []
    for number in range(world):
        everyone = Group("0", "default_pg", tuple(range(world)))
        groups, stride = {"default_pg": everyone, "": everyone}, world
        for i, (key, size) in enumerate(mesh.items()):
            stride //= size
            first = number - number // stride % size * stride
            groups[f"mesh_{key}"] = Group(str(i + 1), f"mesh_{key}", tuple(first + stride * k for k in range(size)))
        out.append(Place(number, groups))
    return out


def ran(ranks: Sequence[Recorded]) -> Run:
    """The run of a job on the machine."""
    return run(Program(tuple(each.rank for each in ranks)), STEPS)


def period_ms(what: Run) -> float:
    """What a step takes, ms."""
    return what.period_ns(RECORDED - 1) / 1e6


def proportional(target: Recorded, base: Recorded) -> Recorded:
    """The target with the prices of the base: what is the same takes the same time, else in proportion to its work."""
    known: dict[tuple[str, str], list[Launch]] = defaultdict(list)
    asked: dict[tuple[str, str], list[int]] = defaultdict(list)
    for launch in base.launches:
        known[_like(launch)].append(launch)
    for number, launch in enumerate(target.launches):
        asked[_like(launch)].append(number)
    times = [launch.priced.us for launch in target.launches]
    least = min(launch.priced.us for launch in base.launches if launch.work is not None)
    for like, numbers in asked.items():
        candidates = known.get(like, [])
        same = {launch.work: launch for launch in candidates}
        for place, number in enumerate(numbers):
            wanted = target.launches[number]
            if wanted.work is None or not candidates:
                continue
            pick = same.get(wanted.work) or (
                candidates[place] if len(candidates) == len(numbers) else min(candidates, key=lambda c: abs(_amount(c) - _amount(wanted)))
            )
            grown = _amount(wanted) / _amount(pick) if _amount(pick) else 1.0  # of no work there is no proportion
            times[number] = least + max(0.0, pick.priced.us - least) * grown
    threads = tuple(tuple(_timed(action, times) for action in thread) for thread in target.rank.threads)
    return replace(target, rank=Rank(threads))


def _like(launch: Launch) -> tuple[str, str]:
    """What two kernels have in common that do the same for different sizes."""
    if launch.work is None:
        return launch.operator, launch.priced.name
    kind = launch.work.kind
    return launch.operator, str(kind) if kind is not Kind.MOVE else launch.work.name.split("<")[0]


def _amount(launch: Launch) -> float:
    """A kernel's work, so that equal work takes equal time in all types."""
    work = launch.work
    assert work is not None
    return work.amount if work.kind is Kind.MOVE else work.amount / PEAK[work.dtype]


def _timed(action: Action, times: Sequence[float]) -> Action:
    if isinstance(action, Operator) and action.kernel is not None:
        return replace(action, kernel=replace(action.kernel, us=times[int(action.kernel.name)]))
    return action


@lru_cache(maxsize=2)
def _recorded(base: str, draw: int | None, odd: bool) -> tuple[list[Recorded], Run]:
    ranks = ranks_of(Pair(base, "", draw, odd).job)
    return ranks, ran(ranks)


def record(folder: Path, wanted: Sequence[str] = (), pairs: Sequence[Pair] = PAIRS) -> None:
    """Record all pairs and their bases, or those whose name contains one of the words; what is recorded already is left as it is."""
    warnings.filterwarnings("ignore")
    path = folder / "truth.json"
    folder.mkdir(parents=True, exist_ok=True)
    truth = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for pair in pairs:
        jobs = [pair.job, pair.target]
        if (wanted and not any(word in pair.name for word in wanted)) or _jobs(truth.get(pair.name, {}).get("job", "[]")) == jobs:
            continue
        try:
            truth[pair.name] = {"job": json.dumps([asdict(job) for job in jobs]), **_pair(pair, folder)}
        except Exception as error:  # noqa: BLE001  whatever other people's code raises, the other pairs are recorded
            print(f"{pair.name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
            continue
        path.write_text(json.dumps(truth, indent=1), encoding="utf-8")
        print(
            pair.name,
            "recorded" if pair.hidden else {k: v for k, v in truth[pair.name].items() if k != "job"},
            file=sys.stderr,
            flush=True,
        )


def _jobs(text: str) -> list[Job]:
    """The jobs that were recorded. What could not be said of a job then is as it was for all jobs."""
    return [Job(**each) for each in json.loads(text)]


def _pair(pair: Pair, folder: Path) -> dict[str, float]:
    base, of_base = _recorded(pair.base, pair.draw, pair.odd)
    recording = folder / folder_of(pair.base)
    if not recording.exists():
        write(of_base, base, recording, RECORDED, [place.groups for place in places(pair.job.mesh)])
    target = ranks_of(pair.target)
    of_target = ran(target)
    alike = ran([proportional(t, base[i * len(base) // len(target)]) for i, t in enumerate(target)])
    return {"base_ms": period_ms(of_base), "target_ms": period_ms(of_target), "proportional_ms": period_ms(alike)}
