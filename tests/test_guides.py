"""The guides of CONTRIBUTING.md name the files that must be changed, and documents name files that exist."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
_HEADING = re.compile(r"^### … (?P<title>.+)$", re.MULTILINE)
_CASE = re.compile(r"<!-- case: (?P<pattern>.+) -->")
_FILE = re.compile(r"^- `(?P<path>[^`]+)`:", re.MULTILINE)
#: Source files in which a case may not be mentioned without a guide that says so.
SOURCES = ("src/lumos/**/*.py", "src/lumos/**/*.js", "src/lumos/**/*.toml", "native/*pp")


class Guide(NamedTuple):
    """A section of CONTRIBUTING.md: how to add one kind of thing, along a case that exists."""

    title: str
    case: re.Pattern[str]
    files: frozenset[str]


def guides() -> list[Guide]:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    result = list(_HEADING.finditer(text))
    ends = [*(match.start() for match in result[1:]), len(text)]
    out = []
    for match, end in zip(result, ends, strict=True):
        body = text[match.end() : end]
        case = _CASE.search(body)
        assert case is not None, f"{match['title']}: no case"
        out.append(Guide(match["title"], re.compile(case["pattern"]), frozenset(m["path"] for m in _FILE.finditer(body))))
    return out


GUIDES = guides()


def mentions(path: Path, case: re.Pattern[str]) -> bool:
    return bool(case.search(path.name) or case.search(path.read_text(encoding="utf-8")))


def test_there_is_a_guide_for_each_thing_that_people_add():
    titles = " ".join(guide.title for guide in GUIDES)
    assert all(word in titles for word in ("reader", "dependency", "what-if", "report", "accelerator", "verb"))


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.title)
def test_every_file_of_a_guide_mentions_its_case(guide):
    assert guide.files
    for name in guide.files:
        assert mentions(ROOT / name, guide.case), f"{name} does not mention {guide.case.pattern}"


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.title)
def test_no_source_file_mentions_a_case_without_standing_in_its_guide(guide):
    used = {str(path.relative_to(ROOT)) for pattern in SOURCES for path in ROOT.glob(pattern) if mentions(path, guide.case)}
    assert used <= guide.files


DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/results/*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_files_that_exist(document):
    text = document.read_text(encoding="utf-8")
    named = re.findall(r"`((?:src|native|docs|validation|benchmarks|tools|examples|tests)/[\w./-]*(?:\.\w+|/))`", text)
    linked = [link.partition("#")[0] for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text)]
    for name in named:
        assert (ROOT / name).exists(), f"{document.name} names {name}"
    for name in filter(None, linked):
        assert (document.parent / name).exists(), f"{document.name} links to {name}"


def test_the_pages_are_no_book():
    """All pages together, and what a reader meets first."""
    words = {page: len(page.read_text(encoding="utf-8").split()) for page in DOCUMENTS if page.parent.name != "results"}
    words = {page: number for page, number in words.items() if page.name not in ("CONTRIBUTING.md", "SECURITY.md")}
    assert sum(words.values()) <= 40_000 and words[ROOT / "README.md"] <= 900
    assert (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").count("\n- ") <= 60


def test_the_walks_name_functions_that_exist():
    text = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    walks = re.findall(r"^\d+\. `(\w+)` .*(?:\n   .*)*", text, re.MULTILINE)
    assert len(walks) > 15  # each sentence begins with the folder that it is in
    for module, name in re.findall(r"\(`(?!lumos\.)(\w+)\.(\w+)`", text):
        paths = (ROOT / "src" / "lumos").rglob(f"{module}.py")
        assert any(re.search(rf"^(?:def|class) {name}\b", path.read_text(encoding="utf-8"), re.MULTILINE) for path in paths), (
            f"{module}.{name}"
        )
