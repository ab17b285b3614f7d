"""The reference of the site has every public name, once, and finds each in the module that defines it."""

import importlib
import re
from collections import Counter
from pathlib import Path

import pytest
from tools.reference import defined, on_page_markdown

import lumos

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
NAMED = Counter(name for page in PAGES for name in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("package", ["lumos", "lumos.chakra", "lumos.collect", "lumos.cost", "lumos.proxy"])
def test_the_reference_has_every_public_name_once(package):
    offered = importlib.import_module(package)
    for name in offered.__all__:
        again = getattr(lumos, name, None) is getattr(offered, name)
        assert sum(NAMED[f"{home}.{name}"] for home in {package, "lumos" if again else package}) == 1, f"{package}.{name}"


def test_a_name_is_described_where_it_is_defined():
    assert defined("lumos", "breakdown") == "lumos.scripted.facade.breakdown"
    assert defined("lumos", "simulate") == "lumos.simulation.engine.simulate"
    with pytest.raises(AttributeError):
        defined("lumos", "brekdown")


def test_a_page_keeps_its_text_and_shows_public_names():
    shown = on_page_markdown("# Time\n\n::: lumos.breakdown\n\n::: lumos.cost\n")
    assert shown.startswith("# Time\n\n::: lumos.scripted.facade.breakdown\n    options:\n      heading: lumos.breakdown\n")
    assert "::: lumos.cost\n    options:\n      members: []\n" in shown, "a module shows its description alone"


def test_every_public_function_and_class_says_what_it_is():
    for name in NAMED:
        package, _, public = name.rpartition(".")
        assert getattr(importlib.import_module(package), public).__doc__, name
