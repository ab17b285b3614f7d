"""The workflows run other people's actions by digest: a tag can be moved, a digest cannot."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parents[1] / ".github").rglob("*.yml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_actions_are_named_by_digest(path):
    named = re.findall(r"uses:\s*(\S+)", path.read_text(encoding="utf-8"))
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", each) for each in named) and (named or path.name == "action.yml")
