"""Change a module once it has been imported, without importing it for that."""

from __future__ import annotations

import importlib.machinery
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_AWAITED: dict[str, list[Callable[[Any], None]]] = {}


def when_loaded(name: str, then: Callable[[Any], None]) -> None:
    """Call `then` with the module of that name: now where it is loaded, else as soon as it is."""
    if name in sys.modules:
        then(sys.modules[name])
        return
    if not _AWAITED:
        sys.meta_path.insert(0, _Finder())
    _AWAITED.setdefault(name, []).append(then)


class _Finder:
    """Finds the awaited modules in the usual way, and calls what waits for them after they have run: who only asks whether a module is
    there finds it and does not load it."""

    def find_spec(self, name: str, path: Any = None, _target: Any = None) -> Any:
        if name not in _AWAITED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            for then in _AWAITED.pop(name, []):
                then(module)

        loader.exec_module = exec_module
        return spec
