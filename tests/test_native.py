"""The native modules and their Python callers agree on the closed sets that both use."""

import importlib.util
from enum import IntEnum
from types import ModuleType, SimpleNamespace

import pytest

from lumos import _engine, _pipeline
from lumos.graph import table
from lumos.plan import schedules
from lumos.searching import coarse
from lumos.simulation import tables
from lumos.vocabulary import check_enum


def stale(module: ModuleType, **enums: str) -> SimpleNamespace:
    """The module as it would be built from older sources."""
    return SimpleNamespace(__name__=module.__name__, ENUMS={**module.ENUMS, **enums})


@pytest.mark.parametrize(
    "names",
    [
        _engine.ENUMS["Dependency"].replace("SYNC, COPY", "COPY, SYNC"),
        _engine.ENUMS["Dependency"].replace(", DATA", ""),
        _engine.ENUMS["Dependency"].replace("DATA", "OTHER"),
    ],
)
def test_a_module_of_other_names_is_refused(names):
    with pytest.raises(ImportError, match=r"lumos\._engine was built from other sources: its Dependency is .*; build it again"):
        check_enum(stale(_engine, Dependency=names), table.Dependency)


def test_values_must_count_from_nought():
    class Kind(IntEnum):
        FIRST = 1
        SECOND = 2

    with pytest.raises(ImportError, match="its Kind is FIRST, SECOND"):
        check_enum(stale(_engine, Kind="FIRST, SECOND"), Kind)


@pytest.mark.parametrize(
    ("native", "user", "enum"),
    [
        (_engine, tables, "Dependency"),
        (_engine, tables, "Kind"),
        (_pipeline, schedules, "Pass"),
        (_pipeline, coarse, "PassKind"),
    ],
)
def test_the_module_that_uses_an_enum_compares_it_when_imported(native, user, enum):
    """The source of the importing module runs in a new module, so that the module that others imported keeps its classes."""
    spec = importlib.util.spec_from_file_location("stale_user", user.__file__)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ImportError, match=f"its {enum} is OLDER, here it is "):
        patch.setattr(native, "ENUMS", {**native.ENUMS, enum: "OLDER"})
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
