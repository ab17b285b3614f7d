"""The code grows nowhere: each room, and all of them together, keep within the lines that tests/budget.toml gives them.

A number that is much too generous is no budget either, so that it is lowered when code goes.
"""

import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "lumos"

#: How far a number may exceed what is there. Modules are some 130 lines long.
LINES_TO_SPARE, MODULES_TO_SPARE = 150, 5
#: The room of the modules that stand directly in src/lumos.
TOP = "top"


def lines(paths) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


def room(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else TOP


MODULES = sorted(SOURCE.rglob("*.py"))
BUDGET = tomllib.loads(Path(__file__).with_name("budget.toml").read_text(encoding="utf-8"))


@cache
def sizes() -> dict[str, int]:
    """What is there, by the names of the budget."""
    rooms: Counter[str] = Counter()
    for path in MODULES:
        rooms[room(path)] += lines([path])
    tests = lines(Path(__file__).parent.rglob("*.py"))
    return {**rooms, "all rooms": lines(MODULES), "modules": len(MODULES), "tests": tests}


def numbers() -> dict[str, int]:
    """The budget, flat."""
    return {**BUDGET["rooms"], "all rooms": BUDGET["lines"], "modules": BUDGET["modules"], "tests": BUDGET["tests"]}


def complaint(what: str, size: int, number: int) -> str:
    """What is wrong with a number; "" where nothing is."""
    spare = MODULES_TO_SPARE if what == "modules" else LINES_TO_SPARE
    if size > number:
        return f"{what}: {size}, {size - number} more than tests/budget.toml gives; shorten it, or as much elsewhere, and move the numbers"
    if number - size > spare:
        return f"{what}: {size}, {number - size} fewer than tests/budget.toml gives; lower the number to {size}"
    return ""


@pytest.mark.parametrize("what", sorted(numbers()))
def test_what_is_there_keeps_within_its_budget_and_near_it(what):
    result = complaint(what, sizes().get(what, 0), numbers()[what])
    assert not result, result


def test_every_room_has_a_number():
    assert {room(path) for path in MODULES} == BUDGET["rooms"].keys()


def test_rooms_get_no_more_than_all_of_them_together():
    assert sum(BUDGET["rooms"].values()) <= BUDGET["lines"], "what one room gets more, others get less"
