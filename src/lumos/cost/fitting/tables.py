"""Tables of measured times of kernels and collectives, to which the cost models are fitted.

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
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.cost.attention_model import DIRECTIONS, attention_seconds, directions_of, shape_of
from lumos.cost.cluster import dtype_of, load_cluster
from lumos.cost.collective_model import link_seconds, modelled_kind, span_group
from lumos.cost.fitting.fit import MeasuredRows
from lumos.cost.gemm_model import gemm_seconds, work_of
from lumos.diagnostics import Diagnostic
from lumos.errors import LumosError
from lumos.measured_table import positive, read_rows, table_number
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from lumos.cost.cluster import Cluster
    from lumos.cost.collective_model import GroupLinks
    from lumos.cost.estimate import Float64

TABLE_KINDS = {
    "gemm": ("gpu", "dtype", "m", "n", "k", "time_us"),
    "attention": ("gpu", "dtype", "direction", "causal", "batch", "seq_len", "heads", "kv_heads", "head_dim", "time_us"),
    "collective": ("gpu", "n_gpus", "n_nodes", "collective", "size_bytes", "time_us"),
}
#: The sizes of a row of each kind, which are numbers.
NUMBERS = {
    "gemm": ("m", "n", "k"),
    "attention": ("batch", "seq_len", "heads", "kv_heads", "head_dim"),
    "collective": ("n_gpus", "n_nodes", "size_bytes"),
}
#: What the cost models call them, where they have another name.
_SIZES = {"n_gpus": "ranks", "n_nodes": "nodes"}

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
    needed = (*NUMBERS[kind], "time_us")
    usable, left_out = [], Counter[str]()
    for line, row in enumerate(rows, 2):
        if any(not row[c].strip() for c in needed):
            left_out["a number is blank"] += 1
            continue
        try:
            for c in needed:
                positive(row[c], c)
        except LumosError as error:
            raise LumosError(f"{path}: line {line}: {error}") from None
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


#: Names of attention kernels in published tables, with the names here.
KERNEL_NAMES = {"trt-llm torch flow": "trtllm", "flashattention-2": "fa2", "flashattention-3": "fa3", "cudnn": "cudnn"}


def measured_rows(table: Table) -> list[MeasuredRows]:
    """The rows of a table by cluster and variant; apart, where they differ in what is no size: dtype, direction and mask of attention, and
    whether a collective leaves its node."""
    groups: dict[tuple[str, ...], list[MeasuredRow]] = defaultdict(list)
    for row in table.rows:
        groups[_key(table.kind, row)].append(row)
    return [
        MeasuredRows(
            cluster,
            variant,
            {_SIZES.get(name, name): np.array([table_number(row[name], name) for row in rows]) for name in NUMBERS[table.kind]},
            np.array([table_number(row["time_us"], "time_us") for row in rows]) * 1e-6,
            _formula(table.kind, cluster, variant, *apart),
        )
        for (cluster, variant, *apart), rows in groups.items()
    ]


def _key(kind: str, row: MeasuredRow) -> tuple[str, ...]:
    """Cluster and variant of a row, and what else tells it apart."""
    if kind == "collective":
        return row["gpu"], modelled_kind(row["collective"]), str(table_number(row["n_nodes"], "n_nodes") > 1)
    device, dtype = load_cluster(row["gpu"]).accelerator.name, dtype_of(row["dtype"].split("/")[-1])
    kernel = row.get("kernel", "").strip().lower() or "flash"
    return (device, dtype) if kind == "gemm" else (device, KERNEL_NAMES.get(kernel, kernel), dtype, row["direction"], row["causal"])


def _formula(kind: str, name: str, variant: str, *apart: str) -> Callable[[Mapping[str, Float64], Any], Float64]:
    """The formula of the rows with that key."""
    cluster = load_cluster(name)
    if kind == "gemm":
        work = work_of(cluster.accelerator, variant)
        return lambda sizes, c: gemm_seconds(sizes["m"], sizes["n"], sizes["k"], work, c)
    if kind == "collective":
        return lambda sizes, c: link_seconds(CollectiveKind(variant), sizes["size_bytes"], grouped_links(cluster, sizes), c).seconds
    dtype, directions, causal = dtype_of(apart[0]), directions_of(apart[1]), apart[2] == "yes"
    return lambda sizes, c: np.sum(
        [attention_seconds(shape_of(**sizes), causal, one, cluster.accelerator, dtype, c).seconds for one in directions], axis=0
    )


def grouped_links(cluster: Cluster, sizes: Mapping[str, Float64]) -> GroupLinks:
    """How the groups of measured collectives lie, whose ranks fill nodes one after the other."""
    ranks, nodes = sizes["ranks"], sizes["nodes"]
    span = np.where(nodes > 1, nodes * cluster.node.devices, ranks)
    return span_group(cluster, ranks, ranks / nodes, np.ones_like(ranks), span)
