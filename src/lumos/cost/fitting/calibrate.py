"""From tables of measured times to coefficients, for those that ship with Lumos and for a user's own.

A table is a CSV with a header; its kind is known by its columns:

    gemm        gpu, dtype, m, n, k, time_us
    attention   gpu, dtype, direction (fwd, fwd+bwd), causal (yes, no), batch, seq_len, heads, kv_heads, head_dim, time_us
    collective  gpu, n_gpus, n_nodes, collective, size_bytes, time_us

A table of attention may also have the column `kernel`, the attention kernel; all other columns are ignored. Rows without a time,
or of an accelerator or dtype that Lumos does not know, are left out and counted in the diagnostics.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lumos.cost.attention_model import DIRECTIONS, directions_of, shape_of
from lumos.cost.cluster import Cluster, dtype_of, load_cluster
from lumos.cost.coefficients import GENERIC, Book, Coefficients
from lumos.cost.collective_model import FITTED_KINDS, link_coefficients, modelled_kind
from lumos.cost.collective_model import MODELLED_KINDS as COLLECTIVES
from lumos.cost.fitting.fit_attention import AttentionRows, fit_attention
from lumos.cost.fitting.fit_collective import CollectiveRows, fit_links, fit_network
from lumos.cost.fitting.fit_gemm import GemmRows, fit_gemm
from lumos.cost.fitting.fit_gemm import fit_generic as fit_generic_gemm
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.measured_table import positive, read_rows, table_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from lumos.cost.estimate import Float64

TABLE_KINDS = {
    "gemm": ("gpu", "dtype", "m", "n", "k", "time_us"),
    "attention": ("gpu", "dtype", "direction", "causal", "batch", "seq_len", "heads", "kv_heads", "head_dim", "time_us"),
    "collective": ("gpu", "n_gpus", "n_nodes", "collective", "size_bytes", "time_us"),
}
#: The least number of rows from which coefficients are fitted.
FEWEST_ROWS = 20

MeasuredRow = dict[str, str]


@dataclass(frozen=True)
class Table:
    """Measured rows of one kind of table, as read. diagnostics: what was left out."""

    kind: str
    path: str
    rows: tuple[MeasuredRow, ...]
    diagnostics: tuple[Diagnostic, ...] = ()


def read_table(path: Path) -> Table:
    """The table of a CSV file. Raises LumosError that says which columns are missing or which row is malformed."""
    columns, rows = read_rows(path, complete=True)
    missing = {kind: [c for c in wanted if c not in columns] for kind, wanted in TABLE_KINDS.items()}
    kind = min(missing, key=lambda name: len(missing[name]))
    if missing[kind]:
        forms = "; ".join(f"{name}: {', '.join(wanted)}" for name, wanted in TABLE_KINDS.items())
        raise LumosError(f"{path}: columns {', '.join(missing[kind])} are missing for a {kind} table; tables have: {forms}")
    usable, left_out = _usable(rows, kind, path)
    notes = tuple(Diagnostic("rows-left-out", f"{path}: {n} rows left out: {why}") for why, n in left_out.items())
    return Table(kind, str(path), tuple(usable), notes)


def _usable(rows: Iterable[MeasuredRow], kind: str, path: Path) -> tuple[list[MeasuredRow], Counter[str]]:
    """The rows of known accelerators that have every number their kind needs; and how many others there are, by reason."""
    if kind == "attention":  # without a count of K and V heads there are as many as heads
        rows = [{**r, "kv_heads": r["kv_heads"].strip() or r["heads"]} for r in rows]
    numbers = {"gemm": "m n k time_us", "attention": "batch seq_len heads kv_heads head_dim time_us"}
    needed = numbers.get(kind, "n_gpus n_nodes size_bytes time_us").split()
    usable, left_out = [], Counter[str]()
    for line, row in enumerate(rows, 2):
        if any(not row[c].strip() for c in needed):
            left_out["a number is blank"] += 1
            continue
        for c in needed:
            _check_positive(row[c], c, path, line)
        if kind == "attention" and row["direction"] not in DIRECTIONS:
            raise LumosError(f"{path}: line {line}: direction = {row['direction']!r} is not known; valid: {', '.join(DIRECTIONS)}")
        try:
            load_cluster(row["gpu"])
            if kind == "collective":
                modelled_kind(row["collective"])
            else:
                dtype_of(row["dtype"].split("/")[-1])
        except LumosError:
            left_out[f"{row['gpu']} {row.get('dtype', '')}: accelerator, dtype or collective not known".replace("  ", " ")] += 1
            continue
        usable.append(row)
    return usable, left_out


def _check_positive(text: str, column: str, path: Path, line: int) -> None:
    """Raise LumosError unless the field is a positive number of a plausible size."""
    try:
        positive(text, column)
    except LumosError as error:
        raise LumosError(f"{path}: line {line}: {error}") from None


def _column(rows: Sequence[MeasuredRow], key: str) -> Float64:
    """One column as numbers."""
    return np.array([table_number(r[key], key) for r in rows])


def grouped_rows(rows: Sequence[MeasuredRow], key: Callable[[MeasuredRow], tuple[str, ...]]) -> dict[tuple[str, ...], list[MeasuredRow]]:
    """Rows by key, in the order in which the keys first appear."""
    groups: dict[tuple[str, ...], list[MeasuredRow]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return dict(groups)


def gemm_tables(table: Table) -> list[GemmRows]:
    """A table of multiplications by accelerator and dtype; only those with at least `FEWEST_ROWS` rows."""
    out = []
    for (gpu, dtype), rows in grouped_rows(table.rows, lambda r: (measured_on(r).accelerator.name, dtype_of(r["dtype"]))).items():
        if len(rows) >= FEWEST_ROWS:
            m, n, k, microseconds = (_column(rows, c) for c in ("m", "n", "k", "time_us"))
            out.append(GemmRows(load_cluster(gpu).accelerator, dtype_of(dtype), m, n, k, microseconds * 1e-6))
    return out


#: Names of attention kernels in published tables, with the names here.
KERNEL_NAMES = {"trt-llm torch flow": "trtllm", "flashattention-2": "fa2", "flashattention-3": "fa3", "cudnn": "cudnn"}


def attention_tables(table: Table) -> dict[tuple[str, str], list[AttentionRows]]:
    """A table of attention by (accelerator, kernel), each a list of parts with equal dtype, direction and mask."""

    def key(r: MeasuredRow) -> tuple[str, ...]:
        kernel = r.get("kernel", "").strip().lower() or "flash"
        dtype = dtype_of(r["dtype"].split("/")[-1])
        return measured_on(r).accelerator.name, KERNEL_NAMES.get(kernel, kernel), dtype, r["direction"], r["causal"]

    sets: dict[tuple[str, str], list[AttentionRows]] = defaultdict(list)
    for (name, kernel, dtype, direction, causal), rows in grouped_rows(table.rows, key).items():
        sizes = {c: _column(rows, c) for c in ("batch", "seq_len", "heads", "head_dim", "kv_heads")}
        accelerator = load_cluster(name).accelerator
        sets[name, kernel].append(
            AttentionRows(
                accelerator, dtype_of(dtype), directions_of(direction), causal == "yes", shape_of(**sizes), _column(rows, "time_us") * 1e-6
            )
        )
    return {key: parts for key, parts in sets.items() if sum(len(p.seconds) for p in parts) >= FEWEST_ROWS}


def collective_tables(table: Table) -> list[CollectiveRows]:
    """A table of collectives by cluster and kind; rows within a node and rows across nodes are in separate parts."""
    out = []
    for (cluster, kind, _), rows in grouped_rows(
        table.rows, lambda r: (r["gpu"], modelled_kind(r["collective"]), str(table_number(r["n_nodes"], "n_nodes") > 1))
    ).items():
        ranks, nodes, size, microseconds = (_column(rows, c) for c in ("n_gpus", "n_nodes", "size_bytes", "time_us"))
        out.append(CollectiveRows(load_cluster(cluster), modelled_kind(kind), ranks, nodes, size, microseconds * 1e-6))
    return out


def measured_on(row: MeasuredRow) -> Cluster:
    """The cluster that a row's `gpu` names."""
    return load_cluster(row["gpu"])


def fit_tables(tables: Sequence[Table], generic: bool = False) -> Book:
    """Coefficients of every model, accelerator and variant for which the tables have enough rows.

    generic: whether to fit sets over all accelerators together as well. Raises LumosError where no table has enough rows.
    """
    book: dict[str, dict[str, dict[str, Coefficients]]] = {}
    for table in tables:
        if table.kind == "gemm":
            sets = gemm_tables(table)
            for rows in sets:
                book.setdefault("gemm", {}).setdefault(rows.accelerator.name, {})[rows.dtype] = fit_gemm(rows)[0]
            for dtype in sorted({s.dtype for s in sets}) if generic else ():
                fitted = fit_generic_gemm([s for s in sets if s.dtype == dtype])[0]
                book["gemm"].setdefault(GENERIC, {})[dtype] = fitted
        elif table.kind == "attention":
            _fit_attention(table, book, generic)
        elif table.kind == "collective":
            _fit_collectives(table, book, generic)
    if not book:
        counts = ", ".join(f"{t.path}: {len(t.rows)} usable rows" for t in tables)
        raise LumosError(f"calibrate: no set of {FEWEST_ROWS} rows of one accelerator and dtype ({counts})")
    return book


def _fit_attention(table: Table, book: dict[str, dict[str, dict[str, Coefficients]]], generic: bool) -> None:
    """Adds to `book` a set for each accelerator and kernel and, with `generic`, one over all accelerators for each kernel that was
    measured on several of them."""
    sets = attention_tables(table)
    for (name, kernel), parts in sets.items():
        book.setdefault("attention", {}).setdefault(name, {})[kernel] = fit_attention(parts)[0]
    for kernel in sorted({kernel for _, kernel in sets}) if generic else ():
        measured = [parts for (_, other), parts in sets.items() if other == kernel]
        if len(measured) > 1:
            book["attention"].setdefault(GENERIC, {})[kernel] = fit_attention([p for parts in measured for p in parts])[0]


def _fit_collectives(table: Table, book: dict[str, dict[str, dict[str, Coefficients]]], generic: bool) -> None:
    """Adds to `book` sets within a node by accelerator and kind, and one set across nodes."""
    parts = collective_tables(table)
    inside = [t for t in parts if np.all(t.nodes == 1) and len(t.seconds) >= FEWEST_ROWS and t.kind in FITTED_KINDS]
    sets = book.setdefault("collective", {})
    for rows in inside:
        sets.setdefault(rows.cluster.accelerator.name, {})[COLLECTIVES[rows.kind]] = fit_links([rows])[0]
    for kind in sorted({t.kind for t in inside}) if generic else ():
        switched = [t for t in inside if t.kind == kind and t.cluster.node.topology == "switch"]
        sets.setdefault(GENERIC, {})[COLLECTIVES[kind]] = fit_links(switched)[0]
    across = [t for t in parts if np.all(t.nodes > 1)]
    if sum(len(t.seconds) for t in across) >= FEWEST_ROWS:
        from lumos.cost.coefficients import find, overlay, shipped_coefficients

        known = overlay(shipped_coefficients(), book) if not generic else book
        inner = [link_coefficients(find("collective", t.cluster.accelerator, (COLLECTIVES[t.kind],), known)[0].values) for t in across]
        fitted = fit_network(across, [t.cluster.name for t in across], inner)[0]
        book.setdefault("network", {})[GENERIC] = {"network": fitted}
    if not sets:
        del book["collective"]
