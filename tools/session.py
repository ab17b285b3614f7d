"""Put the real output of commands into the sessions of the documents, or name the sessions that differ from it.

    python -m tools.session            writes them
    python -m tools.session --check    compares them, but for how long things took

A session is a `console` block between `<!-- session… -->` and `<!-- /session… -->`; its commands are the lines that begin with "$ ".
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
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


def sessions() -> list[Session]:
    """All sessions of the README and of the pages of docs/."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [Session(page, m["name"], m["text"]) for page in pages for m in _SESSION.finditer(page.read_text(encoding="utf-8"))]


def recorded(commands: list[str]) -> str:
    """What a terminal of 80 columns shows of the commands. Raises CalledProcessError where one fails."""
    path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "PATH": path}
    out = []
    for command in commands:
        done = subprocess.run(command, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        out.append("\n".join([f"$ {command}", *(line.rstrip() for line in done.stdout.splitlines())]))
    return "\n\n".join(out)


def timeless(text: str) -> str:
    """A session without how long things took."""
    return _TOOK.sub("… s", text)


def main() -> int:
    differ = 0
    for session in sessions():
        found = recorded(session.commands)
        if "--check" not in sys.argv:
            write_section(session.page, session.name, f"```console\n{found}\n```")
        elif timeless(found) != timeless(session.text):
            print(f"{session.page.relative_to(ROOT)}: {session.name} differs from what its commands print", file=sys.stderr)
            differ = 1
    return differ


if __name__ == "__main__":
    sys.exit(main())
