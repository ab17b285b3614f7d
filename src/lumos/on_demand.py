"""Names of a package that are loaded when they are first used, so that `import lumos` and `import lumos.chakra` cost nothing.

Functions are offered with a check of their arguments' types (`lumos.arguments`); imported from the module that defines them, as Lumos
itself does, they have none. No name that is offered is that of a module or package beside it: importing a module binds it to its
parent, which would hide the function.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def on_demand(
    package: str, names: Mapping[str, tuple[str, ...]], modules: tuple[str, ...] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that offers the names that each of these modules defines, and modules of its own."""
    homes = {name: home for home, several in names.items() for name in several}
    held = vars(sys.modules[package])

    def load(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        if isinstance(value, FunctionType) and homes[name] != "lumos":  # what the facade offers is checked already
            from lumos.arguments import checked  # with the first function that is used, not with `import lumos`

            value = checked(value, package)
        held[name] = value
        return value

    return load, lambda: sorted({*held, *homes, *modules})
