"""A file of tests that skips itself, because an optional package is missing, takes no other file with it."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(Path(__file__).parent.rglob("*.py"))


def skips_itself(path: Path) -> bool:
    """Whether importing the file may skip it: a call of `importorskip` outside of functions."""
    statements = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.Assign | ast.Expr)]
    called = [node.func for each in statements for node in ast.walk(each) if isinstance(node, ast.Call)]
    return any(isinstance(function, ast.Attribute) and function.attr == "importorskip" for function in called)


def imported(path: Path) -> set[str]:
    """The modules of the tests that a file takes names from."""
    found = [node.module or "" for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)]
    return {module for module in found if module.startswith("tests.")}


def test_no_test_imports_a_file_that_may_skip_itself():
    skipping = {".".join(each.relative_to(ROOT).with_suffix("").parts) for each in FILES if skips_itself(each)}
    assert "tests.emulation.test_process" in skipping
    taken = {str(path.relative_to(ROOT)): imported(path) & skipping for path in FILES}
    assert not {path: modules for path, modules in taken.items() if modules}, "what tests share stands in a file that is never skipped"
