"""Names of a package that are loaded when they are first used.

`import lumos` and `import lumos.chakra` cost nothing: each name of theirs is taken from the module that defines it when it is asked for.
A function may have the name of a package or module beside it (`lumos.simulate`, `lumos.chakra.check`). Importing a module binds it to
its parent, which would hide the function behind it from then on; here the function keeps the name, and
`from lumos.simulate.engine import …`, which does not need that binding, works as ever. Functions are offered with a check of their
arguments' types (`lumos.arguments`); imported from the module that defines them, as Lumos itself does, they have none.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Package(ModuleType):
    """A package whose names are loaded when first used. _homes: the module that defines each of them; _modules: its own modules that are
    names of it too."""

    _homes: Mapping[str, str]
    _modules: tuple[str, ...]

    def __getattr__(self, name: str) -> Any:
        if name in self._modules:
            return import_module(f"{self.__name__}.{name}")
        if name not in self._homes:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        home = import_module(self._homes[name])
        found = getattr(home, name)
        # What another package of this kind offers has its check already.
        return _checked(found, self.__name__) if isinstance(found, FunctionType) and not isinstance(home, _Package) else found

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in self._homes and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self._homes, *self._modules})


def _checked(function: FunctionType, package: str) -> Any:
    """The function as users have it: a wrong argument is named."""
    from lumos.arguments import checked  # with the first function that is used, not with `import lumos`

    return checked(function, package)


def reexport(package: str, names: Mapping[str, tuple[str, ...]], modules: tuple[str, ...] = ()) -> None:
    """Offer in a package the names that each of these modules defines, and modules of its own by their names."""
    module = sys.modules[package]
    module.__dict__["_homes"] = {name: home for home, several in names.items() for name in several}
    module.__dict__["_modules"] = modules
    module.__class__ = _Package
