"""Changed scripts, against emulated jobs whose kernels take hidden times.

    python -m validation.scripted [--seed N …] [--only WORD]
    python -m validation.scripted --real        pairs that are run on a CPU
    python -m validation.scripted --draw N [--real]        pairs that are drawn by a seed: family, sizes, switches and change

Each pair is a command and a changed one. Both are emulated, and the time of every piece of device work is multiplied by a hidden factor of
its operator and of the class of its size; both are written as recordings. The first recording and the two commands are then all that the
what-if has; the second recording is the truth. A price that comes from the models instead of the recording is wrong by the hidden factor,
so it is seen. validation/results/scripted.md is written from what is found.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from tools.document import markdown_table
from tools.figures import write_result
from validation.scripted_drawn import Pair, drawn_pairs

import lumos
from lumos.analyze.loop.noise import step_times_of
from lumos.analyze.loop.steps import members
from lumos.blocks.work import Attention, Gemm
from lumos.cost.cluster import load_cluster
from lumos.emulation.accelerators import emulated_device
from lumos.emulation.device.files import write_traces
from lumos.emulation.run import Launched, records
from lumos.errors import LumosError
from lumos.scripted.answer import Asked, Base
from lumos.scripted.command import parse
from lumos.scripted.script import script

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lumos.blocks.work import Work
    from lumos.emulation.device.ranks import Ranks
    from lumos.emulation.record import Process
    from lumos.scripted.command import Command
    from lumos.scripted.script import Script
    from lumos.trace.table import Int64

TRAIN = Path(__file__).parent / "scripts" / "train.py"
CLUSTER, STEPS = "h100", 4
#: The seed that the rules were made with in view.
FIRST_SEED = 37
#: Hidden factors are drawn between one half and two.
SPREAD = np.log(2.0)


#: Sizes at which the device sets the pace.
_GPT = "--model gpt --width 1024 --length 1024 --batch 16"
_MLP = "--model mlp --width 4096 --batch 8192"

PAIRS = (
    Pair("larger batch", _GPT, f"{_GPT} --batch 24"),
    Pair("more layers", _GPT, f"{_GPT} --layers 7"),
    Pair("longer", _GPT, f"{_GPT} --length 1536"),
    Pair("fewer layers, wider", _MLP, f"{_MLP} --layers 3 --width 5120"),
    Pair("attention fused", f"{_GPT} --bf16 --materialised", f"{_GPT} --bf16"),
    Pair("recomputation off", f"{_GPT} --recompute", _GPT),
    Pair("recomputation off, larger batch", f"{_GPT} --recompute", f"{_GPT} --batch 24"),
    Pair("fused optimizer", "--model gpt --width 1024 --batch 2", "--model gpt --width 1024 --batch 2 --adam fused"),
    Pair("no .item()", f"{_MLP} --batch 256 --accumulate 2 --item", f"{_MLP} --batch 256 --accumulate 2"),
    Pair("bf16", _GPT, f"{_GPT} --bf16"),
    Pair("accumulation", _GPT, f"{_GPT} --batch 8 --accumulate 2"),
    Pair("compiled", f"{_GPT} --bf16", f"{_GPT} --bf16 --compile"),
    Pair("images, larger batch", "--model cnn --width 512 --batch 128", "--model cnn --width 512 --batch 256"),
    Pair("recurrent, longer", "--model lstm --width 1024 --batch 64", "--model lstm --width 1024 --batch 64 --length 384"),
    Pair("clipped gradients", f"{_MLP} --batch 1024", f"{_MLP} --batch 1024 --clip"),
    Pair("dropout", _MLP, f"{_MLP} --dropout 0.1"),
    Pair("more tables", "--model dlrm --width 256 --batch 16384", "--model dlrm --width 256 --batch 16384 --layers 8"),
    Pair("smaller buckets", f"{_GPT} --layers 8", f"{_GPT} --layers 8 --bucket-mb 5", 4),
    Pair("sharded", f"{_GPT} --layers 6", f"{_GPT} --layers 6 --fsdp", 4),
    Pair("sharded, larger batch", f"{_GPT} --fsdp", f"{_GPT} --fsdp --batch 24", 4),
    Pair("gradients exchanged beside the backward pass", f"{_GPT} --late", _GPT, 4),
    Pair("sharded within halves", f"{_GPT} --fsdp", f"{_GPT} --fsdp --shard 2", 4),
    Pair("asynchronous tensor parallelism", f"{_MLP} --tp", f"{_MLP} --tp --asynchronous", 2),
    Pair("linear layers in fp8", f"{_GPT} --bf16", f"{_GPT} --bf16 --eighth"),
    Pair("uneven stages", f"{_GPT} --batch 4 --accumulate 4 --stages 4,4", f"{_GPT} --batch 4 --accumulate 4 --stages 5,3", 2),
)


_SMALL = "--model gpt --layers 2 --width 256 --heads 4 --length 128 --vocab 1024 --batch 4"
_LSTM = "--model lstm --layers 2 --width 128 --vocab 256"

#: Pairs that are run for real, one process on one core each.
REAL = (
    Pair("larger batch", _SMALL, f"{_SMALL} --batch 8"),
    Pair("more layers", _SMALL, f"{_SMALL} --layers 4"),
    Pair("wider", "--model mlp --width 512 --batch 256 --vocab 64", "--model mlp --width 768 --batch 256 --vocab 64"),
    Pair("attention fused", f"{_SMALL} --materialised", _SMALL),
    Pair("recomputation on", _SMALL, f"{_SMALL} --recompute"),
    Pair("optimizer in loops", _SMALL, f"{_SMALL} --optimizer sgd"),
    Pair("accumulation", _SMALL, f"{_SMALL} --accumulate 2"),
    Pair("images, larger batch", "--model cnn --width 32 --batch 4 --vocab 64", "--model cnn --width 32 --batch 8 --vocab 64"),
    Pair("recurrent, longer", f"{_LSTM} --length 64", f"{_LSTM} --length 96"),
    Pair("more tables", "--model dlrm --width 64 --batch 512 --vocab 64", "--model dlrm --width 64 --batch 512 --vocab 64 --layers 6"),
    Pair("clipped gradients", "--model mlp --width 512 --batch 256 --vocab 64", "--model mlp --width 512 --batch 256 --vocab 64 --clip"),
)
#: Rounds in which both sides of a real pair are run in turn.
ROUNDS = 3


class RealScore(NamedTuple):
    """A pair that was run. truth: by what the processor time of a step was multiplied, the median of the rounds; noise: half the range of
    the rounds, as a share. answer: by what the step was said to be; None where it was refused."""

    pair: Pair
    truth: float
    noise: float
    answer: float | None
    base_off: float
    matched: str
    refused: str

    @property
    def error(self) -> float | None:
        """(predicted - true) / true."""
        return None if self.answer is None else self.answer / self.truth - 1


def really(pair: Pair) -> RealScore:
    """Run both sides of a pair in turn, record the first, and answer for the second."""
    before, after = (command(f"{each} --steps 16", 1) for each in (pair.before, pair.after))
    ratios = []
    for _ in range(ROUNDS):
        first, second = (float(_said(f"{each} --time")) for each in (before, after))
        ratios.append(second / first)
    with tempfile.TemporaryDirectory() as folder:
        lumos.collect.run(shlex.split(before), folder, steps=5, warmup=1, wait=3)
        try:
            found = lumos.whatif(folder, before=before, after=after)
        except LumosError as error:
            return RealScore(pair, float(np.median(ratios)), np.ptp(ratios) / 2, None, 0.0, "", str(error))
    matched = next(each.message for each in found.diagnostics if each.code == "script-matched")
    off = found.base.step_time_s / (found.measured_step_s or 1.0) - 1
    answer = found.outcome.step_time_s / found.base.step_time_s
    return RealScore(pair, float(np.median(ratios)), float(np.ptp(ratios) / 2 / np.median(ratios)), answer, off, matched, "")


def _said(text: str) -> str:
    return subprocess.run(shlex.split(text), capture_output=True, text=True, check=True).stdout


class Scored(NamedTuple):
    """One pair as answered. base_off: of the base from the recording. error: of the changed step; None where it was refused."""

    pair: Pair
    base_s: float
    truth_s: float
    answer_s: float | None
    inside: bool
    base_off: float
    grade: str
    refused: str
    seconds: float

    @property
    def error(self) -> float | None:
        """(predicted - true) / true."""
        return None if self.answer_s is None else self.answer_s / self.truth_s - 1


def hidden(seed: int) -> Callable[[Ranks], Int64]:
    """The times of a job with hidden factors."""

    def times(job: Ranks) -> Int64:
        out = job.graph.duration.astype(float).copy()
        for rank, kind in enumerate(job.of):
            program, first = job.programs[kind], int(job.first[rank])
            for i, task in enumerate(program.tasks):
                if task.work is not None:
                    name = program.process.operators[task.operator].name if task.operator >= 0 and task.exchange < 0 else task.name
                    out[first + i] *= factor(seed, name, task.work)
        return np.rint(out).astype(np.int64)

    return times


def factor(seed: int, name: str, work: Work) -> float:
    """The hidden factor of an operator's kernel."""
    drawn = int.from_bytes(hashlib.sha256(f"{seed} {name} {shape_class(work)}".encode()).digest()[:8], "big") / 2**64
    return float(np.exp((2 * drawn - 1) * SPREAD))


def shape_class(work: Work) -> str:
    """What work is like, whatever its size: of multiplications which of their three sizes are the larger ones; of others their kind."""
    if isinstance(work, Gemm):
        return f"gemm {work.dtype} {np.argsort((work.m, work.n, work.k), kind='stable').tolist()}"
    if isinstance(work, Attention):
        return f"attention {work.kernel} {work.direction} {work.causal}"
    return f"{type(work).__name__} {getattr(work, 'kernel_class', '')}"


def command(options: str, ranks: int) -> str:
    """The command as a user types it."""
    start = f"{shlex.quote(sys.executable)} " + (f"-m torch.distributed.run --nproc-per-node {ranks} " if ranks > 1 else "")
    return f"{start}{shlex.quote(str(TRAIN))} {options}"


@cache
def run(options: str, ranks: int) -> list[Process]:
    """The records of a command, run once: another run leaves the same."""
    with tempfile.TemporaryDirectory() as work:
        return records(Launched(shlex.split(command(options, ranks)), emulated_device(CLUSTER), ranks, STEPS, 1, Path(work), 600.0))


def scored(pair: Pair, seed: int) -> Scored:
    """Answer one pair."""
    with tempfile.TemporaryDirectory() as name:
        options = {parse(command(each, pair.ranks), "").words: each for each in (pair.before, pair.after)}
        jobs = []
        for side in options.values():
            folder = Path(name) / str(len(jobs))
            write_traces(folder, run(side, pair.ranks), load_cluster(CLUSTER), hidden(seed))
            jobs.append(lumos.read(folder))
        graphs = [lumos.build(job) for job in jobs]
        truths = [step_times_of(graph, members(graph)).mean_ns * 1e-9 for graph in graphs]

        def emulate(asked: Command, _cluster: str, ranks: int, _steps: int, _limit: float) -> Script:
            return script(asked, run(options[asked.words], ranks), load_cluster(CLUSTER))

        began = time.perf_counter()
        before, after = (parse(command(each, pair.ranks), "") for each in (pair.before, pair.after))
        try:
            found = Base(jobs[0], graphs[0], before, Asked(), emulate).answer(after)
        except LumosError as error:
            return Scored(pair, truths[0], truths[1], None, False, 0.0, "refused", str(error), time.perf_counter() - began)
    o = found.outcome
    inside = o.step_time_low_s <= truths[1] <= o.step_time_high_s
    off = found.base.step_time_s / truths[0] - 1
    return Scored(pair, *truths, o.step_time_s, inside, off, found.trust.grade, "", time.perf_counter() - began)


def main() -> None:
    """Print each pair, and the figures over all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, nargs="*", default=[FIRST_SEED])
    parser.add_argument("--only", default="", help="pairs whose names have one of these words, between commas")
    parser.add_argument("--draw", type=int, metavar="SEED", help="draw the pairs by this seed")
    parser.add_argument("--real", action="store_true", help="run pairs on the CPU instead")
    parser.add_argument("--write", action="store_true", help="write the result file")
    asked = parser.parse_args()
    pairs = (REAL if asked.real else PAIRS) if asked.draw is None else drawn_pairs(asked.draw, small=asked.real)
    drawn = "" if asked.draw is None else f" --draw {asked.draw}"
    suffix = "" if asked.draw is None else f"-drawn-{asked.draw}"
    if asked.real:
        real = []
        for pair in pairs:
            if any(word in pair.name for word in asked.only.split(",")):
                try:
                    real.append(really(pair))
                except subprocess.CalledProcessError as error:  # torch has no such kernel on a CPU
                    print(f"{pair.name}: does not run: {error.stderr[-200:]}")
                    continue
                print(real[-1], flush=True)
        if asked.write:
            write_result(f"validation/results/scripted-real{suffix}.md", _real_section(real, drawn))
        return
    rows = []
    for seed in asked.seed:
        for pair in pairs:
            if any(word in pair.name for word in asked.only.split(",")):
                rows.append(scored(pair, seed))
                print(_line(rows[-1]), flush=True)
    print(_figures([row.error for row in rows]))
    if asked.write:
        name = "scripted" if asked.seed == [FIRST_SEED] else f"scripted-{'-'.join(map(str, asked.seed))}"
        write_result(f"validation/results/{name}{suffix}.md", _section(rows, pairs, asked.seed, drawn))


def _figures(errors: Sequence[float | None]) -> str:
    known = [abs(error) for error in errors if error is not None]
    if not known:
        return f"none of {len(errors)} answered"
    return f"{len(known)} of {len(errors)} answered; median error {np.median(known):.2%}, worst {max(known):.2%} over all"


def _section(rows: Sequence[Scored], pairs: Sequence[Pair], seeds: Sequence[int], drawn: str) -> str:
    table = [
        (
            row.pair.name, str(row.pair.ranks), f"{1e3 * row.base_s:.1f}", f"{row.base_off:+.2%}", f"{1e3 * row.truth_s:.1f}",
            "refused" if row.error is None else f"{row.error:+.2%}", "yes" if row.inside else "no",
        )
        for row in rows
    ]  # fmt: skip
    lacking = [pair.name for pair in pairs if pair not in {row.pair for row in rows}]
    left = f" Not run: {', '.join(lacking)}." if lacking else ""
    head = ("change", "ranks", "recorded, ms", "base off", "changed, ms", "error", "in the interval")
    return (
        f"Written by `python -m validation.scripted --seed {' '.join(map(str, seeds))}{drawn} --write`. The two scripts of each pair"
        f" are emulated on {CLUSTER}, and every kernel's time is multiplied by a hidden factor between one half and two of its operator and"
        " the class of its shapes. The first recording and the two commands answer for the second recording."
        f" {_figures([row.error for row in rows])}.{left}\n\n{markdown_table(head, table)}"
    )


def _real_section(rows: Sequence[RealScore], drawn: str) -> str:
    table = [
        (
            row.pair.name, f"{row.base_off:+.2%}", f"x {row.truth:.3f}", f"{row.noise:.1%}",
            "refused" if row.error is None else f"{row.error:+.1%}",
        )
        for row in rows
    ]  # fmt: skip
    head = ("change", "base off", "processor time of a step", "noise of the rounds", "error")
    return (
        f"Written by `python -m validation.scripted --real{drawn} --write`. One process on one core; the"
        f" processor time of a step of both sides, in {ROUNDS} rounds in turn, against the answer from a recording of the first."
        f" {_figures([row.error for row in rows])}.\n\n{markdown_table(head, table)}"
    )


def _line(row: Scored) -> str:
    if row.error is None:
        return f"{row.pair.name}: refused: {row.refused}"
    return (
        f"{row.pair.name}: {1e3 * row.base_s:.2f} ms (base {row.base_off:+.2%}) to {1e3 * row.truth_s:.2f} ms, {row.error:+.2%}"
        f" {'inside' if row.inside else 'outside'} {row.grade} {row.seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
