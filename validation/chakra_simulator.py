"""Lumos' model of a network against what the simulator itself answers: sets of one collective, and a set of another producer."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import lumos
from lumos.chakra.algorithms import Algorithm, Implementation
from lumos.chakra.network import Dimension, Network, Topology
from lumos.simulation import simulate
from lumos.trace.chakra.schema import CollectiveType

_KINDS = {
    "all-reduce": CollectiveType.ALL_REDUCE,
    "all-gather": CollectiveType.ALL_GATHER,
    "all-to-all": CollectiveType.ALL_TO_ALL,
    "reduce-scatter": CollectiveType.REDUCE_SCATTER,
}

#: The model with one of its parts taken out: the score must fall, or the rows do not test that part.
WITHOUT: Mapping[str, Callable[[Network], Network]] = {
    "whole": lambda network: network,
    "every algorithm a ring": lambda network: replace(network, implementations={}),
    "the first dimension alone": lambda network: replace(network, dimensions=_joined(network), implementations={}),
    "no delay at endpoints": lambda network: replace(network, endpoint=0),
    "one chunk": lambda network: replace(network, chunks=1),
    "reductions free": lambda network: replace(network, local=1e12),
}


def _joined(network: Network) -> tuple[Dimension]:
    """All ranks along the first dimension."""
    return (replace(network.dimensions[0], npus=network.npus),)


@dataclass(frozen=True, slots=True)
class Row:
    """A set of one collective: on which network, its kind, input bytes a rank, and when the simulator's last rank finishes (ns)."""

    kind: str
    nbytes: int
    network: Network
    finish: int

    def error(self, change: Callable[[Network], Network] = WITHOUT["whole"]) -> float:
        """Relative error of the model, which may be changed first."""
        network = change(self.network)
        return network.collective(_KINDS[self.kind], self.nbytes, range(network.npus)) / self.finish - 1


def rows(folder: Path) -> list[Row]:
    """The rows of the simulator's table of collectives."""
    with (folder / "astra_sim_collectives.csv").open() as file:
        return [_row(row) for row in csv.DictReader(file)]


def _row(row: Mapping[str, str]) -> Row:
    columns = [row[key].split("x") for key in ("npus", "bandwidth_gib_s", "latency_ns", "topology")]
    dimensions = tuple(Dimension(int(n), float(b), float(latency), Topology(t)) for n, b, latency, t in zip(*columns, strict=True))
    implementations = [Implementation(Algorithm(name)) for name in row["algorithm"].split("x")]
    network = Network(
        dimensions,
        implementations={_KINDS[row["collective"]]: implementations},
        endpoint=int(row["endpoint_delay"]),
        chunks=int(row["splits"]),
        local=1600,
    )
    return Row(row["collective"], int(row["input_bytes"]), network, int(row["finish_ns"]))


def within(found: list[Row], change: Callable[[Network], Network], tolerance: float = 0.01) -> int:
    """How many rows the model answers within the tolerance."""
    return sum(abs(row.error(change)) <= tolerance for row in found)


def whole_set(folder: Path) -> float:
    """The largest relative error of a rank's finish in the set that another producer wrote."""
    wanted = json.loads((folder / "stage-16" / "finish.json").read_text())["finish_ns"]
    job = lumos.build(lumos.read(folder / "stage-16"))
    end = simulate(job).end
    rank = np.array([job.processors[p].rank for p in job.processor])
    return max(abs(int(end[rank == int(r)].max()) / ns - 1) for r, ns in wanted.items())
