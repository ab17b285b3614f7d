"""The Python blocks of the pages run, and every page that shows the command line shows Python too.

The blocks of a page run one after the other, in a folder that has the recorded example under the names that the pages use. A comment
before a block says what else it needs (`<!-- needs torch -->`), or that it is a part of somebody's program (`<!-- not run: … -->`).
"""

import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "gpt-2rank-cpu"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

#: A training script of a few steps, for pages that record one.
TRAIN = """
import torch
weight = torch.nn.Parameter(torch.ones(8, 8))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(12):
    (weight @ weight).sum().backward()
    optimizer.step()
"""

_BLOCK = re.compile(r"(?:<!-- (?P<note>[^\n]*) -->\n)?```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A block of Python: its code, the line of the page at which it begins, and the comment before it."""

    code: str
    line: int
    note: str

    @property
    def missing(self) -> list[str]:
        """The packages that the block needs and that are not installed."""
        needs = self.note.removeprefix("needs ").split(", ") if self.note.startswith("needs ") else []
        return [module for module in needs if importlib.util.find_spec(module) is None]

    @property
    def runs(self) -> bool:
        return not self.note.startswith("not run")


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(m["code"], text.count("\n", 0, m.start("code")), m["note"] or "") for m in _BLOCK.finditer(text)]


def test_every_page_with_a_console_has_python_that_runs():
    shown = [page for page in PAGES if re.search(r"^```console$", page.read_text(encoding="utf-8"), re.MULTILINE)]
    assert len(shown) > 12
    for page in shown:
        assert any(block.runs for block in blocks(page)), f"{page.name} shows the command line and no Python that runs"


@pytest.mark.parametrize("page", [page for page in PAGES if any(b.runs for b in blocks(page))], ids=named)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch):
    for name in ("traces", "out", "before", "after"):
        (tmp_path / name).symlink_to(EXAMPLE)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    # Blocks that start `python` mean the one that runs this test, whose environment has what they need.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    result = [block for block in blocks(page) if block.runs]
    able = [block for block in result if not block.missing]
    if not able:
        pytest.skip(f"not installed: {', '.join(sorted({name for block in result for name in block.missing}))}")
    names: dict[str, object] = {}
    for block in able:
        exec(compile("\n" * block.line + block.code, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_python_that_is_not_run_is_python(page):
    for block in blocks(page):
        compile(block.code, str(page), "exec")
