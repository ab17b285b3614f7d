"""`lumos.whatif` without commands: a job, or its files, and changes as keyword arguments with the words of the command line.

    lumos.whatif("traces/", tp=2, layers=16)
    lumos.whatif(job, scale={"*nccl*": 0.5}, drop="aten::dropout")
    lumos.whatif(job, grid={"dp": (2, 4, 8)})

The keywords are turned into the words of the command line and parsed as those are, so both accept and refuse the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from lumos.analyze.ranks.equal_work import Like
from lumos.changes.changes import Changes
from lumos.changes.grid import Cell, evaluate, parse_grid
from lumos.changes.whatif import answer_changes as answer_of
from lumos.choices import as_mapping, as_number
from lumos.errors import UsageError
from lumos.graph.build import build
from lumos.result import Rows
from lumos.trace.source import Source, as_job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lumos.changes.answer import Answer
    from lumos.changes.words import ChangeWords
    from lumos.graph.table import Graph

#: Words whose values are no text on the command line either.
_AS_THEY_ARE = ("cluster", "base_cluster", "repeat", "host_factor")


def whatif_by_settings(
    job: Source, *, graph: Graph | None, repair: bool, force: bool, grid: Mapping[str, Sequence[object]] | None,
    **changes: Unpack[ChangeWords],
) -> Answer | Rows[Cell]:
    """The step of the job under `changes`, compared with that of the job as it is.

    grid: values by setting, or by "scale:GLOB"; every combination of them is evaluated on top of the changes and becomes a row. Raises
    UsageError for an unknown setting (it names the nearest) or a wrong value, LumosError where the trace does not support the change or
    cannot give a sound answer, TraceError as `lumos.read` does.
    """
    wanted = changes_of(changes)
    cells = None if grid is None else parse_grid(map(_axis, as_mapping(grid, "grid", "{'dp': (2, 4)}").items()))
    job = as_job(job, repair=repair)
    probed, graph = graph is None, build(job) if graph is None else graph
    if cells is not None:
        return Rows(evaluate(job, graph, wanted, cells, force=force))
    return answer_of(job, graph, wanted, force=force, probed=probed)


def changes_of(words: ChangeWords) -> Changes:
    """The changes that the keyword arguments ask for. Raises UsageError where one is unknown or wrong."""
    text: dict[str, Any] = {
        "base": [f"{key}={value}" for key, value in as_mapping(words.get("base", {}), "base", "{'seq': 512}").items()],
        "scale": [f"{glob}={factor}" for glob, factor in _factors(words.get("scale", {}), "scale", "{'*nccl*': 0.5}")],
        "drop": _several(words.get("drop", ()), "drop"),
        "fuse": _several(words.get("fuse", ()), "fuse"),
        "rank_slowdown": [f"{rank}={factor}" for rank, factor in _factors(words.get("rank_slowdown", {}), "rank_slowdown", "{3: 1.2}")],
        "network": [f"{key}=x{factor}" for key, factor in _factors(words.get("network", {}), "network", "{'bandwidth': 2}")],
    }
    given: dict[str, Any] = {key: value if key in _AS_THEY_ARE else _text(value) for key, value in words.items()}
    return Changes.parse(**{**given, **text})


def _factors(given: object, what: str, example: str) -> list[tuple[object, float | str]]:
    """What is multiplied, and by what. Raises UsageError where it is no mapping to numbers or to the words of `Like`."""
    pairs = as_mapping(given, what, example).items()
    return [(key, factor if factor in tuple(Like) else as_number(factor, f"{what}[{key!r}]")) for key, factor in pairs]


def _several(globs: object, what: str) -> Sequence[str]:
    """One pattern or several. Raises UsageError where it is neither."""
    several = (globs,) if isinstance(globs, str) else globs
    if not isinstance(several, Sequence) or not all(isinstance(glob, str) for glob in several):
        raise UsageError(f"{what} = {globs!r} is neither a pattern nor a sequence of patterns")
    return several


def _axis(of: tuple[str, object]) -> str:
    """A setting and its values as the option `--grid` has them. Raises UsageError where the values are no sequence."""
    key, values = of
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise UsageError(f"grid[{key!r}] = {values!r} is no sequence of values; give one, for instance {{'dp': (2, 4)}}")
    return f"{key}={','.join(map(_text, values))}"


def _text(value: object) -> str:
    """A value as it is written on the command line."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
