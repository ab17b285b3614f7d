"""Names of a package that are loaded when they are first used, so that `import lumos` and `import lumos.chakra` cost nothing.

A package imports its names for type checkers, in lines of its own below `if TYPE_CHECKING:`. What stands there is what is loaded: each
name is said once.

Functions are offered with a check of their arguments' types (`lumos.arguments`); imported from the module that defines them, as Lumos
itself does, they have none. No name that is offered is that of a module or package beside it: importing a module binds it to its
parent, which would hide the function.
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: A line below `if TYPE_CHECKING:` that takes names from a part of Lumos.
_IMPORT = re.compile(r"^    from (lumos[\w.]*) import (.+)$", re.MULTILINE)


def on_demand(package: str, again: tuple[str, ...] = ()) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that offers what it imports for type checkers: names of modules, and modules of its own.

    again: the names that are those of `lumos` itself.
    """
    held = vars(sys.modules[package])
    listed = _IMPORT.findall(held["__spec__"].loader.get_source(package))
    homes = {word.partition(" as ")[0]: home for home, words in listed for word in words.split(", ")}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == package:
            return import_module(f"{package}.{name}")
        value = getattr(import_module(homes[name]), name)
        if isinstance(value, FunctionType):
            from lumos.arguments import checked  # with the first function that is used, not with `import lumos`

            value = checked(value, "lumos" if name in again else package)
        held[name] = value
        return value

    return load, lambda: sorted({*held, *homes})
