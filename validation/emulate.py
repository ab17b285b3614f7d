"""Scripts emulated as on a CPU against torch's profiler of the same scripts run for real on the CPU: the table of docs/accuracy.md.

    python -m validation.emulate [NAME...]

Both record the second training step. Two operators are the same where name and shapes of the inputs are. Counted is the longest
common subsequence on each thread; the fraction is of the longer of the two lists, so that an operator too many counts like one that is
missing. The processes have one thread for operators.
"""

from __future__ import annotations

import difflib
import gzip
import json
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from tools.document import markdown_table, write_section

import lumos
from lumos.emulate.accelerators import emulated_device
from lumos.emulate.processes import Launched
from lumos.emulate.record import Process, Tensor
from lumos.emulate.run import records

FOLDER = Path(__file__).parent / "emulated"
SCRIPTS = {
    "models.py": (
        "mlp",
        "cnn",
        "lstm",
        "transformer",
        "checkpointing",
        "autocast",
        "gpt2",
        "llama",
        "bert",
        "vit",
        "t5",
        "gru",
        "autoencoder",
        "encoder",
    ),
    "trainers.py": ("trainer", "lightning", "accelerate"),
}
TARGET = 0.995
LIMIT_S = 300.0

#: torch's profiler leaves out the shapes of longer lists of tensors (TENSOR_LIST_DISPLAY_LENGTH_LIMIT).
LONGEST_LIST = 30

#: An operator: its name, and the shapes of its inputs that have dimensions.
Operator = tuple[str, tuple[tuple[int, ...], ...]]


class Score(NamedTuple):
    """real, emulated: operators of each. same: of both, in the same order. missing: the first operators that are not."""

    name: str
    real: int
    emulated: int
    same: int
    missing: list[str]

    @property
    def fraction(self) -> float:
        return self.same / max(self.real, self.emulated)


def main(chosen: list[str]) -> int:
    os.environ["OMP_NUM_THREADS"] = "1"
    scores = []
    for script, names in SCRIPTS.items():
        for name in names:
            if not chosen or name in chosen:
                scores.append(score(name, [sys.executable, str(FOLDER / script), name]))
                print(f"{name:14} {scores[-1].fraction:.2%} of {scores[-1].real}; {'; '.join(scores[-1].missing[:6])}", flush=True)
    if not chosen:
        write_section("docs/accuracy.md", "emulate", _section(scores))
    return 0 if all(each.fraction >= TARGET for each in scores) else 1


def score(name: str, command: list[str]) -> Score:
    """One script, run for real and emulated."""
    with tempfile.TemporaryDirectory() as folder:
        lumos.collect.run(command, folder, steps=1, warmup=0, wait=0)
        real = recorded(Path(folder) / "rank0.json.gz")
        (process,) = records(Launched(command, emulated_device("cpu"), 1, 1, 1, Path(folder), LIMIT_S))
    emulated = of_record(process)
    same, missing = 0, []
    for one, other in zip(real, emulated, strict=False):
        same += common(one, other)
        for kind, begin, end, first, last in difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
            if kind != "equal":
                missing += [f"-{each[0]}" for each in one[begin:end]] + [f"+{each[0]}" for each in other[first:last]]
    return Score(name, sum(map(len, real)), sum(map(len, emulated)), same, missing)


def common(one: list[Operator], other: list[Operator]) -> int:
    """The length of the longest common subsequence, by the bit-parallel algorithm of Hyyrö (2004): a bit for each place of `one`."""
    places: dict[Operator, int] = defaultdict(int)
    for place, each in enumerate(one):
        places[each] |= 1 << place
    every = (1 << len(one)) - 1
    unmatched = every
    for each in other:
        found = unmatched & places.get(each, 0)
        unmatched = ((unmatched + found) | (unmatched - found)) & every
    return len(one) - unmatched.bit_count()


def recorded(path: Path) -> list[list[Operator]]:
    """The operators of a Kineto file, by thread, the thread with most of them first."""
    threads = defaultdict(list)
    with gzip.open(path) as file:
        rows = [row for row in json.load(file)["traceEvents"] if row.get("cat") == "cpu_op"]
    for row in sorted(rows, key=lambda row: (row["ts"], -row["dur"])):
        threads[row["tid"]].append((row["name"], tuple(_shapes(row["args"].get("Input Dims", [])))))
    return sorted(threads.values(), key=len, reverse=True)


def of_record(process: Process) -> list[list[Operator]]:
    """The operators of an emulated process, in the same way."""
    threads = defaultdict(list)
    for each in sorted(process.operators, key=lambda operator: operator.begin):
        lists = [value if isinstance(value, list) else [value] for value in each.inputs]
        given = [tensor for value in lists if len(value) <= LONGEST_LIST for tensor in value]
        shapes = tuple(tensor.shape for tensor in given if isinstance(tensor, Tensor) and tensor.shape)
        threads[each.thread].append((each.name, shapes))
    return sorted(threads.values(), key=len, reverse=True)


def _shapes(dims: list) -> list[tuple[int, ...]]:
    """The shapes in a row's "Input Dims", where an input is a shape or a list of shapes."""
    found = []
    for each in dims:
        found += [tuple(shape) for shape in each if shape] if each and isinstance(each[0], list) else [tuple(each)] if each else []
    return found


def _section(scores: list[Score]) -> str:
    rows = [(each.name, str(each.real), str(each.emulated), f"{each.fraction:.2%}") for each in scores]
    passed = sum(each.fraction >= TARGET for each in scores)
    return "\n\n".join([
        "Written by `python -m validation.emulate`. Operators of the second training step (name, shapes, order on each thread) of a script"
        " emulated as on a CPU, against the profiler's of the same script run for real on the CPU.",
        markdown_table(("script", "operators", "emulated", "the same (to reach ≥ 99.5 %)"), rows),
        f"{passed} of {len(scores)} scripts reach it.",
    ])  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
