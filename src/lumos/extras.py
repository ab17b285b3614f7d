"""How to install the packages that only some verbs need: the extras of `pyproject.toml`."""

import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

_NAME = "lumos-trace"


def install(*extras: str) -> str:
    """The command that adds these extras to this installation.

    A copy that was installed from a checkout is named by its folder, because an index of packages need not have it. For example
    `pip install -e '/home/me/lumos[serve,arrow]'`.
    """
    words = f"[{','.join(extras)}]"
    folder, editable = _checkout()
    if folder is None:
        return f"pip install '{_NAME}{words}'"
    return f"pip install {'-e ' if editable else ''}'{folder}{words}'"


def _checkout() -> tuple[Path | None, bool]:
    """The folder that Lumos was installed from, if it still is a checkout, and whether it runs from there.

    pip writes this into `direct_url.json` (https://packaging.python.org/en/latest/specifications/direct-url/).
    """
    from importlib.metadata import PackageNotFoundError, distribution  # takes longer to load than most verbs' own modules

    try:
        origin = json.loads(distribution(_NAME).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return None, False
    address = urlsplit(origin.get("url", ""))
    folder = Path(unquote(address.path))
    if address.scheme != "file" or not (folder / "pyproject.toml").is_file():
        return None, False
    return folder, bool(origin.get("dir_info", {}).get("editable"))
