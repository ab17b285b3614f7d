"""Tables of which each row describes a task: waits, occupancy, collectives, and what is taken once."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lumos.graph.table import Collectives, Occupancy, OneOff, Waits
    from lumos.trace.table import Int64

Table = TypeVar("Table", "Waits", "Occupancy", "Collectives", "OneOff")


def placed(table: Table | None, place: Int64) -> Table | None:
    """The rows whose tasks have a new number. place: int64[n], the new number of each task, -1 without one."""
    if table is None:
        return None
    task = place[table.task]
    columns: dict[str, Any] = {name: column[task >= 0] for name, column in _columns(table)}
    return replace(table, **{**columns, "task": task[task >= 0].astype(np.int32)})


def together(tables: Sequence[Table | None]) -> Table | None:
    """The rows of all tables; None where there is no table. What is no column is that of the first."""
    some = [table for table in tables if table is not None]
    if not some:
        return None
    columns: dict[str, Any] = {name: np.concatenate([getattr(table, name) for table in some]) for name, _ in _columns(some[0])}
    return replace(some[0], **columns)


def _columns(table: Any) -> list[tuple[str, Any]]:
    return [(field.name, value) for field in fields(table) if isinstance(value := getattr(table, field.name), np.ndarray)]
