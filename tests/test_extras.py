"""The advice on extras names what can be installed."""

import importlib.metadata
import json

import pytest

from lumos import extras


class Installed:
    def __init__(self, origin: str | None) -> None:
        self.origin = origin

    def read_text(self, name: str) -> str | None:
        return self.origin if name == "direct_url.json" else None


def origin(folder, **more):
    return json.dumps({"url": folder.as_uri(), "dir_info": {}, **more})


def test_a_checkout_is_named_by_its_folder(tmp_path, monkeypatch):
    folder = tmp_path / "my lumos"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed(origin(folder)))
    assert extras.install("serve", "arrow") == f"pip install '{folder}[serve,arrow]'"
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed(origin(folder, dir_info={"editable": True})))
    assert extras.install("torch") == f"pip install -e '{folder}[torch]'"


@pytest.mark.parametrize("text", [None, "{}", "no JSON", '{"url": "https://example.org/lumos.whl"}', '{"url": "file:///gone"}'])
def test_elsewhere_the_package_is_named(text, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed(text))
    assert extras.install("arrow") == "pip install 'lumos-trace[arrow]'"
