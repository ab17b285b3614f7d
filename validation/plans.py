"""What-ifs of the plan of jobs of several ranks, against emulations of the changed scripts.

    python -m validation.plans --seed N [--pairs 12] [--write]

A script, its sizes and ranks, and a change of them are drawn by the seed. Both sides are emulated: the recording of the first is all that
the what-if has, and the second is the truth. Prices are those of one model on both sides, so what is tested is what a change does to the
work, the exchanges and their order. Durations are deterministic; nothing is timed here. The first score of a seed goes to
validation/results/plans-SEED.md.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from tools.document import markdown_table
from tools.figures import write_result

from lumos.analyze.loop.steady import steady
from lumos.analyze.loop.steps import members
from lumos.changes.changes import Changes
from lumos.changes.settings import parse_settings
from lumos.changes.whatif import answer_changes
from lumos.cost.cluster import load_cluster
from lumos.emulation.accelerators import emulated_device
from lumos.emulation.device.files import write_traces
from lumos.emulation.run import Launched, records
from lumos.errors import LumosError, QuestionError
from lumos.graph.build import build
from lumos.trace import read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.graph.table import Graph
    from lumos.trace.table import Job

HERE = Path(__file__).parent
CLUSTER, STEPS = "h100", 3


class Family(NamedTuple):
    """A script whose plan can change. sizes: of all its runs. options: what is drawn of it, each with the key of --set by which it is asked
    and its values. ranks: the options whose product is the number of ranks."""

    script: str
    sizes: str
    options: Mapping[str, tuple[str, Sequence[object]]]
    ranks: tuple[str, ...]


FAMILIES = {
    "tensor ranks": Family(
        "scripts/tensor_ranks.py",
        "--hidden 4096 --heads 32 --ffn 16384",
        {"tp": ("tp", (1, 2, 4, 8)), "dp": ("dp", (1, 2, 4)), "layers": ("layers", (4, 6, 8)), "batch": ("micro_batch", (1, 2, 4)),
         "seq": ("seq", (1024, 2048, 4096)), "recompute": ("recompute", ("none", "full"))},
        ("tp", "dp"),
    ),
    "shards and tensor ranks": Family(
        "emulated/llama.py",
        "--hidden 4096 --heads 32 --kv 8 --ffn 14336 --vocab 32000",
        {"tp": ("tp", (1, 2, 4)), "dp": ("dp", (2, 4)), "layers": ("layers", (4, 6, 8)), "batch": ("micro_batch", (1, 2, 4)),
         "seq": ("seq", (1024, 2048, 4096))},
        ("tp", "dp"),
    ),
    "replicas": Family(
        "scripts/train.py",
        "--model gpt --width 2048 --heads 16 --bf16",
        {"dp": ("dp", (2, 4, 8)), "fsdp": ("zero", (0, 3)), "layers": ("layers", (4, 6, 8)), "batch": ("micro_batch", (8, 16, 32)),
         "accumulate": ("microbatches", (1, 2)), "length": ("seq", (512, 1024))},
        ("dp",),
    ),
    "sets of shards": Family(
        "scripts/train.py",
        "--model gpt --width 2048 --heads 16 --bf16 --fsdp",
        {"dp": ("dp", (4, 8)), "shard": ("shard", (2, 4, 8)), "layers": ("layers", (4, 6, 8)), "batch": ("micro_batch", (8, 16)),
         "accumulate": ("microbatches", (1, 2))},
        ("dp",),
    ),
    "stages": Family(
        "scripts/stages.py",
        "--hidden 4096 --heads 32",
        {"pp": ("pp", (2, 4)), "layers": ("layers", (8, 16)), "microbatches": ("microbatches", (4, 8)), "batch": ("micro_batch", (1, 2)),
         "schedule": ("schedule", ("gpipe", "1f1b")), "seq": ("seq", (1024, 2048))},
        ("pp",),
    ),
}  # fmt: skip
#: Options of scripts that are switches: there is none for their first value.
SWITCHES = ("recompute", "fsdp")


class Pair(NamedTuple):
    """A drawn change: the values of all options before and after it, and the option that changes."""

    family: str
    before: tuple[tuple[str, object], ...]
    after: tuple[tuple[str, object], ...]
    option: str

    @property
    def asked(self) -> str:
        """The change as a user asks it."""
        return f"{FAMILIES[self.family].options[self.option][0]}={dict(self.after)[self.option]}"


class Score(NamedTuple):
    """What a pair was answered. error: None where it was refused or asked. said: why."""

    pair: Pair
    base_s: float
    truth_s: float
    error: float | None
    inside: bool
    grade: str
    said: str


def drawn(seed: int, count: int) -> list[Pair]:
    """Pairs by the seed, of the families in turn."""
    random, out = Random(seed), list[Pair]()
    while len(out) < count:
        name = list(FAMILIES)[len(out) % len(FAMILIES)]
        options = FAMILIES[name].options
        before = {option: random.choice(list(values)) for option, (_, values) in options.items()}
        option = random.choice(list(options))
        after = {**before, option: random.choice([v for v in options[option][1] if v != before[option]])}
        if all(1 < _ranks(name, side) <= 8 for side in (before, after)):
            out.append(Pair(name, tuple(before.items()), tuple(after.items()), option))
    return out


def _ranks(family: str, values: Mapping[str, object]) -> int:
    return int(np.prod([int(str(values[option])) for option in FAMILIES[family].ranks]))


@cache
def recorded(family: str, values: tuple[tuple[str, object], ...]) -> tuple[Job, Graph]:
    """The emulated job of a script with these options."""
    of, given = FAMILIES[family], dict(values)
    ranks = _ranks(family, given)
    words = [f"--{option}" for option in SWITCHES if option in given and given[option] not in (0, "none")]
    words += [f"--{option} {value}" for option, value in given.items() if option not in (*SWITCHES, "dp", "pp")]
    start = f"{shlex.quote(sys.executable)} -m torch.distributed.run --nproc-per-node {ranks}"
    command = f"{start} {shlex.quote(str(HERE / of.script))} {of.sizes} {' '.join(words)}"
    with tempfile.TemporaryDirectory() as work:
        ran = records(Launched(shlex.split(command), emulated_device(CLUSTER), ranks, STEPS, 1, Path(work), 600.0))
        write_traces(Path(work) / "traces", ran, load_cluster(CLUSTER))
        job = read(str(Path(work) / "traces"))
    return job, build(job)


def scored(pair: Pair) -> Score:
    """Ask one pair, and hold it against the truth."""
    job, graph = recorded(pair.family, pair.before)
    other = recorded(pair.family, pair.after)
    base, truth = (1e-9 * steady(members(each)).step_time_ns for each in (graph, other[1]))
    try:
        found = answer_changes(job, graph, Changes(parse_settings([pair.asked])))
    except LumosError as error:
        return Score(pair, base, truth, None, False, "asked" if isinstance(error, QuestionError) else "refused", str(error))
    low, high = found.outcome.step_time_low_s, found.outcome.step_time_high_s
    return Score(pair, base, truth, found.outcome.step_time_s / truth - 1, low <= truth <= high, str(found.trust.grade), "")


def section(rows: Sequence[Score], seed: int, pairs: int) -> str:
    """The text of the result file. pairs: how many were drawn, of which some may not be emulated."""
    errors = [abs(row.error) for row in rows if row.error is not None]
    figures = (
        f"{len(errors)} of {len(rows)} answered; median error {np.median(errors):.2%}, worst {max(errors):.2%}; the interval holds"
        f" {np.mean([row.inside for row in rows if row.error is not None]):.0%}"
    )
    lines = [
        "### Plans of several ranks, against emulations",
        "",
        f"Written by `python -m validation.plans --seed {seed} --pairs {pairs} --write`. Nobody had read this draw before.",
        "",
        f"{figures}.",
        "",
        markdown_table(
            ("script", "recorded with", "change", "recorded, ms", "changed, ms", "error", "in the interval"),
            [
                (
                    row.pair.family, ", ".join(f"{k} {v}" for k, v in row.pair.before), f"`{row.pair.asked}`", f"{1e3 * row.base_s:.1f}",
                    f"{1e3 * row.truth_s:.1f}", row.grade if row.error is None else f"{row.error:+.2%}",
                    "–" if row.error is None else "yes" if row.inside else "no",
                )
                for row in rows
            ],
        ),
    ]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """Print each pair, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--write", action="store_true", help="write the result file")
    asked = parser.parse_args()
    rows = []
    for pair in drawn(asked.seed, asked.pairs):
        try:
            rows.append(scored(pair))
        except LumosError as error:
            print(pair.family, dict(pair.before), pair.asked, "not emulated:", error, flush=True)
            continue
        row = rows[-1]
        off = row.grade if row.error is None else f"{row.error:+.2%} {'inside' if row.inside else 'OUTSIDE'} {row.grade}"
        times = f"{1e3 * row.base_s:.2f} to {1e3 * row.truth_s:.2f} ms"
        print(f"{pair.family}: {dict(pair.before)} {pair.asked}: {times}: {off} {row.said}", flush=True)
    text = section(rows, asked.seed, asked.pairs)
    print(text.splitlines()[4])
    if asked.write:
        write_result(f"validation/results/plans-{asked.seed}.md", text)


if __name__ == "__main__":
    main()
