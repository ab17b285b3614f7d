"""What the documentation's site (mkdocs.yml) does to its pages: public names are described where they are defined.

`::: lumos.whatif` in a page stands for the reference of a name that `import lumos` offers. Names are loaded when they are first used, so
that a reader of the source alone would not find them: the hook loads each name and writes the module that defines it, and keeps the public
name as the heading. `::: lumos.cost`, a module, stands for its description.
"""

from __future__ import annotations

import importlib
import inspect
import re
from types import ModuleType

_NAME = re.compile(r"^::: (?P<package>lumos(?:\.\w+)*)\.(?P<name>\w+)$", re.MULTILINE)


def defined(package: str, name: str) -> str:
    """The path of what `package` offers as `name`, in the module that defines it. Raises AttributeError where it offers no such name."""
    found = getattr(importlib.import_module(package), name)
    if isinstance(found, ModuleType):
        return found.__name__
    found = inspect.unwrap(found)  # a function has a check in front
    return f"{found.__module__}.{found.__qualname__}"


def _options(package: str, name: str) -> dict[str, str]:
    found = getattr(importlib.import_module(package), name)
    if isinstance(found, ModuleType):
        return {"members": "[]", "show_root_heading": "false", "show_root_toc_entry": "false"}
    options = {"heading": f"{package}.{name}", "toc_label": name}
    # The signature of a class lists its fields; a dictionary of keyword arguments has none.
    more = {"show_if_no_docstring": "true", "inherited_members": "true"}
    return {**options, **more} if isinstance(found, type) and issubclass(found, dict) else options


def _reference(match: re.Match[str]) -> str:
    package, name = match["package"], match["name"]
    options = [f"      {key}: {value}" for key, value in _options(package, name).items()]
    return "\n".join([f"::: {defined(package, name)}", "    options:", *options])


def on_page_markdown(markdown: str, **kwargs: object) -> str:
    """A page as mkdocs is to read it; mkdocs calls this for every page."""
    return _NAME.sub(_reference, markdown)
