from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import NamedTuple

from lumos.cli import output


class Pair(NamedTuple):
    first: int
    second: str | None


@dataclass(frozen=True, slots=True)
class Outer:
    pairs: tuple[Pair, ...]
    share: float


def test_values_become_objects_by_field_name(capfd):
    output.write_json({"outer": Outer((Pair(1, None), Pair(2, "x")), float("nan"))})
    expected = {"outer": {"pairs": [{"first": 1, "second": None}, {"first": 2, "second": "x"}], "share": None}}
    sys.stdout.flush()
    assert json.loads(capfd.readouterr().out) == expected


def test_half_a_surrogate_pair_does_not_stop_the_answer(capfd):
    output.write_json({"name": "ge\ud800mm"})
    sys.stdout.flush()
    assert json.loads(capfd.readouterr().out) == {"name": "ge?mm"}
