"""Prints the requirements that pyproject.toml names, each at the lowest version that it allows, as arguments for pip.

    pip install $(python -m tools.lowest)          # what Lumos needs
    pip install $(python -m tools.lowest report)   # and an extra

`make test-lowest` installs them and runs the tests of the command line: a floor that nobody installs is no floor.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence

from tools.document import ROOT

_FLOOR = re.compile(r"^([A-Za-z0-9_.-]+)>=([0-9][0-9a-z.]*)")


def lowest(extras: Sequence[str] = ()) -> list[str]:
    """`name==version` of every requirement and of those of the extras. Raises ValueError where one has no lowest version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    found = []
    for requirement in wanted:
        floor = _FLOOR.match(requirement)
        if floor is None:
            raise ValueError(f"pyproject.toml: {requirement!r} names no lowest version; write name>=version")
        found.append(f"{floor[1]}=={floor[2]}")
    return found


if __name__ == "__main__":
    print(" ".join(lowest(sys.argv[1:])))
