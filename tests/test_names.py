"""A public name means one thing in the whole package."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "lumos"

#: What several modules define because they do the same for different things: readers of trace files, builders of graphs from them,
#: the runs of `lumos.collect` and `lumos.proxy`, the exports of `lumos` and `lumos.chakra`, and modules that put themselves into torch.
SHARED = {"read", "sniff", "build", "run", "export", "install"}
#: A program that users copy as one file, and the verbs of the command line, which import nothing of each other: their names are their own.
APART = {*(SOURCE / "proxy" / "benchmark").glob("*.py"), *(SOURCE / "cli").glob("*.py")}


def public_names(path: Path) -> set[str]:
    """The names that a module defines at its top level and that do not begin with an underscore; overloads count once."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def test_no_public_name_is_defined_twice():
    homes = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name != "__init__.py" and path not in APART:
            for name in public_names(path) - SHARED:
                homes[name].append(str(path.relative_to(SOURCE)))
    assert not {name: where for name, where in homes.items() if len(where) > 1}
