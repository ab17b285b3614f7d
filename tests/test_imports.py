"""Imports run one way, from the command line down to the errors, so that each part can be understood without the ones above it.

ORDER is the table of contents of the project. Held to it are imports wherever they stand in a file (in functions, for types
alone), modules imported by the text of their name, and builders registered in `pyproject.toml`. `pytest tests/test_imports.py -s`
prints it with the lines of each part.
"""

import ast
import re
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "lumos"

#: The parts from the bottom up; those on one line do not import each other.
ORDER = (
    ("errors", "extras"),
    (
        "characters",
        "choices",
        "diagnostics",
        "distribute",
        "intervals",
        "measured_table",
        "output_files",
        "stages",
        "units",
        "vocabulary",
    ),
    ("arguments", "drawings"),
    ("on_demand", "result"),
    ("collect",),
    ("trace",),
    ("operators",),
    ("graph",),
    ("simulation",),
    ("analyze",),
    ("cost", "model"),
    ("plan",),
    ("blocks",),
    ("emulation", "prediction", "segment"),
    ("changes",),
    ("scripted",),
    ("chakra", "findings", "proxy", "searching"),
    ("reports",),
    ("serve", "startup"),
    ("cli",),
    ("__main__",),
)
PLACE = {part: place for place, parts in enumerate(ORDER) for part in parts}

#: What a training script imports must need as little of Lumos as possible.
OF_COLLECT = {"errors", "extras", "vocabulary"}

#: Files that may name modules in text: they load a verb, or a name of the façade, when it is first used.
BY_NAME = {SOURCE / "__init__.py", *(SOURCE / part / "__init__.py" for part in ("chakra", "cli", "cost", "proxy"))}
_MODULE = re.compile(r"lumos(\.[a-z_]+)+")


class Import(NamedTuple):
    """A module of lumos that a file imports: its dotted name, and the names taken from it."""

    module: str
    names: tuple[str, ...]

    @property
    def part(self) -> str:
        return self.module.split(".")[1]


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """All imports of lumos in a file, also those inside functions."""
    result = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            result += [Import(alias.name, ()) for alias in node.names if alias.name.startswith("lumos.")]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = tuple(alias.name for alias in node.names)
            if node.module == "lumos":
                result += [Import(f"lumos.{name}", ()) for name in names]
            elif (node.module or "").startswith("lumos."):
                result.append(Import(str(node.module), names))
    return tuple(result)


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def may_import(part: str, other: str) -> bool:
    """Whether a file of `part` may import `other`: the same part, a native module, or a part below."""
    if other == part or other.startswith("_"):
        return True
    if part == "collect":
        return other in OF_COLLECT
    return PLACE[other] < PLACE[part]


def files_of(module: str) -> list[Path]:
    """The file of a module or package; none where there is no such module."""
    at = SOURCE.joinpath(*module.split(".")[1:])
    return [path for path in (at.with_suffix(".py"), at / "__init__.py") if path.is_file()]


def used(path: Path) -> set[Path]:
    """The files that a file imports: of `from package import name` the module of that name, else the package."""
    result: set[Path] = set()
    for each in imports(path):
        inner = [file for name in each.names for file in files_of(f"{each.module}.{name}")]
        result.update(inner if len(inner) == len(each.names) > 0 else [*inner, *files_of(each.module)])
    return result - {path}


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def test_the_order_lists_every_part():
    print(f"\n{table_of_contents()}")  # shown by -s
    assert {part_of(path) for path in FILES} == PLACE.keys()


def table_of_contents() -> str:
    """The order from the top down, with files and lines of each part."""
    lines = []
    for parts in reversed(ORDER):
        for part in parts:
            files = [path for path in FILES if part_of(path) == part]
            count = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
            lines.append(f"{part:12} {len(files):3} files {count:6,} lines")
    return "\n".join(lines)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_run_one_way(path):
    for found in imports(path):
        assert may_import(part_of(path), found.part), f"{part_of(path)} imports {found.module}"


@pytest.mark.parametrize("path", [path for path in FILES if path not in BY_NAME], ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_module_is_imported_by_its_name(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert not [text for text in texts if _MODULE.fullmatch(text) and files_of(text)]


def test_registered_builders_are_of_parts_that_may_import_graphs():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    for builders in declared.values():
        for where in builders.values():
            module, _, function = where.partition(":")
            (path,) = files_of(module)
            assert PLACE[part_of(path)] > PLACE["graph"]
            assert f"def {function}(" in path.read_text(encoding="utf-8")


def test_no_modules_import_each_other_in_a_circle():
    uses = {path: used(path) for path in FILES}
    try:
        TopologicalSorter(uses).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(str(path.relative_to(SOURCE)) for path in error.args[1]))
