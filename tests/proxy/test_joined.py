"""The one file that the benchmark's modules are joined into."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from lumos.proxy import joined as joining
from lumos.proxy.joined import PIECES, joined

FOLDER = Path(joining.__file__).with_name("benchmark")


def defined(text: str) -> Counter[str]:
    """How often each name is defined at the top level of a module."""
    names: Counter[str] = Counter()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names[node.name] += 1
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names.update(t.id for t in (node.targets if isinstance(node, ast.Assign) else [node.target]) if isinstance(t, ast.Name))
    return names


def test_every_module_is_joined_with_all_that_it_defines_and_no_name_twice() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {*PIECES, "__init__"}
    together = sum((defined((FOLDER / f"{name}.py").read_text()) for name in PIECES), Counter[str]())
    assert defined(joined()) == together
    assert set(together.values()) == {1}


def test_the_joined_file_imports_no_lumos_and_each_other_module_once() -> None:
    imports = [node for node in ast.walk(ast.parse(joined())) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [a.name for node in imports if isinstance(node, ast.Import) for a in node.names]
    modules = [str(node.module) for node in imports if isinstance(node, ast.ImportFrom)]
    assert not any(name.split(".")[0] == "lumos" for name in names + modules)
    assert len(names) == len(set(names))
    assert len(modules) == len(set(modules))


def test_the_joined_file_runs_by_itself(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed, and the file imports it")
    (tmp_path / "benchmark.py").write_text(joined())
    (tmp_path / "lumos.py").write_text("raise ImportError('the benchmark must not need Lumos')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "benchmark.py", "--help"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert "Run the recorded step in trace.json." in done.stdout


def test_the_joined_file_reads_like_the_modules(tmp_path: Path) -> None:
    ruff = shutil.which("ruff")
    if ruff is None:
        pytest.skip("ruff is not installed")
    (tmp_path / "benchmark.py").write_text(joined())
    settings = str(Path(__file__).parents[2] / "pyproject.toml")
    for arguments in (("check", "--select", "F,E501,I"), ("format", "--check")):
        done = subprocess.run(
            [ruff, *arguments, "--no-cache", "--config", settings, "benchmark.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
