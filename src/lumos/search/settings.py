"""A search's settings, from options."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from lumos.cost.cluster import load_cluster
from lumos.errors import UsageError
from lumos.layout.framework import profile
from lumos.layout.plan import RECOMPUTE, SCHEDULES
from lumos.layout.sizes import PRECISIONS
from lumos.model import load_model
from lumos.search.space import Problem, Space

SIZES = ("tp", "pp", "vpp", "cp", "ep", "dp", "zero", "micro_batch")


def problem_of(model: str, cluster: str, gpus: int, global_batch: int, seq: int, precision: str, framework: str) -> Problem:
    """The problem of these names and sizes. UsageError names the nearest valid one."""
    loaded = load_cluster(cluster)
    loaded.check_size(gpus)
    return Problem(load_model(model), profile(framework), loaded, gpus, global_batch, seq, _known("precision", precision, tuple(PRECISIONS)))


def space_of(options: Mapping[str, object]) -> Space:
    """The space of comma-separated values; what is absent is open."""
    values: dict[str, tuple[object, ...]] = {}
    for key in SIZES:
        text = options.get(key)
        if isinstance(text, str):
            values[key] = tuple(_size(key, word) for word in text.split(","))
    for key, valid in (("recompute", RECOMPUTE), ("schedule", SCHEDULES)):
        text = options.get(key)
        if isinstance(text, str):
            values[key] = tuple(_known(key, word.strip(), valid) for word in text.split(","))
    sequence = options.get("sequence_parallel")
    if isinstance(sequence, bool):
        values["sequence_parallel"] = (sequence,)
    return Space(**values)  # type: ignore[arg-type]


def _size(key: str, word: str) -> int:
    try:
        value = int(word)
    except ValueError:
        raise UsageError(f"--{key.replace('_', '-')}: {word!r} is not a whole number; give values as 1,2,4") from None
    least, most = (0, 3) if key == "zero" else (1, None)
    if value < least or (most is not None and value > most):
        raise UsageError(f"--{key.replace('_', '-')}: {value} is not {'0, 1, 2 or 3' if most else 'at least 1'}")
    return value


def _known(key: str, word: str, valid: tuple[str, ...]) -> str:
    if word not in valid:
        near = get_close_matches(word, valid, 1)
        raise UsageError(f"{key} = {word!r} is not known{f'; did you mean {near[0]!r}?' if near else ''}; valid: {', '.join(valid)}")
    return word
