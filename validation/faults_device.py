"""Put faults into drawn jobs of several devices, and see whether `diagnose` names them first and what it says they are worth.

    python -m validation.faults_device SEED [--write]

Every job runs twice on the simulated machine of `validation.machine`, which shares no code with Lumos: with a fault and, as its healthy
twin, without. The worth of the fault is the difference of the two periods. `diagnose` gets the recording of the faulty run alone. It is to
name the fault first, as one of the codes and on the rank that CAUSES lists, and to say a worth within 15 %. In the twin, asked of the
smallest size of each fault, nothing is to be worth more than 3 %. A fault that costs less than LEAST of the step is listed and not counted.
The seed draws the sizes of the jobs, and where the faults are.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import NamedTuple

from tools.document import markdown_table
from tools.figures import write_result
from validation.machine import run
from validation.machine_trace import write_trace
from validation.program import Action, InTurn, Kernel, LaunchGraph, Message, Operator, Pause, Program, Rank, Record, Thread, Wait, WaitEvent
from validation.programs_one_rank import ELEMENTWISE, GEMM, ITEM
from validation.programs_ranks import collective, messages

from lumos.errors import LumosError
from lumos.findings.diagnose import diagnose
from lumos.findings.finding import Diagnosis, Finding, FindingCode

#: Steps that are run before the recording, recorded, and run after it. The first recorded step has no period; those after it are whole
#: cycles.
BEFORE, RECORDED, AFTER = 12, 7, 2
#: The share of a step that a fault must cost to count, how near its worth must be, and what may be found in a twin.
LEAST, WITHIN, HEALTHY = 0.04, 0.15, 0.03
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
KINDS = ("replicated", "sharded")


@dataclass(frozen=True)
class Style:
    """The sizes of a job, times in µs. exchanged: what the exchange of a layer takes, as a share of its backward pass."""

    ranks: int
    layers: int
    gemm: float
    host: float
    exchanged: float

    @property
    def step(self) -> float:
        """What a step takes about."""
        return 3 * self.layers * self.gemm


@dataclass(frozen=True)
class Part:
    """What differs in a step of a rank. device, host, tokens, exchange, pair: factors on kernels, on operators of the CPU, on the second
    multiplication of a layer, on exchanges of all ranks and of pairs. stall, loading: pauses, µs. reads: values read from the
    device after each layer. pieces: kernels in place of one multiplication. graphs: whether one call launches the kernels of a layer."""

    device: float = 1
    host: float = 1
    tokens: float = 1
    exchange: float = 1
    pair: float = 1
    stall: float = 0
    loading: float = 40
    reads: int = 0
    pieces: int = 1
    graphs: bool = False


Parts = Callable[[int, int], Part]


class Cause(NamedTuple):
    """A fault. amounts: its three sizes. cycle: of the steps. codes: the findings that name it. of_rank: whether on the drawn rank alone.
    part: what a rank does in a step, from the size, the drawn rank, the style, the rank and the step. twin: the part without the fault."""

    name: str
    amounts: tuple[float, float, float]
    cycle: int
    codes: tuple[FindingCode, ...]
    of_rank: bool
    part: Callable[[float, int, Style, int, int], Part]
    twin: Callable[[Part], Part] = lambda _: Part()


def _alone(make: Callable[[float, Style], Part]) -> Callable[[float, int, Style, int, int], Part]:
    """A fault of the drawn rank."""
    return lambda amount, chosen, style, rank, _: make(amount, style) if rank == chosen else Part()


def _everywhere(make: Callable[[float, Style], Part]) -> Callable[[float, int, Style, int, int], Part]:
    """A fault of all ranks and steps."""
    return lambda amount, _, style, rank, step: make(amount, style)


C = FindingCode
CAUSES = (
    Cause("slow rank", (1.15, 1.4, 2), 1, (C.SLOW_DEVICE, C.SLOW_HOST, C.SLOW_RANK), True, _alone(lambda a, _: Part(device=a, host=a))),
    Cause("slow device", (1.15, 1.4, 2), 1, (C.SLOW_DEVICE,), True, _alone(lambda a, _: Part(device=a))),
    Cause(
        "slow link of a pair", (13, 16, 22), 1, (C.SLOW_EXCHANGE,), True,
        lambda amount, chosen, _, rank, step: Part(pair=amount) if rank // 2 == chosen // 2 else Part(),
    ),
    Cause("host stall", (0.8, 1.2, 2), 1, (C.STALL,), True, _alone(lambda a, style: Part(stall=a * style.step))),
    Cause(
        "loader, every second step", (0.8, 1.2, 2), 2, (C.DATA_LOADER,), False,
        lambda amount, _, style, rank, step: Part(loading=amount * style.step) if step % 2 else Part(),
    ),
    Cause("values read", (1, 2, 4), 1, (C.BLOCKING_CALLS,), False, _everywhere(lambda a, _: Part(reads=int(a)))),
    Cause(
        "small kernels", (1, 1.5, 2), 1, (C.LAUNCH_BOUND,), False,
        _everywhere(lambda a, style: Part(pieces=max(2, round(a * style.gemm / style.host)))), lambda part: replace(part, graphs=True),
    ),
    Cause(
        "exposed all-reduce", (10, 14, 20), 1, (C.EXPOSED_COMMUNICATION,), False, _everywhere(lambda a, _: Part(exchange=a)),
        lambda _: Part(exchange=0),
    ),
    Cause("slow stage", (1.2, 1.4, 2), 1, (C.UNEVEN_STAGES, C.SLOW_DEVICE), True, _alone(lambda a, _: Part(device=a))),
    Cause("unequal tokens", (1.3, 1.7, 2.5), 1, (C.UNEVEN_INPUT, C.SLOW_DEVICE), True, _alone(lambda a, _: Part(tokens=a))),
    Cause(
        "thermal trend", (0.15, 0.4, 0.8), BEFORE + RECORDED + AFTER, (C.SLOWING,), False,
        lambda amount, _, style, rank, step: Part(device=1 + amount * max(step - BEFORE, 0) / (RECORDED - 1)),
    ),
    Cause(
        "garbage collection", (0.8, 1.5, 3), 6, (C.SLOW_STEPS, C.STALL), False,
        lambda amount, chosen, style, rank, step: (
            Part(stall=amount * style.step) if (step + chosen + rank) % 6 == 0 and rank % 3 == 0 else Part()
        ),
    ),
    Cause(
        "exchange, every third step", (14, 22, 36), 3, (C.SLOW_STEPS,), False,
        lambda amount, _, style, rank, step: Part(exchange=amount) if step % 3 == 0 else Part(),
    ),
)  # fmt: skip


def layer(style: Style, part: Part, kernels: int) -> Thread:
    """Multiplications of a layer, each in pieces, and an operator on every element."""
    host = style.host * part.host
    works = [
        (GEMM, style.gemm / part.pieces * part.device * (part.tokens if kernel % 2 else 1))
        for kernel in range(kernels)
        for _ in range(part.pieces)
    ] + [(ELEMENTWISE, 15 * part.device)]
    if part.graphs:
        return (LaunchGraph(tuple(Kernel(name, us) for name, us in works), host),)
    read = ITEM * part.reads
    return (*(Operator("aten::linear" if name == GEMM else "aten::add_", host, Kernel(name, us), 6) for name, us in works), *read)


def step(kind: str, style: Style, part: Part, rank: int) -> Thread:
    """A step of a rank whose exchanges run beside its work, as long as that takes longer."""
    pair = (rank - rank % 2, rank - rank % 2 + 1)
    exchange = style.exchanged * 2 * style.gemm
    actions: list[Action] = [Pause(part.loading, LOADER)]
    gathers = kind == "sharded"
    for number in range(style.layers):
        if gathers:
            actions += _gather(exchange / 2, number)
        actions += layer(style, part, 1)
        if number == style.layers // 3:
            actions += [Pause(part.stall)] if part.stall else []
    for _ in range(style.layers):
        actions += layer(style, part, 2)
        actions += collective("_reduce_scatter_base" if gathers else "allreduce", exchange * part.exchange)
        actions += collective("allreduce", 0.2 * style.gemm * part.pair, 22, pair)
    return (*actions, Wait(7, 20), Wait(7, 22), Operator("aten::mul_", style.host, Kernel("multi_tensor_apply_kernel", 60), 6), *ITEM)


def _gather(us: float, number: int) -> Thread:
    """Weights of a layer are gathered beside the layer before it."""
    gathered = collective("_allgather_base", us, 24)[1:]
    return (*gathered, Record(f"gathered {number}", 24), *((WaitEvent(7, f"gathered {number - 1}"),) if number else ()))


def stage(kind: str, style: Style, part: Part, rank: int) -> Thread:
    """A step of a stage of a pipeline: all forward passes, then all backward passes, of four or eight microbatches."""
    number, last = (4 if kind == "sharded" else 8), style.ranks - 1
    actions: list[Action] = [Pause(part.loading, LOADER)]
    for times, here, there in ((1, rank - 1, rank + 1), (2, rank + 1, rank - 1)):
        for _ in range(number):
            actions += [*messages(10, Message(False, here)), Wait(7, 20)] if 0 <= here <= last else []
            actions += layer(style, part, times) * 2
            actions += messages(10, Message(True, there)) if 0 <= there <= last else []
    return (*actions, *ITEM)


def program(cause: Cause, kind: str, style: Style, parts: Parts) -> Program:
    """The job in which each rank does its part of every step of the cycle."""
    one = stage if cause.name == "slow stage" else step
    return Program(
        tuple(
            Rank(((InTurn(tuple(one(kind, style, parts(rank, number), rank) for number in range(cause.cycle))),),))
            for rank in range(style.ranks)
        )
    )


class Scored(NamedTuple):
    """One fault. worth, said: of the step, as shares of it. first: what `diagnose` names first. healthy: the most that is
    found in the twin, None where that refuses or was not asked."""

    cause: str
    kind: str
    amount: float
    worth: float
    first: str
    named: bool
    said: float | None
    healthy: float | None
    found: str

    @property
    def counted(self) -> bool:
        """Whether the fault costs enough."""
        return self.worth >= LEAST

    @property
    def near(self) -> bool:
        """Whether the worth that is said is near."""
        return self.said is not None and abs(self.said - self.worth) <= WITHIN * self.worth


def names(cause: Cause, chosen: int, finding: Finding) -> bool:
    """Whether a finding names the fault."""
    ranks = {chosen, chosen ^ 1} if cause.name.startswith("slow link") else {chosen}
    there = bool(ranks & set(finding.where.ranks)) and len(finding.where.ranks) <= 2
    return finding.code in cause.codes and (there or not cause.of_rank)


def score(seed: int, cause: Cause, kind: str, size: int) -> Scored:
    """Run a fault and its twin, and ask for both."""
    random = Random(f"{seed}.{cause.name}.{kind}.{size}")
    style = Style(6, random.randint(6, 10), random.uniform(150, 400), random.uniform(8, 14), random.uniform(0.1, 0.25))
    chosen, amount = random.randrange(style.ranks), cause.amounts[size]

    def faulty(rank: int, number: int) -> Part:
        return cause.part(amount, chosen, style, rank, number)

    with tempfile.TemporaryDirectory() as folder:
        period, answer = _ran(program(cause, kind, style, faulty), Path(folder) / "fault")
        healthy = program(cause, kind, style, lambda r, n: cause.twin(faulty(r, n)))
        twin, clean = _ran(healthy, Path(folder) / "twin", asked=size == 0)
    found = answer.findings if answer else ()
    first = found[0] if found else None
    named = first is not None and names(cause, chosen, first)
    said = next((each.worth_s * 1e9 / period for each in found if names(cause, chosen, each)), None)
    most = max(((each.worth_s * 1e9 / twin, str(each.code)) for each in clean.findings), default=(0.0, "")) if clean else (None, "")
    words = f"{first.code}, {'+'.join(map(str, first.where.ranks))}" if first else "nothing" if answer else "refused"
    return Scored(cause.name, kind, amount, 1 - twin / period, words, named, said, *most)


def _ran(job: Program, folder: Path, *, asked: bool = True) -> tuple[float, Diagnosis | None]:
    """The period of a program on the machine, ns, and what `diagnose` says of its recording; None where it refuses, and where it is not
    asked."""
    ran = run(job, BEFORE + RECORDED + AFTER)
    ends, last, answer = ran.completions(), BEFORE + RECORDED - 1, None
    if asked:
        try:
            answer = diagnose(write_trace(ran, folder, RECORDED, after=AFTER))
        except LumosError as error:
            print(folder.name, error, file=sys.stderr)
    return (ends[last] - ends[BEFORE]) / (RECORDED - 1), answer


def section(seed: int, scored: list[Scored]) -> str:
    """The text of the result file."""
    counted = [each for each in scored if each.counted]
    asked = [each.healthy for each in scored if each.healthy is not None]
    off = [abs(each.said / each.worth - 1) for each in counted if each.said is not None]
    figures = [
        ("faults; that cost enough to count", "–", f"{len(scored)}; {len(counted)}"),
        ("`diagnose` names the fault first", "≥ 90 %", f"{sum(each.named for each in counted)} of {len(counted)}"),
        ("its worth within 15 %", "≥ 90 %", f"{sum(each.near for each in counted)} of {len(counted)}"),
        ("median error of the worths that are said", "–", f"{statistics.median(off):.1%}".replace("%", " %") if off else "–"),
        ("healthy twins with nothing above 3 %", "all", f"{sum(most <= HEALTHY for most in asked)} of {len(asked)}"),
    ]
    rows = [
        (
            each.cause, each.kind, f"{each.amount:g}", f"{each.worth:.1%}", each.first, "yes" if each.named else "no",
            "–" if each.said is None else f"{each.said:.1%}",
            "–" if each.healthy is None else f"{each.healthy:.1%} {each.found}".strip(), "yes" if each.counted else "no",
        )
        for each in scored
    ]  # fmt: skip
    return "\n\n".join(
        [
            f"Written by `python -m validation.faults_device {seed} --write`. Worths are shares of the faulty job's step; no fault here has"
            " rows of shapes, so unequal tokens may be named as a slow device.",
            markdown_table(("what", "to reach", "reached"), figures),
            markdown_table(("fault", "job", "size", "worth", "first", "named", "said", "in the twin", "counted"), rows),
        ]
    )


def main() -> None:
    """Score all faults that a seed draws."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("seed", type=int)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    scored = [score(asked.seed, cause, kind, size) for cause in CAUSES for kind in KINDS for size in range(3)]
    text = section(asked.seed, scored)
    if asked.write:
        write_result(f"validation/results/faults-device-{asked.seed}.md", text)
    print(text)


if __name__ == "__main__":
    main()
