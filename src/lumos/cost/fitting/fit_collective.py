"""Fit of the collective models: per accelerator and kind within a node, and one small set across nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lumos.cost.collective_model import (
    LINK_PRIOR,
    NETWORK_PRIOR,
    LinkCoefficients,
    NetworkCoefficients,
    link_seconds,
    network_seconds,
    span_group,
)
from lumos.cost.fitting.fit import fit_positive, held_out, input_ranges, summarise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from lumos.cost.cluster import Cluster
    from lumos.cost.coefficients import Coefficients
    from lumos.cost.estimate import Float64
    from lumos.vocabulary import CollectiveKind


class CollectiveRows(NamedTuple):
    """Measured collectives of one cluster and kind. Arrays of one length."""

    cluster: Cluster
    kind: CollectiveKind
    ranks: Float64
    nodes: Float64
    size_bytes: Float64
    seconds: Float64

    def where(self, mask: NDArray[np.bool_]) -> CollectiveRows:
        """The rows of the mask."""
        return self._replace(ranks=self.ranks[mask], nodes=self.nodes[mask], size_bytes=self.size_bytes[mask], seconds=self.seconds[mask])


def fit_links(tables: Sequence[CollectiveRows]) -> tuple[Coefficients, Float64]:
    """Coefficients of one kind within a node, shared by `tables`; and each row's seconds as modelled while its size was held out."""
    measured = np.concatenate([t.seconds for t in tables])
    sizes = np.concatenate([t.size_bytes for t in tables])

    def split(mask: NDArray[np.bool_]) -> list[CollectiveRows]:
        borders = np.cumsum([len(t.seconds) for t in tables])[:-1]
        return [t.where(part) for t, part in zip(tables, np.split(mask, borders), strict=True)]

    modelled = held_out(lambda mask: lambda other: _predict(_fit_links(split(mask)), split(other)), measured, sizes.tolist())
    values = _stored(_fit_links(tables))
    return summarise(values, modelled, measured, input_ranges(ranks=np.concatenate([t.ranks for t in tables]), size_bytes=sizes)), modelled


def fit_network(
    tables: Sequence[CollectiveRows], sources: Sequence[str], inner: Sequence[LinkCoefficients]
) -> tuple[Coefficients, list[Float64]]:
    """The coefficients across nodes, and each table's seconds as modelled while all tables of its source were held out. inner: the
    coefficients within a node for each table."""
    modelled = []
    for table, source, link in zip(tables, sources, inner, strict=True):
        others = [i for i, s in enumerate(sources) if s != source]
        chosen = others or range(len(tables))
        modelled.append(_network(table, link, _fit_network([tables[i] for i in chosen], [inner[i] for i in chosen])))
    values: dict[str, float | list[float]] = dict(_fit_network(tables, inner)._asdict())
    measured = np.concatenate([t.seconds for t in tables])
    seen = input_ranges(size_bytes=np.concatenate([t.size_bytes for t in tables]), nodes=np.concatenate([t.nodes for t in tables]))
    return summarise(values, np.concatenate(modelled), measured, seen), modelled


def _fit_links(tables: Sequence[CollectiveRows]) -> LinkCoefficients:
    prior = np.concatenate([np.atleast_1d(v) for v in LINK_PRIOR])
    models = [lambda values, t=t: _link(t, _unpacked(values)) for t in tables]
    return _unpacked(fit_positive(models, [t.seconds for t in tables], prior))


def _fit_network(tables: Sequence[CollectiveRows], inner: Sequence[LinkCoefficients]) -> NetworkCoefficients:
    models = [
        lambda values, t=t, link=link: _network(t, link, NetworkCoefficients(*map(float, values)))
        for t, link in zip(tables, inner, strict=True)
    ]
    return NetworkCoefficients(*map(float, fit_positive(models, [t.seconds for t in tables], np.array(NETWORK_PRIOR))))


def _link(t: CollectiveRows, c: LinkCoefficients) -> Float64:
    group = span_group(t.cluster, t.ranks, t.ranks, np.ones_like(t.ranks), t.ranks)
    return link_seconds(t.kind, t.size_bytes, group, c).seconds


def _network(t: CollectiveRows, inner: LinkCoefficients, c: NetworkCoefficients) -> Float64:
    group = span_group(t.cluster, t.ranks, t.ranks / t.nodes, np.ones_like(t.ranks), t.nodes * t.cluster.node.devices)
    return network_seconds(t.kind, t.size_bytes, group, inner, c).seconds


def _predict(c: LinkCoefficients, tables: Sequence[CollectiveRows]) -> Float64:
    return np.concatenate([_link(t, c) for t in tables])


def _unpacked(values: Float64) -> LinkCoefficients:
    v = [float(x) for x in values]
    return LinkCoefficients(v[0], v[1], tuple(v[2:5]), tuple(v[5:8]), *v[8:])


def _stored(c: LinkCoefficients) -> dict[str, float | list[float]]:
    return {key: list(v) if isinstance(v, tuple) else v for key, v in c._asdict().items()}
