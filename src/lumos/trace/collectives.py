"""The process groups that a trace names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from lumos.trace.kineto_values import Index
from lumos.trace.table import ProcessGroup, Trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def process_groups(traces: Iterable[Trace]) -> tuple[ProcessGroup, ...]:
    """The distinct (name, ranks) over all traces, in order of first appearance.

    From `pg_config` (complete), else from the arguments of collective kernels and of `record_param_comms`, whose rank
    list may be cut short: then the ranks are unknown. Two groups may have the same name, because each process numbers its own.
    """
    groups: dict[tuple[str, tuple[int, ...]], ProcessGroup] = {}
    for trace in traces:
        configured = list(_from_config(trace))
        known = {group.name for group in configured if group.ranks}
        for group in [*configured, *(g for g in _from_arguments(trace) if g.name not in known)]:
            key = (group.name, group.ranks)
            before = groups.get(key)
            if before is None or not before.description:
                groups[key] = group
    named = {name for name, ranks in groups if ranks}
    return tuple(group for group in groups.values() if group.ranks or group.name not in named)


def _from_config(trace: Trace) -> Iterator[ProcessGroup]:
    info = trace.metadata.get("distributedInfo")
    config = info.get("pg_config") if isinstance(info, dict) else None
    for entry in config if isinstance(config, list) else []:
        if isinstance(entry, dict) and "pg_name" in entry:
            yield ProcessGroup(str(entry["pg_name"]), listed_numbers(entry.get("ranks")), str(entry.get("pg_desc", "")))


def _from_arguments(trace: Trace) -> Iterator[ProcessGroup]:
    names = trace.args.get("Process Group Name")
    if names is None:
        return
    ranks = trace.dense("Process Group Ranks")
    descriptions = trace.dense("Process Group Description")
    groups = np.unique(np.stack([names.values, ranks[names.rows], descriptions[names.rows]]), axis=1)
    for name, members, description in groups.T.tolist():
        text = trace.strings[members] if members >= 0 else None
        yield ProcessGroup(trace.strings[name], listed_numbers(text), trace.strings[description] if description >= 0 else "")


def listed_numbers(value: Any, item: Any = Index) -> tuple[int, ...]:
    """A list of ranks, or of other whole numbers, or its text; () where it is absent, cut short ("[0, 1, ...]") or no such list."""
    try:
        return tuple(msgspec.json.decode(value, type=list[item]) if isinstance(value, str) else msgspec.convert(value, list[item]))
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):  # the second: text with a lone surrogate
        return ()
