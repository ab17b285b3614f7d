"""A public name means one thing in the whole package, and comments name modules that exist."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "lumos"

#: What several modules define because they do the same for different things: readers of trace files, builders of graphs from them,
#: the runs of `lumos.collect` and `lumos.proxy`, the exports of `lumos` and `lumos.chakra`, and modules that put themselves into torch.
SHARED = {"read", "sniff", "build", "run", "export", "install"}
#: A program that users copy as one file, and the verbs of the command line, which import nothing of each other: their names are their own.
APART = {*(SOURCE / "proxy" / "benchmark").glob("*.py"), *(SOURCE / "cli").glob("*.py")}

#: A module in backquotes, or something that one defines, as docstrings and comments name it: `graph.build`, `lumos.simulation.freeze`.
_REFERENCE = re.compile(r"`(?:lumos\.)?(?P<name>[a-z_]+(?:\.\w+)+)`")
#: Fields of values that are called like a folder, and a file that is.
_NO_MODULES = {"graph.ignored", "trace.json"}


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


def exists(reference: str) -> bool:
    """Whether a dotted name leads to a folder, a module, or a word of a module."""
    at = SOURCE
    for i, part in enumerate(parts := reference.split(".")):
        if (at / part).is_dir():
            at /= part
        else:
            module, words = (at / f"{part}.py", parts[i + 1 :]) if (at / f"{part}.py").is_file() else (at / "__init__.py", parts[i:])
            return not words or bool(re.search(rf"\b{words[0]}\b", module.read_text(encoding="utf-8")))
    return True


def test_comments_name_modules_that_exist():
    tops = {path.stem for path in SOURCE.iterdir()}
    lost = {
        f"{path.relative_to(SOURCE)}: {found['name']}"
        for path in sorted(SOURCE.rglob("*.py"))
        for found in _REFERENCE.finditer(path.read_text(encoding="utf-8"))
        if found["name"].split(".")[0] in tops and found["name"] not in _NO_MODULES and not exists(found["name"])
    }
    assert not lost
