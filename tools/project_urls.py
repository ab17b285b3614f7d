"""The addresses of the project in the metadata of what is built: those of the repository that it is built from.

scikit-build-core asks this module (`[tool.scikit-build.metadata.urls]` in pyproject.toml). The repository is the one whose workflow builds
(GITHUB_SERVER_URL and GITHUB_REPOSITORY), else the one that git was cloned from; a copy that knows neither has no addresses.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from typing import Any


def dynamic_metadata(field: str, settings: Mapping[str, Any] | None = None) -> dict[str, str]:
    """The addresses by their labels, as PyPI shows them. Raises ValueError for another field or for settings."""
    if field != "urls" or settings:
        raise ValueError(f"{field} with {settings}: only urls, without settings")
    home = repository()
    below = {"Documentation": "blob/HEAD/docs/index.md", "Issues": "issues", "Changelog": "blob/HEAD/CHANGELOG.md"}
    return {"Repository": home, **{label: f"{home}/{path}" for label, path in below.items()}} if home else {}


def repository() -> str:
    """The address of the repository for a browser; "" where none is known, or where it is a folder."""
    server, name = (os.environ.get(f"GITHUB_{word}", "") for word in ("SERVER_URL", "REPOSITORY"))
    if server and name:
        return f"{server}/{name}"
    try:
        found = subprocess.run(["git", "remote", "get-url", "origin"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
    return as_address(found)


def as_address(remote: str) -> str:
    """The remote of a clone (git@host:owner/name.git, https://…, ssh://…) for a browser, without a password; "" for any other."""
    match = re.fullmatch(r"(?:https?://|ssh://|git@)(?:[^@/]*@)?([\w.-]+)(?::\d+(?=/))?[:/]([\w./-]+?)(?:\.git)?/?", remote)
    return f"https://{match[1]}/{match[2]}" if match else ""
