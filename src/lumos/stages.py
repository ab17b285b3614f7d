"""What a long command is doing, for whoever watches: a stage has a name, and may count how far it has come.

The parts of Lumos say which stage they are in and never print. The command line watches, and shows stages on a terminal; from Python
nobody watches unless `watched` is used, and a stage then costs next to nothing. Stages may hold others.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class Watcher(Protocol):
    """Whoever is told about stages. Every `began` has its `ended`; stages that begin in between are parts of the stage."""

    def began(self, name: str) -> None: ...

    def ended(self) -> None: ...


_WATCHER: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Tell the watcher of every stage that the block goes through, in this thread."""
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """The block, or the function that this decorates, is one stage of the work, named as it is shown: "building the graph"."""
    watcher = _WATCHER.get()
    if watcher is None:
        yield
        return
    watcher.began(name)
    try:
        yield
    finally:
        watcher.ended()
