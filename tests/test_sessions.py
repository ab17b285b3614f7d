"""The sessions of the documents are what their commands print, and the demonstration runs."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tools.demo import shown
from tools.document import ROOT
from tools.session import recorded, sessions, timeless

SESSIONS = sessions()


def test_the_readme_and_the_page_of_diagnose_have_sessions():
    assert {"README.md", "diagnose.md", "inspect.md"} <= {session.page.name for session in SESSIONS}


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: f"{session.page.name} {session.name}")
def test_a_session_is_what_its_commands_print(session):
    assert session.commands
    assert timeless(recorded(session.commands)) == timeless(session.text)


def test_how_long_something_took_is_no_part_of_a_session():
    assert timeless("read in 0.04 s, built in 0.08 s") == timeless("read in 1.25 s, built in 0.1 s")
    assert timeless("86.10 ms a step") == "86.10 ms a step"


def test_the_demonstration_names_the_injected_fault_and_writes_its_report(tmp_path):
    pytest.importorskip("plotly")
    done = subprocess.run([sys.executable, "-m", "tools.demo", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "rank 1 does work that its peers do not: aten::bmm" in done.stdout
    assert "llama3-405b (405.9 B parameters) on 16384 x h100" in done.stdout
    assert (tmp_path / "demo.html").stat().st_size > 100_000
    assert all(each.question in done.stdout for each in shown(str(tmp_path)))
