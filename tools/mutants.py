"""Put faults into a copy of Lumos, one at a time, and see whether the tests notice.

    LUMOS_TRACES=... python -m tools.mutants [--only TEXT] [--jobs N] [--write]

tools/mutants.toml lists the faults and which tests are run for each. --only takes those whose file or description contains a text; --write
writes validation/results/mutants.md. Faults in native code need CMake and nanobind: the one module is built again
(`tools.native_modules`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tools.document import ROOT, markdown_table
from tools.figures import write_result
from tools.native_modules import NativeModules

import lumos._engine

LIST = Path(__file__).with_name("mutants.toml")
#: What the copy holds.
COPIED = ("src", "tests", "tools", "validation", "pyproject.toml")
#: An editable installation has a finder that goes before the search path; Python runs this module at its start, from the copy.
WITHOUT_FINDER = """import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "ScikitBuildRedirectingFinder"]
"""
#: Tests that follow those of a file.
ALWAYS = "analyze/test_pinned_figures.py"
#: A fault that makes the tests run for longer than this counts as noticed (s).
LONGEST = 300


@dataclass(frozen=True)
class Mutant:
    """One fault: in the file `path` under src/lumos, `old`, which occurs there once, becomes `new`. tests: paths under tests/.
    module: of a file under native/, the module that is built from it; "" for Python."""

    path: str
    module: str
    what: str
    old: str
    new: str
    tests: tuple[str, ...]


class Outcome(NamedTuple):
    """Whether the tests noticed a mutant, and which test it was that failed ("" where none did)."""

    mutant: Mutant
    killed: bool
    by: str


def mutants() -> list[Mutant]:
    """All mutants of the list."""
    files = tomllib.loads(LIST.read_text(encoding="utf-8"))["file"]
    return [Mutant(f["path"], f.get("module", ""), *texts, (*f["tests"], ALWAYS)) for f in files for texts in f["mutants"]]


def source(mutant: Mutant, root: Path = ROOT) -> Path:
    """The file of a mutant."""
    return root / mutant.path if mutant.module else root / "src" / "lumos" / mutant.path


def mutated(mutant: Mutant, text: str) -> str:
    """The text of the file with the fault. Raises ValueError where the text to replace does not occur exactly once, SyntaxError where the
    result is no Python."""
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.path}: {mutant.old!r} occurs {text.count(mutant.old)} times: mend tools/mutants.toml")
    changed = text.replace(mutant.old, mutant.new)
    if not mutant.module:
        compile(changed, mutant.path, "exec")
    return changed


def run(mutant: Mutant, native: NativeModules) -> Outcome:
    """Run the tests of a mutant in a copy of the project. Raises RuntimeError where a native one does not compile."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder)
        make_copy(copy)
        changed = mutated(mutant, source(mutant).read_text(encoding="utf-8"))
        if mutant.module:
            native.built(mutant.module, mutant.path, changed, copy / "src" / "lumos")
        else:
            source(mutant, copy).write_text(changed, encoding="utf-8")
        return Outcome(mutant, *_tested(copy, mutant.tests))


def check_sound(chosen: Sequence[Mutant]) -> None:
    """Run the tests of all mutants without a fault. Raises RuntimeError where one fails: it would seem to notice every fault."""
    tests = tuple(dict.fromkeys(test for mutant in chosen for test in mutant.tests))
    failed, by = _tested(ROOT, tests, None)
    if failed:
        raise RuntimeError(f"{by} fails without any fault: mend that first")


def make_copy(to: Path) -> None:
    """Copy what the tests need, with the native modules, wherever the installation has put them."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, to / name)
    for module in Path(lumos._engine.__file__).parent.glob("_*.so"):
        shutil.copy(module, to / "src" / "lumos")
    (to / "sitecustomize.py").write_text(WITHOUT_FINDER, encoding="utf-8")


def environment(copy: Path) -> dict[str, str]:
    """The environment in which Python imports the copy."""
    return {**os.environ, "PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}", "PYTHONDONTWRITEBYTECODE": "1", "CI": "1"}


def _tested(copy: Path, tests: Sequence[str], longest: float | None = LONGEST) -> tuple[bool, str]:
    """Whether a test fails in the copy, and its name; "time" where they take longer than `longest` (s)."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=no", *(f"tests/{test}" for test in tests)]
    try:
        done = subprocess.run(command, cwd=copy, env=environment(copy), capture_output=True, text=True, timeout=longest, check=False)
    except subprocess.TimeoutExpired:
        return True, "time"
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.returncode == 1, next(_failures(done.stdout), "")


def _failures(output: str) -> Iterator[str]:
    for line in output.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            yield line.split(" ", 1)[1].split(" - ")[0].removeprefix("tests/")


def table(outcomes: Sequence[Outcome]) -> str:
    """The text of its result file."""
    killed = sum(o.killed for o in outcomes)
    text = (
        "Written by `make mutants`. Each row is a fault that was put into a copy of the code. A fault counts as killed where a test fails:"
        " one of the tests of its file, or else the pinned figures of the public traces. A fault that survives gets a test: so the share"
        " says what the tests hold now, not how many faults that nobody listed they would notice."
        f"\n\n{killed} of {len(outcomes)} faults were killed ({killed / len(outcomes):.0%}; to reach: 90 %).\n\n"
    )
    rows = [(f"`{o.mutant.path}`: {o.mutant.what}", f"`{o.by}`" if o.killed else "**survived**") for o in outcomes]
    return f"{text}{markdown_table(('fault', 'killed by'), rows)}"


def main() -> int:
    """Run the mutants and print, or write, the table; status 1 where a mutant survived."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="text in the file or the description of the faults to run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many run at a time")
    parser.add_argument("--write", action="store_true", help="write the table into validation/results/mutants.md")
    given = parser.parse_args()
    chosen = [m for m in mutants() if given.only in m.path or given.only in m.what]
    for m in chosen:
        mutated(m, source(m).read_text(encoding="utf-8"))
    check_sound(chosen)
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="native-") as folder, ThreadPoolExecutor(given.jobs) as pool:
        native = NativeModules(Path(folder))
        for outcome in pool.map(lambda mutant: run(mutant, native), chosen):
            outcomes.append(outcome)
            print(f"{'killed  ' if outcome.killed else 'SURVIVED'} {outcome.mutant.path}: {outcome.mutant.what}  {outcome.by}", flush=True)
    print(f"{sum(o.killed for o in outcomes)} of {len(outcomes)} killed")
    if given.write:
        write_result("validation/results/mutants.md", table(outcomes))
    return int(not all(o.killed for o in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
