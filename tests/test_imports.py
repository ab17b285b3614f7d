"""Imports run one way, from the command line down to the errors, so that each part can be understood without the ones above it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "lumos"

#: From the bottom up; the parts of one level do not import each other.
LEVELS = (
    {"errors"},
    {"diagnostics", "result", "distribute"},
    {"trace"},
    {"graph"},
    {"simulate"},
    {"analyze"},
    {"cost", "model"},
    {"layout"},
    {"search", "chakra", "proxy"},
    {"report"},
    {"serve"},
    {"cli"},
)

#: Parts outside the order: what a training script imports, and what it may import of lumos. Only the command line uses it.
APART = {"collect": {"errors"}}

LEVEL = {part: level for level, parts in enumerate(LEVELS) for part in parts}

#: Inner loops: modules of C++ that import nothing.
NATIVE = {"_scan", "_slices", "_engine", "_path", "_pipeline"}


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py").removesuffix(".pyi")


def imports(path: Path) -> set[str]:
    """Parts of lumos that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            modules = [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "lumos" else [node.module or ""]
        else:
            continue
        found |= {module.split(".")[1] for module in modules if module.startswith("lumos.")}
    return found


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def test_every_part_has_a_place():
    parts = {part_of(path) for path in FILES}
    assert parts <= LEVEL.keys() | APART.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_run_one_way(path):
    part = part_of(path)
    for other in imports(path) - {part} - NATIVE:
        if part in APART:
            assert other in APART[part], f"{part} imports {other}"
        else:
            below = other in LEVEL and LEVEL[other] < LEVEL[part]
            assert below or (part == "cli" and other in APART), f"{part} imports {other}"
