"""A generative model of Chakra workloads: learned from one or many sets, saved as one file, sampled with a seed.

Structure and values are kept apart. The structure of a set is, rank by rank (ranks that run the same share it), a
sequence of symbols with dependencies as distances back. A symbol stands for an operator (or a kind of communication) at
one order of magnitude; its name is a number. Of durations only each symbol's empirical quantiles are kept, over all
ranks and sets: what is sampled has the marginals, the structure and the sums of the source and none of its runs. A
parametric mixture (Gaussian, as in the public generator) was the alternative: operator times are spikes with long
tails, which quantiles hold without a number of components to choose.

Long nodes decide the step, so their symbols are fine (a quarter octave); short ones are pooled per operator.
"""

from __future__ import annotations

import lzma
import os
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from lumos.chakra.workload import Workload
from lumos.errors import LumosError, UsageError
from lumos.trace.chakra_wire import NodeType
from lumos.trace.table import ABSENT, Int32, Int64

#: Points of a quantile table.
POINTS = 33
#: Durations below this are one symbol per operator, ns; those above a hundredth of the set's time are fine.
SHORT, LONG = 16_000, 0.01

_FORMAT = "lumos-chakra-model-1"


class Symbol(msgspec.Struct, frozen=True):
    """An operator at one order of magnitude. quantiles: ns at equal steps of probability."""

    type: int
    on_cpu: bool
    kind: int
    label: int
    quantiles: tuple[int, ...]


class Program(msgspec.Struct, frozen=True):
    """What a rank runs: per node its symbol, queue and release (ABSENT none), and how far back its dependencies are.

    comm: (node, type, size, group, peer as a distance in ranks, tag, kind) of the communication nodes.
    """

    symbol: tuple[int, ...]
    queue: tuple[int, ...]
    release: tuple[int, ...]
    deps: tuple[tuple[int, ...], ...]
    comm: tuple[tuple[int, ...], ...]


class Structure(msgspec.Struct, frozen=True):
    """One set: its programs, which of them each rank runs, its groups."""

    programs: tuple[Program, ...]
    of_rank: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]


class Model(msgspec.Struct, frozen=True):
    """What was learned. kinds: of communication, in Lumos' words."""

    format: str
    symbols: tuple[Symbol, ...]
    structures: tuple[Structure, ...]
    kinds: tuple[str, ...]


def learn(workloads: Sequence[Workload]) -> Model:
    """The model of one or many workloads. UsageError where one has no durations."""
    symbols: dict[tuple[int, ...], int] = {}
    labels: dict[str, int] = {}
    pools: list[list[Int64]] = []
    kinds: dict[str, int] = {}
    structures = []
    for workload in workloads:
        if not len(workload) or (workload.duration == ABSENT).any():
            raise UsageError("a set without durations has nothing to learn from; export it from a measured or predicted job")
        symbol = _symbols(workload, symbols, labels, pools)
        structures.append(_structure(workload, symbol, kinds))
    table = [
        Symbol(key[0], bool(key[1]), key[2], key[3], _quantiles(np.concatenate(pool))) for key, pool in zip(symbols, pools, strict=True)
    ]
    return Model(_FORMAT, tuple(table), tuple(structures), tuple(kinds))


def symbols_of(workload: Workload) -> Int32:
    """The symbol of every node of one workload, as a number of its own: for tests of what a sample gives away."""
    return _symbols(workload, {}, {}, [])


def _symbols(workload: Workload, symbols: dict[tuple[int, ...], int], labels: dict[str, int], pools: list[list[Int64]]) -> Int32:
    """The symbol of every node; new ones are added, and the durations of each join its pool."""
    label = np.array([labels.setdefault(name, len(labels)) for name in workload.names] or [0])[workload.name]
    long = LONG * float((workload.start + workload.duration).max())
    log = np.log2(np.maximum(workload.duration, 1))
    magnitude = np.where(workload.duration < SHORT, 0, np.where(workload.duration < long, 1 + np.floor(log), 100 + np.floor(4 * log)))
    size = np.zeros(len(workload))
    size[workload.communication.node] = 1 + np.floor(np.log2(np.maximum(workload.communication.size, 1)))
    columns = np.stack([workload.type, workload.on_cpu, workload.kind, label, magnitude, size], axis=1).astype(np.int64)
    keys, which = np.unique(columns, axis=0, return_inverse=True)
    which = which.reshape(-1)
    number = np.empty(len(keys), np.int32)
    order = np.argsort(which, kind="stable")
    bounds = np.searchsorted(which[order], np.arange(len(keys) + 1))
    for i, key in enumerate(map(tuple, keys.tolist())):
        number[i] = symbols.setdefault(key, len(symbols))
        if number[i] == len(pools):
            pools.append([])
        pools[number[i]].append(workload.duration[order[bounds[i] : bounds[i + 1]]])
    return number[which]


def _quantiles(pool: Int64) -> tuple[int, ...]:
    """The quantiles of a pool, moved together so that their mean is the pool's."""
    points = np.quantile(pool, np.linspace(0, 1, POINTS))
    mean = np.trapezoid(points) / (POINTS - 1) if hasattr(np, "trapezoid") else np.mean((points[1:] + points[:-1]) / 2)
    if mean > 0:
        points *= pool.mean() / mean
    return tuple(np.rint(points).astype(np.int64).tolist())


def _structure(workload: Workload, symbol: Int32, kinds: dict[str, int]) -> Structure:
    programs: dict[Program, int] = {}
    of_rank = []
    facts = workload.communication
    number = [kinds.setdefault(kind, len(kinds)) for kind in facts.kinds]
    for rank in range(len(workload.ranks)):
        low, high = (int(i) for i in workload.rank_offset[rank : rank + 2])
        first, last = (int(i) for i in np.searchsorted(facts.node, (low, high)))
        bounds = workload.dep_offset[low : high + 1].tolist()
        back = (np.repeat(np.arange(low, high), np.diff(bounds)) - workload.dep[bounds[0] : bounds[-1]]).tolist()
        program = Program(
            symbol=tuple(symbol[low:high].tolist()),
            queue=tuple(workload.queue[low:high].tolist()),
            release=tuple(workload.release[low:high].tolist()),
            deps=tuple(tuple(back[a - bounds[0] : b - bounds[0]]) for a, b in pairwise(bounds)),
            comm=tuple(
                (
                    int(facts.node[i]) - low,
                    int(facts.type[i]),
                    int(facts.size[i]),
                    int(facts.group[i]),
                    int(facts.peer[i]) - rank if facts.peer[i] >= 0 else 0,
                    int(facts.tag[i]),
                    number[facts.kind[i]],
                )
                for i in range(first, last)
            ),
        )
        of_rank.append(programs.setdefault(program, len(programs)))
    return Structure(tuple(programs), tuple(of_rank), workload.groups)


def save(model: Model, path: Path) -> None:
    """Write a model as one file. LumosError where it cannot be written."""
    try:
        descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(lzma.compress(msgspec.msgpack.encode(model), preset=6))
        Path(draft).chmod(0o644)
        Path(draft).replace(path)
    except OSError as error:
        raise LumosError(f"{path}: cannot be written ({error.strerror or error}); name a file in a folder that is writable") from error


def load(path: Path) -> Model:
    """Read a model. LumosError: absent, damaged or of another format."""
    try:
        model = msgspec.msgpack.decode(lzma.decompress(path.read_bytes()), type=Model)
    except (OSError, lzma.LZMAError, msgspec.MsgspecError) as error:
        raise LumosError(f"{path}: not a model that `chakra synthesize --save-model` wrote ({error}); learn it again") from error
    if model.format != _FORMAT or not model.structures:
        raise LumosError(f"{path}: a model of format {model.format!r}; this version reads {_FORMAT!r}: learn it again")
    return model


def is_device_compute(symbols: Sequence[Symbol]) -> NDArray[np.bool_]:
    """Symbols that are compute on a device."""
    return np.array([s.type == NodeType.COMP and not s.on_cpu for s in symbols], bool)
