"""The sessions of the documents are what their commands print, and the demonstration runs."""

import re
import subprocess
import sys

import pytest
from tools.demo import shown
from tools.document import ROOT
from tools.session import recorded, sessions, timeless

SESSIONS = sessions()
COMPARED = [session for session in SESSIONS if not session.measured]
MEASURED = [session for session in SESSIONS if session.measured]
#: Sessions that learn from several large sets. tests/chakra/synthesis/test_family.py runs their verb on small ones.
LONG = {"session-chakra-family"}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def named(session):
    return f"{session.page.name} {session.name}"


def test_every_console_of_a_page_is_a_session_or_says_why_not():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        marks = re.findall(r"(?:<!-- (session[\w-]*|not run: [^\n]+) -->\n)?```console$", text, re.MULTILINE)
        assert all(marks), f"{page.name}: a console block without <!-- session… --> or <!-- not run: … --> before it"
        names = [mark for mark in marks if mark.startswith("session")]
        assert names == [session.name for session in SESSIONS if session.page == page], f"{page.name}: a session that does not end"
        assert len(names) == len(set(names)), f"{page.name}: two sessions of one name"


def marked(session):
    return pytest.param(session, marks=[pytest.mark.slow] if session.name in LONG else [], id=named(session))


@pytest.mark.parametrize("session", [marked(s) for s in COMPARED if s.folder == ROOT])
def test_a_session_is_what_its_commands_print(session):
    assert session.commands
    assert timeless(recorded(session.commands)) == timeless(session.text)


@pytest.mark.slow
@pytest.mark.parametrize("session", [s for s in COMPARED if s.name.startswith("session-traces")], ids=named)
def test_a_session_on_public_traces_is_what_its_commands_print(session):
    if session.folder is None:
        pytest.skip("LUMOS_TRACES names no folder of public traces")
    assert timeless(recorded(session.commands, session.folder)) == timeless(session.text)


@pytest.mark.slow
@pytest.mark.parametrize("session", MEASURED, ids=named)
def test_the_commands_of_a_measured_session_run(session):
    pytest.importorskip("torch", reason="torch is not installed (pip install -e '.[torch]')")
    assert recorded(session.commands).count("$ lumos ") == len(session.commands)


def test_the_readme_names_each_verb_once_in_its_table():
    from lumos.cli import VERBS

    table = re.search(r"^\| verb \|.*?\n\n", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert table is not None
    cells = [line.split("|")[1] for line in table[0].splitlines()[2:] if line]
    shown = [word for cell in cells for word in re.findall(r"`(?:lumos )?([\w-]+)`", cell)]
    assert sorted(shown) == sorted(VERBS)


def test_the_demonstration_names_the_injected_fault_and_writes_its_report(tmp_path):
    done = subprocess.run([sys.executable, "-m", "tools.demo", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "rank 1 does work that its peers do not: aten::bmm" in done.stdout
    assert "micro_batch = 2 (measured: 1)" in done.stdout
    assert "llama3-405b (405.9 B parameters) on 16384 x h100" in done.stdout
    assert (tmp_path / "demo.html").stat().st_size > 100_000
    assert all(each.question in " ".join(done.stdout.split()) for each in shown(str(tmp_path)))
    assert [line for line in done.stdout.splitlines() if len(line) > 80 and str(tmp_path) not in line] == []
