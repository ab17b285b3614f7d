"""Reading of one pipeline rank of AMD-AGI/Primus' pipeline visualiser into a `Trace`.

The file `pp_rank_N.json` maps each iteration to lists by microbatch, in ms from the iteration's origin: `fwd_start`,
`fwd_end`, `bwd_start`, `bwd_end`; with interleaving also `fwd_minibatch`, `fwd_chunk`, `bwd_minibatch` and `bwd_chunk`, which
give the microbatch (from 1) and the chunk of every entry; where they are absent, both follow from the interleaved schedule. Files
with `wgrad_start` and `wgrad_end` (weight gradients as passes of their own) are refused, because these are not modelled. `total` (ms)
and `memory` (GB) are not used. `config.json` in the same folder gives the sizes: `pp_size`, `vp_size` (or `vpp_size`).

Limits: the file has no transfers. The graph adds those that the order of the passes implies.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from lumos.errors import TraceError
from lumos.trace.blocks import unpacked_blocks
from lumos.trace.operations import RecordedPlan, operation_trace
from lumos.trace.table import ABSENT, Int64, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

CONFIG = "config.json"

_RANK_IN_NAME = re.compile(r"pp_rank_(\d{1,6})\.json(?:\.gz)?$")

_PASSES = (("fwd", "forward-compute"), ("bwd", "backward-compute"))


def sniff(head: bytes) -> bool:
    """Whether a file that starts with `head` lists one rank's passes."""
    return re.match(rb'\s*\{\s*"\d+"\s*:\s*\{', head) is not None and b'"fwd_start"' in head


def sniff_config(head: bytes) -> bool:
    """Whether a file that starts with `head` is the `config.json` with the sizes of the plan."""
    return head.lstrip().startswith(b"{") and head.count(b"{") == 1 and b'"pp_size"' in head and b'"world_size"' in head


def read(path: Path, *, progress: Callable[[int], None] | None = None) -> Trace:
    """Read one rank.

    Raises TraceError: no rank in the file's name, no `config.json` beside it, JSON that is cut off, lists that are missing,
    of different lengths or no numbers, an end before its start, a rank beyond the configuration's stages.
    """
    plan = _plan(path)
    stage = _stage(path, plan)
    document = _json(path, progress)
    if not isinstance(document, dict) or not document:
        raise TraceError(f"{path}: no iterations in it; record it again")
    operation: list[str] = []
    rows: list[tuple[int, int, int, int, int, int]] = []  # step, start, duration, microbatch, chunk, sequence
    for key, iteration in document.items():
        where = f"{path}: iteration {key}"
        if not (key.isdecimal() and len(key) < 10) or not isinstance(iteration, dict):
            raise TraceError(f"{where}: not an iteration (a number with an object of lists); record it again")
        if iteration.get("wgrad_start"):
            raise TraceError(f"{where}: weight gradients as operations of their own (wgrad_start) are not understood; record without them")
        for prefix, name in _PASSES:
            passes = _passes(where, prefix, iteration, plan)
            rows += [(int(key), *row) for row in passes]
            operation += [name] * len(passes)
    keys = ("step", "start", "duration", "microbatch", "chunk", "sequence", "stage", "dp rank")
    columns = dict(zip(keys, np.array([(*row, stage, 0) for row in rows], np.int64).reshape(-1, 8).T, strict=True))
    return operation_trace(str(path), stage, "file name", plan, operation, columns)


def _plan(path: Path) -> RecordedPlan:
    config_path = path.parent / CONFIG
    if not config_path.is_file():
        raise TraceError(f"{path}: needs {CONFIG} beside it, with pp_size; copy it from where the file was recorded")
    config = _json(config_path, None)
    if not isinstance(config, dict):
        raise TraceError(f"{config_path}: not an object of sizes; copy it from where {path.name} was recorded")
    sizes = {}
    for name, keys, default in (("pp_size", ("pp_size",), None), ("vp_size", ("vp_size", "vpp_size"), 1)):
        value = next((config[k] for k in keys if config.get(k) is not None), default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= 10**6:
            raise TraceError(f"{config_path}: {name} is {value!r}; it must be a whole number from 1")
        sizes[name] = value
    return RecordedPlan("pp_vis", sizes["pp_size"], 1, sizes["vp_size"])


def _stage(path: Path, plan: RecordedPlan) -> int:
    named = _RANK_IN_NAME.search(path.name)
    if named is None:
        raise TraceError(f"{path}: the rank is in the file's name, which must end in pp_rank_N.json; rename it")
    stage = int(named[1])
    if stage >= plan.stages:
        raise TraceError(f"{path}: pipeline rank {stage}, but {CONFIG} has pp_size {plan.stages}; give the config.json of this run")
    return stage


def _json(path: Path, progress: Callable[[int], None] | None) -> Any:
    try:
        return json.loads(b"".join(unpacked_blocks(path, progress)))
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", str(error))
        where = f" at byte {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise TraceError(f"{path}: not complete JSON ({reason}{where}); copy or record it again") from error


def _passes(where: str, prefix: str, iteration: Mapping[str, Any], plan: RecordedPlan) -> list[tuple[int, int, int, int, int]]:
    """(start, duration, microbatch, chunk, sequence) of each pass of one direction; ns."""
    start, end = (_times(where, f"{prefix}_{which}", iteration) for which in ("start", "end"))
    if len(start) != len(end):
        raise TraceError(f"{where}: {prefix}_start has {len(start)} entries, {prefix}_end {len(end)}; record it again")
    wrong = np.flatnonzero(end < start)
    if len(wrong):
        raise TraceError(f"{where}: {prefix} number {int(wrong[0])} ends before it starts; record it again")
    count = len(start)
    microbatch = _indices(where, f"{prefix}_minibatch", iteration, count)
    chunk = _indices(where, f"{prefix}_chunk", iteration, count)
    if plan.chunks > 1 and (microbatch is None or chunk is None):
        numbers, chunks = _interleaved(where, prefix, count, plan)
    else:
        numbers = list(range(count)) if microbatch is None else [m - 1 for m in microbatch]
        chunks = [0] * count if chunk is None else chunk
    if max(chunks, default=0) >= plan.chunks:
        raise TraceError(f"{where}: {prefix}_chunk has {max(chunks)}, but vp_size is {plan.chunks}: chunks count from 0; record it again")
    return list(zip(start.tolist(), (end - start).tolist(), numbers, chunks, range(count), strict=True))


def _interleaved(where: str, prefix: str, count: int, plan: RecordedPlan) -> tuple[list[int], list[int]]:
    """Microbatch and chunk of each pass of one direction, in the order of the interleaved schedule.

    A rank runs as many microbatches as there are stages through its first chunk, then the same ones through the next, and so on; backward
    passes begin with the last chunk (Megatron-LM, "Efficient Large-Scale Language Model Training on GPU Clusters", section 2.2).
    """
    group = plan.stages * plan.chunks
    if count % group:
        raise TraceError(
            f"{where}: {count} passes ({prefix}) are no multiple of pp_size {plan.stages} times vp_size {plan.chunks}, so that their"
            f" order does not follow from the interleaved schedule; record {prefix}_minibatch and {prefix}_chunk"
        )
    numbers = [k // group * plan.stages + k % plan.stages for k in range(count)]
    chunks = [k % group // plan.stages for k in range(count)]
    return numbers, chunks if prefix == "fwd" else [plan.chunks - 1 - chunk for chunk in chunks]


def _times(where: str, key: str, iteration: Mapping[str, Any]) -> Int64:
    """A list of times in ms, as ns."""
    values = iteration.get(key)
    if not isinstance(values, list) or not values:
        raise TraceError(f"{where}: no list {key}; record it again")
    for i, value in enumerate(values):
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value) or not 0 <= value < 1e12:
            raise TraceError(f"{where}: {key}[{i}] is {value!r}; a time is ms from 0")
    return np.array([round(value * 1e6) for value in values], np.int64)


def _indices(where: str, key: str, iteration: Mapping[str, Any], count: int) -> list[int] | None:
    values = iteration.get(key)
    if not values:
        return None
    if not isinstance(values, list) or len(values) != count or not all(type(v) is int and ABSENT < v < 1 << 31 for v in values):
        raise TraceError(f"{where}: {key} must list {count} whole numbers below 2^31, one a pass; record it again")
    return values
