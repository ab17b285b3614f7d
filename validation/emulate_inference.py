"""Models of `transformers` emulated on an H100 against recordings of them there: a table of docs/accuracy.md.

    python -m validation.emulate_inference [FOLDER]

The recordings are those of `h100-inference`: one call of each model, by transformers 4.49 and an older torch. FOLDER holds the
transformers to build the models with (`pip install --target FOLDER transformers==4.49.0 …`); without, those that are installed are used.
The table says which. Operators are compared as `validation.emulate` compares them: all rows, and those that launched work in the recording.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tools.document import markdown_table, write_section
from validation.emulate import FOLDER, LIMIT_S, common, of_record, recorded

from lumos.emulate.accelerators import emulated_device
from lumos.emulate.processes import Launched
from lumos.emulate.run import records

if TYPE_CHECKING:
    from validation.emulate import Operator

RECORDINGS = {"bert": "bert-small", "vit": "vit-nsfw", "qwen": "qwen1.5-0.5b"}
TARGET = 0.98


class Agreement(NamedTuple):
    """rows: operators of the recording. of_rows, of_launching: the fractions that agree, of all and of those that launch."""

    name: str
    rows: int
    of_rows: float
    launching: int
    of_launching: float


def main(folder: str) -> int:
    if folder:
        os.environ["PYTHONPATH"] = os.pathsep.join((folder, os.environ.get("PYTHONPATH", "")))
    version = subprocess.run(
        [sys.executable, "-c", "import transformers; print(transformers.__version__)"], check=True, capture_output=True, text=True
    ).stdout.strip()
    found = [agreement(name) for name in RECORDINGS]
    for each in found:
        print(f"{each.name}: {each.of_rows:.1%} of {each.rows} rows, {each.of_launching:.1%} of {each.launching} that launch, {version}")
    write_section("docs/accuracy.md", "emulate-inference", _section(found, version))
    return 0 if all(each.of_rows >= TARGET for each in found) else 1


def agreement(name: str) -> Agreement:
    """One model, emulated, against its recording."""
    path = Path(os.environ["LUMOS_TRACES"]) / "h100-inference" / f"{RECORDINGS[name]}.json.gz"
    command = [sys.executable, str(FOLDER / "inference.py"), name]
    with tempfile.TemporaryDirectory() as folder:
        (process,) = records(Launched(command, emulated_device("h100"), 1, 1, 1, Path(folder), LIMIT_S))
    real, emulated = recorded(path)[0], of_record(process)[0]
    names = launching(path)
    some, others = ([each for each in rows if each[0] in names] for rows in (real, emulated))
    return Agreement(name, len(real), _fraction(real, emulated), len(some), _fraction(some, others))


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


def _fraction(real: list[Operator], emulated: list[Operator]) -> float:
    return common(real, emulated) / max(len(real), len(emulated))


def _section(found: list[Agreement], version: str) -> str:
    rows = [(each.name, str(each.rows), f"{each.of_rows:.1%}", str(each.launching), f"{each.of_launching:.1%}") for each in found]
    return "\n\n".join([
        f"Written by `python -m validation.emulate_inference`. Models of transformers {version} emulated on an H100, against recordings of"
        " one call of each there, by transformers 4.49 and an older torch (name, shapes, order).",
        markdown_table(("model", "rows", "the same (to reach ≥ 98 %)", "that launch", "the same"), rows),
        "Rows that launch nothing depend on the version of torch: the older one had `aten::reshape` below `aten::linear`, took a workspace"
        " with `aten::empty` below `aten::addmm`, and asked for the type of a power with two operators; torch 2.13 does not.",
    ])  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
