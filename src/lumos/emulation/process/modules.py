"""The calls of modules, as named ranges of the record.

A range has the name that torch's profiler gives a module when it records stacks: its class, and a number that counts the modules of that
class in the order in which they were first called.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch._C._profiler import _RecordFunctionFast

from lumos.vocabulary import MODULE_PREFIX

if TYPE_CHECKING:
    from lumos.emulation.process.journal import Journal


def install(journal: Journal) -> None:
    """Put a range around every call of a module while the journal records."""
    call = torch.nn.Module.__call__
    names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
    counts: Counter[str] = Counter()

    def name_of(module: Any) -> str:
        known = names.get(module)
        if known is None:
            kind = type(module).__name__
            known = names[module] = f"{MODULE_PREFIX}{kind}_{counts[kind]}"
            counts[kind] += 1
        return known

    def named(module: Any, *args: Any, **kwargs: Any) -> Any:
        name = name_of(module)
        if not journal.recording:
            return call(module, *args, **kwargs)
        with _RecordFunctionFast(name):
            return call(module, *args, **kwargs)

    torch.nn.Module.__call__ = named
