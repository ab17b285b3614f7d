"""The fit of each cost model to the rows of tables: multiplications by dtype, attention by kernel, collectives by kind."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lumos.cost.attention_model import ATTENTION_PRIOR
from lumos.cost.cluster import load_cluster
from lumos.cost.coefficients import GENERIC, Book, Coefficients, find, overlay, shipped_coefficients
from lumos.cost.collective_model import FITTED_KINDS, LINK_PRIOR, MODELLED_KINDS, NETWORK_PRIOR, LinkCoefficients, network_seconds
from lumos.cost.fitting.fit import Fitted, all_sizes, fitted_to, held_out, summarise
from lumos.cost.fitting.tables import grouped_links, measured_rows
from lumos.cost.gemm_model import GEMM_PRIOR
from lumos.errors import LumosError
from lumos.vocabulary import CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.cost.estimate import Float64
    from lumos.cost.fitting.fit import MeasuredRows
    from lumos.cost.fitting.tables import Table

#: The least number of rows from which coefficients are fitted.
FEWEST_ROWS = 20
#: Multiplications of at least this many seconds at the datasheet's rate show what power allows for long, if there are so many.
LONG_S, LONG_ROWS = 0.03, 3


class _Fit(NamedTuple):
    """How a model is fitted. groups: rows of equal such sizes are held out together; otherwise: where there are too few of these, rows of
    equal such sizes. seen: the sizes outside of whose range an estimate is extrapolated."""

    prior: Any
    groups: tuple[str, ...]
    otherwise: str
    seen: tuple[str, ...]


_FITS = {
    "gemm": _Fit(GEMM_PRIOR, ("n", "k"), "m", ("m", "n", "k")),
    "attention": _Fit(ATTENTION_PRIOR, ("heads", "kv_heads", "head_dim"), "seq_len", ("batch", "seq_len", "heads", "head_dim")),
    "collective": _Fit(LINK_PRIOR, ("size_bytes",), "ranks", ("ranks", "size_bytes")),
}


def fit_set(model: str, rows: Sequence[MeasuredRows]) -> Fitted:
    """One set of the model's coefficients, shared by all rows."""
    prior, names, otherwise, seen = _FITS[model]
    groups: list[object] = list(zip(*(all_sizes(rows, name).tolist() for name in names), strict=True))
    if len(set(groups)) < 3:
        groups = all_sizes(rows, otherwise).tolist()
    modelled = held_out(rows, prior, groups)
    return Fitted(summarise(of_rows(model, rows), modelled, rows, seen), modelled)


def of_rows(model: str, rows: Sequence[MeasuredRows]) -> Any:
    """The model's coefficients, as its named tuple."""
    fitted = fitted_to(rows, _FITS[model].prior)
    return fitted._replace(sustained=sustained(rows)) if model == "gemm" else fitted


def sustained(rows: Sequence[MeasuredRows]) -> float:
    """Share of the peak that long multiplications reach: the median over accelerators of each one's median; 1 (no limit is known) where
    no accelerator has enough of them."""
    shares = []
    for r in rows:
        ideal = 2 * r.sizes["m"] * r.sizes["n"] * r.sizes["k"] / load_cluster(r.cluster).accelerator.peak(r.variant)
        if (ideal >= LONG_S).sum() >= LONG_ROWS:
            shares.append(float(np.median((ideal / r.seconds)[ideal >= LONG_S])))
    return min(1.0, float(np.median(shares))) if shares else 1.0


def fit_network(rows: Sequence[MeasuredRows], known: Book) -> Fitted:
    """The one set of coefficients across nodes; the rows of a cluster are held out together. known: with the sets within a node."""
    joined, clusters = [_across(r, known) for r in rows], [r.cluster for r in rows for _ in r.seconds]
    modelled = held_out(joined, NETWORK_PRIOR, clusters, len(set(clusters)))
    return Fitted(summarise(fitted_to(joined, NETWORK_PRIOR), modelled, joined, ("size_bytes", "nodes")), modelled)


def _across(rows: MeasuredRows, known: Book) -> MeasuredRows:
    """Rows across nodes, with the formula for these."""
    cluster, kind = load_cluster(rows.cluster), CollectiveKind(rows.variant)
    inner = find("collective", cluster.accelerator, (MODELLED_KINDS[kind],), known)[0].read_as(LinkCoefficients)

    def formula(sizes: Mapping[str, Float64], c: Any) -> Float64:
        return network_seconds(kind, sizes["size_bytes"], grouped_links(cluster, sizes), inner, c).seconds

    return rows._replace(formula=formula)


def fit_tables(tables: Sequence[Table]) -> Book:
    """Coefficients of every model, accelerator and variant for which the tables have enough rows. Raises LumosError where none has."""
    book: dict[str, dict[str, dict[str, Coefficients]]] = {}
    for table in tables:
        for (name, variant), rows in sets_of(table).items():
            book.setdefault(table.kind, {}).setdefault(name, {})[variant] = fit_set(table.kind, rows).coefficients
    across = [measured for table in tables for measured in across_nodes(table)]
    if sum(len(r.seconds) for r in across) >= FEWEST_ROWS:
        network = fit_network(across, overlay(shipped_coefficients(), book)).coefficients
        book.setdefault("network", {})[GENERIC] = {"network": network}
    if not book:
        counts = ", ".join(f"{t.path}: {len(t.rows)} usable rows" for t in tables)
        raise LumosError(f"{counts}; no set of {FEWEST_ROWS} rows of one accelerator and dtype: measure more sizes of one of them")
    return book


def sets_of(table: Table) -> dict[tuple[str, str], list[MeasuredRows]]:
    """The rows of each accelerator and variant of which there are enough for a set: all but collectives across nodes, and their kinds
    that have no sets of their own."""
    sets: dict[tuple[str, str], list[MeasuredRows]] = defaultdict(list)
    for rows in measured_rows(table):
        if table.kind != "collective" or (np.all(rows.sizes["nodes"] == 1) and rows.variant in FITTED_KINDS):
            variant = MODELLED_KINDS[CollectiveKind(rows.variant)] if table.kind == "collective" else rows.variant
            sets[load_cluster(rows.cluster).accelerator.name, variant].append(rows)
    return {key: rows for key, rows in sets.items() if sum(len(r.seconds) for r in rows) >= FEWEST_ROWS}


def across_nodes(table: Table) -> list[MeasuredRows]:
    """The rows of collectives across nodes."""
    return [r for r in measured_rows(table) if table.kind == "collective" and np.all(r.sizes["nodes"] > 1)]
