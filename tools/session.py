"""Put the real output of commands into the sessions of the documents, or name the sessions that differ from it.

    python -m tools.session [PAGE…]            writes them
    python -m tools.session --check [PAGE…]    compares them, but for how long things took

A session is a `console` block between `<!-- session… -->` and `<!-- /session… -->`; its commands are the lines that begin with "$ ". They
run in the root of the project. Those of a `session-traces…` run in the folder of public traces that LUMOS_TRACES names, and are passed over
where it names none. What a `session-measured…` prints depends on the machine: it is written with
the time of each command, and never compared.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tools.document import ROOT, write_section

_SESSION = re.compile(r"<!-- (?P<name>session[\w-]*) -->\n```console\n(?P<text>.*?)\n```\n<!-- /(?P=name) -->", re.DOTALL)
#: How long reading, building and simulating took, which differs from run to run.
_TOOK = re.compile(r"(?<= in )\d+\.\d+ s")


class Session(NamedTuple):
    """A session of a document: the page, the name of its section, and its text."""

    page: Path
    name: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The commands, in order."""
        return [line.removeprefix("$ ") for line in self.text.splitlines() if line.startswith("$ ")]

    @property
    def measured(self) -> bool:
        """Whether what it prints depends on the machine."""
        return self.name.startswith("session-measured")

    @property
    def folder(self) -> Path | None:
        """Where its commands run; None where that is the folder of public traces and there is none."""
        if not self.name.startswith("session-traces"):
            return ROOT
        return Path(os.environ["LUMOS_TRACES"]) if os.environ.get("LUMOS_TRACES") else None


def sessions() -> list[Session]:
    """All sessions of the README and of the pages of docs/."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [Session(page, m["name"], m["text"]) for page in pages for m in _SESSION.finditer(page.read_text(encoding="utf-8"))]


def recorded(commands: list[str], folder: Path = ROOT, timed: bool = False) -> str:
    """What a terminal of 80 columns shows of the commands, run in `folder`; paths in the project are written from its root.

    timed: say after each command how long it took. Raises CalledProcessError where one fails without a message of Lumos that says why.
    """
    path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "PATH": path}
    out = []
    for command in commands:
        began = time.perf_counter()
        done = subprocess.run(
            command, shell=True, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if not done.stdout.startswith("lumos: "):
            done.check_returncode()
        took = [f"[{time.perf_counter() - began:.1f} s]"] if timed else []
        shown = done.stdout.replace(f"{ROOT}/", "").splitlines()
        out.append("\n".join([f"$ {command}", *(line.rstrip() for line in shown), *took]))
    return "\n\n".join(out)


def timeless(text: str) -> str:
    """A session without how long things took."""
    return _TOOK.sub("… s", text)


def _differs(session: Session, folder: Path) -> bool:
    if session.measured or timeless(recorded(session.commands, folder)) == timeless(session.text):
        return False
    print(f"{session.page.relative_to(ROOT)}: {session.name} differs from what its commands print", file=sys.stderr)
    return True


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tools.session")
    arguments.add_argument("pages", nargs="*", type=Path, help="only the sessions of these pages")
    arguments.add_argument("--check", action="store_true", help="compare, and write nothing")
    asked = arguments.parse_args()
    pages = {page.resolve() for page in asked.pages}
    differ = False
    for session in sessions():
        if (pages and session.page not in pages) or session.folder is None:
            continue
        if asked.check:
            differ |= _differs(session, session.folder)
        else:
            text = recorded(session.commands, session.folder, timed=session.measured)
            write_section(session.page, session.name, f"```console\n{text}\n```")
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
