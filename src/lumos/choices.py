"""Words that a user may give, and the nearest valid one to a wrong word."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from math import isfinite
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex

from lumos.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from enum import StrEnum


def one_or_other(kind: type[StrEnum]) -> str:
    """The words of a closed set as an option's help lists them: "none, selective or full." """
    *most, last = kind
    return f"{', '.join(most)} or {last}."


#: What frameworks and people call what Lumos has another word for: the first of these that is valid.
ELSEWHERE = {
    **dict.fromkeys(("batch", "batch_size", "bs", "mbs", "micro_batch_size"), ("micro_batch", "global_batch")),
    **dict.fromkeys(("gbs", "global_batch_size"), ("global_batch", "microbatches")),
    **dict.fromkeys(("grad_accum", "gradient_accumulation_steps", "accumulate", "accumulation"), ("microbatches", "global_batch")),
    **dict.fromkeys(("gpus", "devices", "nodes", "ranks", "world_size"), ("gpus", "dp")),
    **{
        f"{of}{parallel}": (f"{of[0]}p",)
        for of in ("tensor", "pipeline", "context", "expert", "data")
        for parallel in ("_parallel", "_parallel_size", "_parallel_degree", "_model_parallel_size")
    },
    **dict.fromkeys(("seqlen", "seq_len", "seq_length", "sequence_length", "max_seq_len"), ("seq",)),
    **dict.fromkeys(("hidden_size", "d_model", "width"), ("hidden",)),
    **dict.fromkeys(("num_layers", "n_layers", "depth"), ("layers",)),
    **dict.fromkeys(("checkpointing", "activation_checkpointing", "recompute_granularity"), ("recompute",)),
    **dict.fromkeys(("fsdp", "sharding", "zero_stage"), ("zero",)),
    **dict.fromkeys(("dtype", "amp"), ("precision",)),
    **dict.fromkeys(("compile", "torch_compile"), ("after", "framework", "fusion")),
}


def meant(word: str, valid: Collection[str]) -> str:
    """The valid word for what is called `word` elsewhere; "" where there is none."""
    means = ELSEWHERE.get(word.lower().strip("-").replace("-", "_"), ())
    return next((other for other in means if other in valid), "")


def nearest(word: str, valid: Iterable[str]) -> str:
    """What to append to "no such …": the valid word that means the same or is spelled most alike; "" where there is none."""
    valid = tuple(map(str, valid))
    near = [meant(word, valid)] if word in ELSEWHERE else get_close_matches(word.lower(), valid, n=1)
    return f"; did you mean {near[0]!r}?" if any(near) else ""


def suggestion(word: str, valid: Iterable[str]) -> str:
    """What to append to "no such …": the nearest valid word, or all of them where none is near."""
    valid = list(valid)
    return nearest(word, valid) or f"; valid are {', '.join(valid)}"


def check_choice(word: str, valid: Iterable[str], what: str) -> str:
    """The word, if it is valid; else UsageError that names the nearest valid one. `what`: "a value of --by", …"""
    valid = list(valid)
    if word not in valid:
        raise UsageError(f"{word!r} is not {what}{suggestion(word, valid)}")
    return word


def check_count(value: object, what: str, most: int | None = None) -> int:
    """The value, if it is a whole number from 1 to `most`; else UsageError."""
    count = index(value) if isinstance(value, SupportsIndex) else 0
    if count < 1 or (most is not None and count > most):
        raise UsageError(f"{what} = {value!r} must be a whole number from 1{f' to {most:,}' if most is not None else ''}")
    return count


def as_number(value: Any, what: str) -> float:
    """The value as a number. Raises UsageError where it is none, or not finite."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{what} = {value!r} is not a number") from None
    if not isfinite(number):
        raise UsageError(f"{what} = {value!r} is not a finite number")
    return number


def as_mapping(value: object, what: str, example: str) -> Mapping[Any, Any]:
    """The value, if it is a mapping; else UsageError with an example of one."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{what} = {value!r} is no mapping; give one, for instance {what}={example}")
    return value


def check_step(word: str, names: Iterable[str]) -> str:
    """The step of that name, or of that number behind the # of its name; else UsageError that names the nearest one."""
    names = list(names)
    if word in names:
        return word
    numbered = [name for name in names if name.rpartition("#")[2] == word]
    if len(numbered) == 1:
        return numbered[0]
    raise UsageError(f"{word!r} is not a step (--step){suggestion(word, names)}")
