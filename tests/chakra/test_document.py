"""The page about `lumos chakra` lists every rule with its exact text."""

from __future__ import annotations

from pathlib import Path

from lumos.chakra.checking.rules import RULES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "chakra.md"


def test_every_rule_is_on_the_page() -> None:
    text = PAGE.read_text()
    assert [rule for rule, meaning in RULES.items() if f"| `{rule}` | {meaning} |" not in text] == []
