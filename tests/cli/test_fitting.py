"""Help and messages in narrow terminals."""

import io
import sys

import pytest

from lumos.cli import VERBS, load, main
from lumos.cli.fitting import say


def printed(monkeypatch, capfd, columns, *words):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "argv", ["lumos", *words])
    with pytest.raises(SystemExit):
        main()
    return capfd.readouterr().out


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("verb", VERBS)
def test_no_line_of_help_is_wider_than_the_terminal(monkeypatch, capfd, verb, columns):
    for words in [(verb,), *((verb, inner) for inner in getattr(load(verb), "commands", ()))]:
        lines = printed(monkeypatch, capfd, columns, *words, "--help").splitlines()
        assert lines[0].startswith("Usage: lumos") and max(map(len, lines)) <= columns


def test_the_verbs_of_a_verb_are_listed_with_their_whole_first_sentence(monkeypatch, capfd):
    assert "the communicators." in printed(monkeypatch, capfd, 40, "chakra", "--help")
    assert "..." not in printed(monkeypatch, capfd, 80, "chakra", "--help").partition("Commands:")[2]


@pytest.mark.parametrize(
    ("terminal", "shown"),
    [
        (True, "lumos:\none-word-of-27-characters-x\ncannot be read\n"),
        (False, "lumos: one-word-of-27-characters-x cannot be read\n"),
    ],
)
def test_a_message_is_wrapped_where_a_terminal_ends_and_a_pipe_gets_one_line(monkeypatch, terminal, shown):
    error = io.StringIO()
    error.isatty = lambda: terminal
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys, "stderr", error)
    say("one-word-of-27-characters-x cannot be read")
    assert error.getvalue() == shown


def test_an_answer_of_one_line_is_wrapped_and_keeps_its_figures(monkeypatch, capfd):
    gemm = ("cost", "gemm", "--on", "h100", "--m", "4096", "--n", "4096", "--k", "4096")
    narrow, wide = (printed(monkeypatch, capfd, columns, *gemm) for columns in (40, 80))
    assert max(map(len, narrow.splitlines())) <= 40
    assert narrow.split() == wide.split() and "interval" in narrow
