"""The workflows run other people's actions by digest: a tag can be moved, a digest cannot."""

import re
from pathlib import Path

import pytest
from tools.project_urls import as_address

FILES = sorted((Path(__file__).parents[1] / ".github").rglob("*.yml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_actions_are_named_by_digest(path):
    named = re.findall(r"uses:\s*(\S+)", path.read_text(encoding="utf-8"))
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", each) for each in named) and (named or path.name == "action.yml")


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("git@host.org:group/lumos.git", "https://host.org/group/lumos"),
        ("https://user:secret@host.org/group/lumos.git", "https://host.org/group/lumos"),
        ("ssh://git@host.org:2222/group/lumos", "https://host.org/group/lumos"),
        ("/home/me/lumos", ""),
    ],
)
def test_the_address_of_a_clone_is_for_a_browser_and_holds_no_password(remote, address):
    assert as_address(remote) == address
