"""The pages of figures show what the result files say, and miss what they miss."""

import tomllib

import pytest
from tools.document import ROOT
from tools.figures import LISTS, figures, front, line_pattern, misses, page, write_result

TARGETS_MET = [
    ("≤ 5 %", "4.9 %"), ("≤ 10 %", "-9.4%"), ("≥ 90%", "97% of 36"), ("≥ 90 %", "24 of 24"), ("all", "12 of 12"), ("70–90 %", "89.0%"),
    ("70% to 90%", "77% of 35"), ("1.201 ± 0.01", "1.209"), ("within 1 %", "+0.03 %"), ("≥ 10,000", "28,061"), ("–", "anything"),
]  # fmt: skip
TARGETS_MISSED = [
    ("≤ 5 %", "5.1 %"), ("≤ 10 %", "-18.6%"), ("≥ 90%", "89% of 36"), ("≥ 90 %", "21 of 24"), ("all", "57 of 58"), ("70–90 %", "91.0%"),
    ("70% to 90%", "69% of 35"), ("1.201 ± 0.01", "1.22"), ("within 1 %", "-1.1 %"), ("≥ 10,000", "9,061"), ("≤ 0", "1"),
]  # fmt: skip
RESULT = "# A name\n\n<!-- a -->\n| mean | ≤ 2 % | 1 % |\n| worst | ≤ 2 % | 3 % |\nIn all 7 of 8 answered.\n<!-- /a -->\n"


@pytest.mark.parametrize("listed", LISTS, ids=lambda path: path.parent.parent.name)
def test_a_page_shows_what_the_result_files_say(listed):
    text = page(listed)
    written = ROOT / "docs" / ("accuracy.md" if "validation" in listed.parts else "performance.md")
    assert written.read_text(encoding="utf-8") == text, "run python -m tools.figures"
    named = {path.stem for path in listed.parent.glob("*.md")}
    assert all(f"/{name}.md`" in text for name in named), "a result file that no capability of page.toml names"


@pytest.mark.parametrize(("target", "reached"), TARGETS_MET)
def test_targets_that_are_met(target, reached):
    assert not misses(target, reached)


@pytest.mark.parametrize(("target", "reached"), TARGETS_MISSED)
def test_targets_that_are_missed(target, reached):
    assert misses(target, reached)


def test_a_target_in_other_words_is_an_error():
    with pytest.raises(ValueError, match="'about 1 %'"):
        misses("about 1 %", "1.0 %")


def test_what_misses_stands_first(tmp_path):
    (tmp_path / "a.md").write_text(RESULT, encoding="utf-8")
    listed = [{"what": name, "line": f"| {name} | {{target}} | {{reached}} |"} for name in ("mean", "worst")]
    asked = {"results": ["a"], "figures": [*listed, {"what": "answered", "target": "all", "line": "In all {reached} answered"}]}
    found = figures(asked, tmp_path)
    assert [(f.what, f.reached, f.missed) for f in found] == [("worst", "3 %", True), ("answered", "7 of 8", True), ("mean", "1 %", False)]


def test_the_readme_shows_the_figures_that_are_marked_for_it():
    about = tomllib.loads(LISTS[0].read_text(encoding="utf-8"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = front(about["capability"], LISTS[0].parent)
    assert len(shown) > 5
    assert all(f"| {figure.what} |" in readme and figure.reached in readme for figure in shown)


def test_a_figure_whose_line_is_gone_is_an_error(tmp_path):
    (tmp_path / "a.md").write_text(RESULT, encoding="utf-8")
    with pytest.raises(ValueError, match=r"a\.md has 0 lines like"):
        figures({"results": ["a"], "figures": [{"what": "median", "line": "| median | {target} | {reached} |"}]}, tmp_path)


def test_a_row_is_a_whole_row():
    assert not line_pattern("| all | {reached} |").findall("| them | all | 3 % |")
    assert line_pattern("worst {reached} over").search("mean 1 %, worst 3 % over")["reached"] == "3 %"


def test_a_result_keeps_what_stands_around_its_text(tmp_path):
    (tmp_path / "a.md").write_text(RESULT + "\nBy hand.\n", encoding="utf-8")
    write_result(tmp_path / "a.md", "new")
    assert (tmp_path / "a.md").read_text(encoding="utf-8") == "# A name\n\n<!-- a -->\nnew\n<!-- /a -->\n\nBy hand.\n"
    write_result(tmp_path / "b.md", "first")
    assert (tmp_path / "b.md").read_text(encoding="utf-8") == "# b\n\n<!-- b -->\nfirst\n<!-- /b -->\n"
