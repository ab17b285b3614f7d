"""Put the real output of a command into the README's session.

python -m tools.session
"""

from __future__ import annotations

import os
import subprocess
import sys

from tools.document import ROOT, write_section

COMMAND = ("lumos", "replay", "examples/gpt-2rank-cpu", "--probes")


def main() -> int:
    path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "PATH": path}
    done = subprocess.run(COMMAND, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    output = "\n".join(line.rstrip() for line in done.stdout.splitlines())
    write_section("README.md", "session", f"```console\n$ {' '.join(COMMAND)}\n{output}\n```")
    return 0


if __name__ == "__main__":
    sys.exit(main())
