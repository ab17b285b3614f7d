"""`lumos.whatif`: a job, or its files, and changes as keyword arguments with the words of the command line.

    lumos.whatif("traces/", tp=2, layers=16)
    lumos.whatif(job, scale={"*nccl*": 0.5}, drop="aten::dropout")
    lumos.whatif(job, grid={"dp": (2, 4, 8)})

The keywords are turned into the words of the command line and parsed as those are, so both accept and refuse the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, cast, overload

from lumos.graph.build import build
from lumos.result import Rows
from lumos.trace.source import Source, as_job
from lumos.whatif.durations import Durations
from lumos.whatif.grid import Cell, evaluate, parse_grid
from lumos.whatif.settings import parse_settings
from lumos.whatif.whatif import Changes
from lumos.whatif.whatif import answer_changes as answer_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lumos.graph.table import Graph
    from lumos.whatif.answer import Answer


class SettingWords(TypedDict, total=False):
    """The settings of `lumos whatif --set`. `whatif.settings` says what each means and which jobs can follow it."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    vocab: int
    seq: int
    micro_batch: int
    microbatches: int
    dp: int
    tp: int
    pp: int
    vpp: int
    cp: int
    ep: int
    zero: int
    schedule: str
    precision: str
    recompute: str
    cuda_graphs: bool | Literal["on", "off"]


class ChangeWords(SettingWords, total=False):
    """Everything that can be changed.

    scale: factors on the time of tasks, by a glob of their names. drop: globs of tasks to leave out. fuse: globs of neighbouring
    kernels that become one. rank_slowdown: factors on all work of a rank. cluster: where to run the job instead. base_cluster: where
    it was recorded, if the trace does not say. Both are a cluster's name or a .toml file. network: factors on "bandwidth" and "latency".
    host_factor: how much longer the CPU's work takes on `cluster`.
    """

    scale: Mapping[str, float]
    drop: str | Sequence[str]
    fuse: str | Sequence[str]
    rank_slowdown: Mapping[int, float]
    cluster: str
    base_cluster: str
    network: Mapping[Literal["bandwidth", "latency"], float]
    repeat: bool
    host_factor: float


@overload
def whatif(
    job: Source,
    *,
    graph: Graph | None = None,
    repair: bool = False,
    force: bool = False,
    grid: None = None,
    **changes: Unpack[ChangeWords],
) -> Answer: ...


@overload
def whatif(
    job: Source,
    *,
    graph: Graph | None = None,
    repair: bool = False,
    force: bool = False,
    grid: Mapping[str, Sequence[object]],
    **changes: Unpack[ChangeWords],
) -> Rows[Cell]: ...


def whatif(
    job: Source,
    *,
    graph: Graph | None = None,
    repair: bool = False,
    force: bool = False,
    grid: Mapping[str, Sequence[object]] | None = None,
    **changes: Unpack[ChangeWords],
) -> Answer | Rows[Cell]:
    """The step of the job under `changes`, compared with that of the job as it is.

    job: trace files or a folder, or a job from `lumos.read`. graph: the job's graph from `lumos.build`, to save building it again.
    force: answer also where the recording cannot give a sound answer. changes: see `ChangeWords` and `SettingWords`. grid: values by
    setting, or by "scale:GLOB"; every combination of them is evaluated on top of the changes and becomes a row. Raises UsageError for
    an unknown setting (it names the nearest) or a wrong value, LumosError where the trace does not support the change or cannot give a
    sound answer, TraceError as `lumos.read` does.
    """
    wanted = changes_of(changes)
    cells = None if grid is None else parse_grid(f"{key}={','.join(map(_text, values))}" for key, values in grid.items())
    job = as_job(job, repair=repair)
    graph = build(job) if graph is None else graph
    return answer_of(job, graph, wanted, force=force) if cells is None else Rows(evaluate(job, graph, wanted, cells, force=force))


def changes_of(words: ChangeWords) -> Changes:
    """The changes that the keyword arguments ask for. Raises UsageError where one is unknown or wrong."""
    rest = cast("dict[str, object]", dict(words))
    for word in ChangeWords.__optional_keys__ - SettingWords.__optional_keys__:
        rest.pop(word, None)
    durations = Durations.parse(
        (f"{glob}={float(factor)}" for glob, factor in words.get("scale", {}).items()),
        _several(words.get("drop", ())),
        _several(words.get("fuse", ())),
        (f"{rank}={float(factor)}" for rank, factor in words.get("rank_slowdown", {}).items()),
    )
    settings = parse_settings(f"{key}={_text(value)}" for key, value in rest.items())
    network = tuple(f"{key}=x{float(factor)}" for key, factor in words.get("network", {}).items())
    return Changes(
        settings, durations, words.get("base_cluster"), words.get("cluster"), network, words.get("repeat", False), words.get("host_factor")
    )


def _several(globs: str | Sequence[str]) -> Sequence[str]:
    return (globs,) if isinstance(globs, str) else globs


def _text(value: object) -> str:
    """A value as it is written on the command line."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
