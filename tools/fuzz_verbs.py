"""Puts values of legal JSON, TOML or CSV into random places of small inputs, and calls the verbs on them.

A mutated byte seldom survives the scanner of JSON; a mutated value does, and reaches whatever trusts it. Any end of a verb will do but
an exception that is no LumosError, or one that takes longer than LONGEST_S. The inputs: a recording of two ranks, slices of the public
traces that are named, configurations of models, clusters and predictions, and tables of measured runs.

    python -m tools.fuzz_verbs --seconds 600 [--seed N] [traces ...]
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tools.fuzz_inputs import FAMILIES, VALUES, Family, public_slice

from lumos.cli import load
from lumos.errors import LumosError

#: Seconds that a verb may take on inputs as small as these.
LONGEST_S = 60


class Fault(NamedTuple):
    """Where an exception that nobody foresaw came from: its type, and the file and the line of Lumos that was running."""

    kind: str
    file: str
    line: int


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a JSON document, its own () left out."""
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*path, key)
        yield from places(item, (*path, key))


def mutated(document: Any, found: Sequence[tuple[Any, ...]], random: Random) -> tuple[Any, str]:
    """A copy with other values in one to three of the places `found`, and what was changed. Where rows are alike, half of the time
    the same field of all rows of the category."""
    out, changes = copy.deepcopy(document), []
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        path, value = random.choice(found), copy.deepcopy(random.choice(VALUES))
        alike = list(_alike(out, path)) if random.random() < 0.5 else [path]
        for each in alike:
            with contextlib.suppress(KeyError, IndexError, TypeError):  # an earlier change took the place away
                _put(out, each, value)
        changes.append(f"{'.'.join(map(str, path))} = {json.dumps(value)[:60]} ({len(alike)} rows)")
    return out, "; ".join(changes)


def _alike(document: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The same field of all rows of the category of the row that the path leads into; the path itself where it leads into no row."""
    rows = document.get("traceEvents") if isinstance(document, dict) else None
    if len(path) < 3 or path[0] != "traceEvents" or not isinstance(rows, list) or not isinstance(rows[path[1]], dict):
        yield path
        return
    for i, row in enumerate(rows):
        if isinstance(row, dict) and row.get("cat") == rows[path[1]].get("cat"):
            yield (path[0], i, *path[2:])


def _put(document: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value


class _TooLongError(BaseException):
    """A verb has taken LONGEST_S."""


def fault_of(arguments: Sequence[str]) -> tuple[Fault, str] | None:
    """Call a verb in this process: where an unforeseen exception came from, with its text; None where there was none."""
    signal.alarm(LONGEST_S)
    quiet = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    try:
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(io.StringIO()):
            load(arguments[0]).main(list(arguments[1:]), standalone_mode=False)
    except (LumosError, SystemExit):
        return None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # what is looked for
        if type(error).__module__.startswith(("click", "typer")):
            return None
        frames = traceback.extract_tb(error.__traceback__)
        last = next((f for f in reversed(frames) if "/lumos/" in f.filename), frames[-1])
        return Fault(type(error).__name__, last.filename.rpartition("lumos/")[2], last.lineno or 0), str(error)[:160]
    finally:
        signal.alarm(0)
    return None


def fuzz(families: Sequence[Family], seconds: float, random: Random, report: Callable[[str], None]) -> tuple[int, Counter[Fault]]:
    """Mutate and call until the time is up; the number of calls, and the faults. report: called with the first case of each fault."""

    def alarm(*_: Any) -> None:
        raise _TooLongError

    signal.signal(signal.SIGALRM, alarm)
    known = [(family, list(places(family.document))) for family in families]
    faults: Counter[Fault] = Counter()
    calls, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        family, found = random.choice(known)
        document, change = mutated(family.document, found, random)
        with tempfile.TemporaryDirectory() as folder:
            try:
                words = family.write(document, Path(folder))
            except (LumosError, TypeError, ValueError):  # a value that this kind of file cannot hold
                continue
            for verb in random.sample(family.verbs, min(3, len(family.verbs))):
                arguments = [words.get(word, word.replace("OUT", folder)) for word in verb]
                calls += 1
                if (found_fault := fault_of(arguments)) is not None:
                    if found_fault[0] not in faults:
                        report(f"{found_fault[0]}: {' '.join(verb)}: {family.name}: {change}: {found_fault[1]}")
                    faults[found_fault[0]] += 1
    return calls, faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, help="profiler traces, of each of which a slice is mutated")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    families = [*FAMILIES, *(public_slice(path) for path in options.traces)]
    calls, faults = fuzz(families, options.seconds, Random(options.seed), lambda line: print(line, flush=True))
    print(f"{calls} calls of verbs on {len(families)} inputs with other values: {len(faults)} faults")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
