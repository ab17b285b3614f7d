"""Which architectures of Hugging Face are stacks of attention and MLP, and what their `config.json` leaves to a default.

`data/architectures.json` is written by `tools/architectures.py`, which builds every causal language model that the library
`transformers` has and counts the matrices of each layer. A `model_type` is priced if they are exactly those that `lumos.model.Model`
multiplies; any other is refused with what was found.
"""

from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from lumos.errors import LumosError

ARCHITECTURES = Path(__file__).parent / "data" / "architectures.json"


class Architecture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An architecture that is priced.

    style: fields of `lumos.model.Model` that no key of a `config.json` states (gated, norm, positions, …), where they differ from its
    defaults. defaults: values of keys that a `config.json` may leave out. keys: other names of keys, for types that use a usual name for
    something else. apart: what a layer does besides what is priced, in words; empty where there is nothing.
    """

    style: dict[str, bool | str] = {}
    defaults: dict[str, Any] = {}
    keys: dict[str, str] = {}
    apart: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """transformers: the version of the library that was asked."""

    transformers: str
    priced: dict[str, Architecture]
    refused: dict[str, str]


@cache
def _file() -> _File:
    return msgspec.json.decode(ARCHITECTURES.read_bytes(), type=_File)


def priced_types() -> tuple[str, ...]:
    """Every `model_type` that is priced, sorted."""
    return tuple(sorted(_file().priced))


def architecture(model_type: str, source: str) -> Architecture:
    """The architecture of a `model_type`. Raises LumosError for one that is not priced, with the reason; source: what is read."""
    priced = _file().priced.get(model_type)
    if priced is not None:
        return priced
    if model_type in _file().refused:
        raise LumosError(f"{source}: model_type {model_type!r} cannot be priced: {_file().refused[model_type]}")
    near = ", ".join(get_close_matches(model_type, priced_types(), 3, 0.6))
    hint = f"; nearest: {near}" if near else ""
    raise LumosError(
        f"{source}: model_type {model_type!r} is no known architecture{hint}. If its layers are those of one of the "
        f"{len(priced_types())} known (llama, qwen3, mixtral, deepseek_v3, gpt2, …), write that model_type into a copy of the file"
    )
