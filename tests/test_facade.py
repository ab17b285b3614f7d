"""`import lumos`: everything public is there, and costs nothing until used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import lumos


def test_every_public_name_resolves():
    for name in lumos.__all__:
        assert getattr(lumos, name) is not None
    assert set(lumos.__all__) <= set(dir(lumos))


def test_a_function_keeps_its_name_beside_the_package_of_that_name():
    import lumos.simulate.engine

    assert callable(lumos.simulate)
    assert lumos.simulate is lumos.simulate


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'replya'"):
        _ = lumos.replya


def test_the_version_is_that_of_the_package():
    from importlib.metadata import version

    assert lumos.__version__ == version("lumos-trace")


@pytest.mark.parametrize("statement", ["import lumos", "import lumos.cli"])
def test_importing_loads_nothing_heavy(statement):
    code = f"import sys; {statement}; print([m for m in ('numpy', 'msgspec', 'rich', 'isal') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
