"""The pages of figures show what the result files say, and miss what they miss."""

import tomllib

import pytest
from tools.document import ROOT
from tools.figures import LISTS, front, page


@pytest.mark.parametrize("listed", LISTS, ids=lambda path: path.parent.parent.name)
def test_a_page_shows_what_the_result_files_say(listed):
    text = page(listed)
    written = ROOT / "docs" / ("accuracy.md" if "validation" in listed.parts else "performance.md")
    assert written.read_text(encoding="utf-8") == text, "run python -m tools.figures"
    named = {path.stem for path in listed.parent.glob("*.md")}
    assert all(f"/{name}.md`" in text for name in named), "a result file that no capability of page.toml names"


def test_the_readme_shows_the_figures_that_are_marked_for_it():
    about = tomllib.loads(LISTS[0].read_text(encoding="utf-8"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = front(about["capability"], LISTS[0].parent)
    assert len(shown) > 5
    assert all(f"| {figure.what} |" in readme and figure.reached in readme for figure in shown)
