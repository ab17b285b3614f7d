"""How something of torch or of Python is changed for an emulated script: what takes its place gets what stood there."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Patches:
    """Changes of modules and classes, in the order in which they were made, so that they can be taken back."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Let an attribute be another."""
        self._before.append((owner, name, getattr(owner, name, None)))
        setattr(owner, name, value)

    def around(self, owner: Any, *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Let a function take the place of others, with what stood there as its first argument."""

        def put(function: Callable[..., Any]) -> Callable[..., Any]:
            for name in names:
                self.put(owner, name, _with(function, getattr(owner, name, None)))
            return function

        return put

    def take_back(self) -> None:
        """Let everything be as it was."""
        for owner, name, value in reversed(self._before):
            setattr(owner, name, value)


def _with(function: Callable[..., Any], before: Any) -> Callable[..., Any]:
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return function(before, *args, **kwargs)

    return functools.update_wrapper(replacement, before) if callable(before) else replacement


class Silent:
    """Takes whatever it is given, does nothing and says nothing, as often as it is asked: it holds nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, _: str) -> Any:
        return Silent

    def __iter__(self) -> Iterator[Any]:
        return iter(())


#: Of torch, for good.
TORCH = Patches()
