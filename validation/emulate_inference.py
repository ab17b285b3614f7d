"""Models of `transformers` emulated on an H100 against recordings of them there: validation/results/emulate-inference.md.

    python -m validation.emulate_inference

The recordings are those of `h100-inference`: one call of each model, by torch 2.6.0 and transformers 4.49.0. Which operators call others
differs between versions, so this is to be run with the same: in an environment of its own, `pip install torch==2.6.0
transformers==4.49.0 'numpy<2'` and this project (`pip install -e .`). The table says which versions were used.

Two operators are the same where name and shapes of the inputs are. Counted is the longest common subsequence of the thread with most
operators, of all rows and of those that launched work in the recording; the fraction is of the longer of the two lists, so that an operator
too many counts like one that is missing.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import json
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from tools.document import markdown_table
from tools.figures import write_result

from lumos.emulation.accelerators import emulated_device
from lumos.emulation.record import Process, Tensor
from lumos.emulation.run import Launched, records

SCRIPT = Path(__file__).parent / "emulated" / "inference.py"
LIMIT_S = 300.0
RECORDINGS = {"bert": "bert-small", "vit": "vit-nsfw", "qwen": "qwen1.5-0.5b"}
TARGET = 0.99

#: What decides which operators call others.
PACKAGES = ("torch", "transformers")

#: torch's profiler leaves out the shapes of longer lists of tensors (TENSOR_LIST_DISPLAY_LENGTH_LIMIT).
LONGEST_LIST = 30

#: An operator: its name, and the shapes of its inputs that have dimensions.
Operator = tuple[str, tuple[tuple[int, ...], ...]]


class Agreement(NamedTuple):
    """rows: operators of the recording. of_rows, of_launching: the fractions that agree, of all and of those that launch."""

    name: str
    rows: int
    of_rows: float
    launching: int
    of_launching: float


def main() -> int:
    used = [f"{name} {importlib.metadata.version(name)}" for name in PACKAGES]
    found = [agreement(name) for name in RECORDINGS]
    for each in found:
        print(f"{each.name}: {each.of_rows:.1%} of {each.rows} rows, {each.of_launching:.1%} of {each.launching} that launch")
    write_result("validation/results/emulate-inference.md", _section(found, used))
    return 0 if all(each.of_launching >= TARGET for each in found) else 1


def agreement(name: str) -> Agreement:
    """One model, emulated, against its recording."""
    path = _recording(name)
    command = [sys.executable, str(SCRIPT), name]
    with tempfile.TemporaryDirectory() as folder:
        (process,) = records(Launched(command, emulated_device("h100"), 1, 1, 1, Path(folder), LIMIT_S))
    real, emulated = recorded(path), of_record(process)
    names = launching(path)
    some, others = ([each for each in rows if each[0] in names] for rows in (real, emulated))
    return Agreement(name, len(real), _fraction(real, emulated), len(some), _fraction(some, others))


def made_with() -> list[str]:
    """The packages that the recordings say they were made with, each with its version."""
    with gzip.open(_recording("bert")) as file:
        installed = dict(each.split("==") for each in json.load(file)["metadata"]["system"]["pip_packages"])
    return [f"{name} {installed[name]}" for name in PACKAGES]


def _recording(name: str) -> Path:
    return Path(os.environ["LUMOS_TRACES"]) / "h100-inference" / f"{RECORDINGS[name]}.json.gz"


def launching(path: Path) -> set[str]:
    """The names of the operators that launched device work of their own: the innermost ones around a launch call."""
    with gzip.open(path) as file:
        rows = [row for row in json.load(file)["traceEvents"] if row.get("ph") == "X"]
    worked = {
        row["args"]["External id"]
        for row in rows
        if row.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and "External id" in row["args"]
    }
    return {row["name"] for row in rows if row.get("cat") == "cpu_op" and row["args"].get("External id") in worked}


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


def recorded(path: Path) -> list[Operator]:
    """The operators of a Kineto file on the thread with most of them."""
    threads = defaultdict(list)
    with gzip.open(path) as file:
        rows = [row for row in json.load(file)["traceEvents"] if row.get("cat") == "cpu_op"]
    for row in sorted(rows, key=lambda row: (row["ts"], -row["dur"])):
        threads[row["tid"]].append((row["name"], tuple(_shapes(row["args"].get("Input Dims", [])))))
    return max(threads.values(), key=len)


def of_record(process: Process) -> list[Operator]:
    """The operators of an emulated process, in the same way."""
    threads = defaultdict(list)
    for each in sorted(process.operators, key=lambda operator: operator.begin):
        lists = [value if isinstance(value, list) else [value] for value in each.inputs]
        given = [tensor for value in lists if len(value) <= LONGEST_LIST for tensor in value]
        shapes = tuple(tensor.shape for tensor in given if isinstance(tensor, Tensor) and tensor.shape)
        threads[each.thread].append((each.name, shapes))
    return max(threads.values(), key=len)


def _shapes(dims: list) -> list[tuple[int, ...]]:
    """The shapes in a row's "Input Dims", where an input is a shape or a list of shapes."""
    found = []
    for each in dims:
        found += [tuple(shape) for shape in each if shape] if each and isinstance(each[0], list) else [tuple(each)] if each else []
    return found


def _fraction(real: list[Operator], emulated: list[Operator]) -> float:
    return common(real, emulated) / max(len(real), len(emulated))


def _section(found: list[Agreement], used: list[str]) -> str:
    rows = [(each.name, str(each.rows), f"{each.of_rows:.1%}", str(each.launching), f"{each.of_launching:.1%}") for each in found]
    return "\n\n".join([
        f"Written by `python -m validation.emulate_inference`, with {' and '.join(used)}. Models emulated on an H100, against recordings of"
        f" one call of each there (name, shapes, order), which say that they were made with {' and '.join(made_with())}.",
        markdown_table(("model", "rows", "the same", "that launch", "the same (to reach ≥ 99 %)"), rows),
        "Rows that launch nothing are left out where a kernel makes them for itself: the memory of its result, and views of it, which a"
        " profiler shows below the operator (`aten::empty`, `aten::resize_`, `aten::view`) and an emulated trace does not have. The others"
        " depend on the version of torch, so the figure is that of the recordings' own. The rules for what"
        " `aten::addmm`, `aten::pow` and `aten::arange` call on a device were mended with these recordings. To have the figure:"
        " `python -m venv own`, `own/bin/pip install torch==2.6.0 transformers==4.49.0 'numpy<2' -e .`,"
        " `own/bin/python -m validation.emulate_inference`. The build for CUDA that this installs needs no GPU here.",
    ])  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
